/* handle.c - what all calls of a handle share: its lock, its clock and timer,
 * its last error, structs of callers.
 *
 * Invariants. Nothing here calls another file of the folder, so all of them may
 * call this one. The lock is never held during a wait. Whether a caller has to
 * be woken can be seen from the handle's members alone. */
#include "client/client.h"

#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LOOK_MS 250

bool client_forked(const mmx *m)
{
    return *(volatile const uint64_t *)m->alive != CLIENT_ALIVE;
}

int client_lock(mmx *m)
{
    if (client_forked(m))
        return -MMX_E_FORKED;
    pthread_mutex_lock(&m->lock);
    return 0;
}

static bool events_pending(mmx *m)
{
    return m->say_up || m->say_down || m->notes_count || m->rooms_news ||
           m->lend_due || !list_empty(&m->tickets_news);
}

void client_unlock(mmx *m)
{
    bool wake = events_pending(m);
    uint64_t n = 1;

    if (wake && !m->woken)
        m->woken = write(m->wakeup, &n, sizeof n) == sizeof n;
    else if (!wake && m->woken)
        m->woken = read(m->wakeup, &n, sizeof n) != sizeof n;
    pthread_mutex_unlock(&m->lock);
}

int client_unlocked(mmx *m, int result)
{
    client_unlock(m);
    return result;
}

uint64_t client_now(void)
{
    return clock_ns() / NS_PER_MS;
}

uint64_t client_end(int timeout_ms)
{
    return timeout_ms < 0 ? TIME_NEVER : client_now() + (uint64_t)timeout_ms;
}

int64_t client_left(uint64_t end)
{
    uint64_t now;

    if (end == TIME_NEVER)
        return -1;
    now = client_now();
    return now < end ? (int64_t)(end - now) : 0;
}

void client_poll(int sock, int64_t ms)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};

    (void)poll(&p, 1, ms < 0 || ms > WAIT_MS ? WAIT_MS : (int)ms);
}

uint64_t client_word(const mmx *m, mmx_room h)
{
    uint64_t w, own;

    if (h.cell >= m->cells || h.tag == 0)
        return cell_word(MMX_FAILED_STATE, MMX_E_UNKNOWN_ROOM, 0, 0);
    /* Acquire order: the daemon releases the cell in local_cell(), this library
     * its own word in own_word(). */
    w = atomic_load_explicit(&m->page[h.cell], memory_order_acquire);
    own = atomic_load_explicit(&m->own[h.cell], memory_order_acquire);
    if (cell_tag(own) == h.tag)
        return own;
    if (cell_tag(w) == h.tag)
        return w;
    return cell_word(MMX_BOOTSTRAPPING, 0, h.tag, 0);
}

/* deadlines, which wait.c checks */

void client_arm(mmx *m)
{
    uint64_t now = client_now(), ms = m->due > now ? m->due - now : 1;
    struct itimerspec t = {{0}, {0}};

    if (m->due != TIME_NEVER)
        t.it_value = (struct timespec){
            (time_t)(ms / 1000), (long)(ms % 1000 * NS_PER_MS)};
    (void)timerfd_settime(m->timer, 0, &t, NULL);
}

void client_due(mmx *m, struct client_room *r, uint32_t deadline_ms)
{
    assert(m->link == LINK_UP && r->tag != 0 && r->due == 0);
    if (deadline_ms == 0)
        return;
    r->due = client_now() + deadline_ms + LOOK_MS;
    if (r->due >= m->due)
        return;
    m->due = r->due;
    client_arm(m);
}

/* memory of daemons */

bool client_sealed(int fd, uint64_t bytes)
{
    const int both = F_SEAL_SHRINK | F_SEAL_GROW;
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    return seals >= 0 && (seals & both) == both && fstat(fd, &st) == 0 &&
           (uint64_t)st.st_size >= bytes;
}

/* errors, and structs of callers */

int client_expired(mmx *m, int timeout_ms, bool silent)
{
    client_error(m, "%s: not within %d ms%s", m->path, timeout_ms,
        silent ? ", nor any other answer" : "");
    return silent ? -MMX_E_DAEMON_SILENT : -MMX_E_TIMEOUT;
}

void client_error(mmx *m, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(m->error, sizeof m->error, fmt, ap);
    va_end(ap);
}

bool client_take(void *to, size_t size, const void *from)
{
    size_t have = 0;

    if (from)
        memcpy(&have, from, sizeof have);
    if (have < sizeof have)
        return false;
    memset(to, 0, size);
    memcpy(to, from, have < size ? have : size);
    return true;
}

bool client_give(void *to, void *from, size_t size)
{
    size_t have = 0;

    if (to)
        memcpy(&have, to, sizeof have);
    if (have < sizeof have)
        return false;
    memcpy(from, &have, sizeof have);
    memcpy(to, from, have < size ? have : size);
    return true;
}
