/* handle.c - what all calls of a handle share: its lock, its clock and timer,
 * its last error, structs of callers, what a binding is told.
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
    return !m || *(volatile const uint64_t *)m->alive != CLIENT_ALIVE;
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
           m->lend_due || m->said_tail > m->said_seen ||
           !list_empty(&m->tickets_news);
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

/* what a binding is told */

static uint32_t padded(uint32_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* Appends bytes to the answers; NULL: they do not fit, which no daemon causes
 * that answers what it was asked. */
static void *keep(mmx *m, const void *from, uint32_t bytes)
{
    uint8_t *at = m->said + m->said_tail;

    assert(m->said_head <= m->said_tail && m->said_tail <= SAID_BYTES);
    if (padded(bytes) > SAID_BYTES - m->said_tail)
        return NULL;
    if (bytes)
        memcpy(at, from, bytes);
    m->said_tail += padded(bytes);
    return at;
}

void client_tell(mmx *m, struct mmx_answer a)
{
    uint32_t from = m->said_tail;
    struct mmx_answer *at;

    a.fd = a.pool ? a.fd : -1;
    if (!m->said)
        return;
    at = keep(m, &a, sizeof a);
    if (at) {
        at->text = keep(m, a.text, a.text_len);
        if (a.pool) {
            at->pool = keep(m, a.pool, sizeof *a.pool);
            at->share =
                a.share ? keep(m, a.share, (uint32_t)strlen(a.share) + 1) : "";
            at->handle = keep(m, a.handle, a.handle_len);
        }
        at->size = m->said_tail - from; /* of all of it, until it is taken */
    }
    if (at && at->text && (!a.pool || (at->pool && at->share && at->handle)))
        return;
    m->said_tail = from;
    if (a.fd >= 0)
        close(a.fd);
}

int mmx_answers(mmx *m, struct mmx_answer *out)
{
    int err = client_lock(m), n;
    struct mmx_answer a;

    if (err)
        return err;
    n = m->said_head < m->said_tail;
    if (n) {
        memcpy(&a, m->said + m->said_head, sizeof a);
        m->said_head += (uint32_t)a.size;
        assert(m->said_head <= m->said_tail);
        CLIENT_GIVE(out, a);
    } else
        m->said_head = m->said_tail = m->said_seen = 0;
    client_unlock(m);
    return n;
}

void client_untold(mmx *m)
{
    struct mmx_answer a = {.size = sizeof a};

    while (m->said && mmx_answers(m, &a) > 0)
        if (a.fd >= 0)
            close(a.fd);
}

void client_offer(mmx *m, uint32_t seq, struct client_reply *r, int id)
{
    int fd = r->fd;

    assert(m->said && id >= 0 && id < MAPS_MAX);
    r->pool.id = id;
    r->fd = -1;
    client_tell(m, (struct mmx_answer){.number = seq,
                       .text = "",
                       .pool = &r->pool,
                       .pool_number = r->number,
                       .fd = fd,
                       .share = r->share,
                       .handle = r->handle,
                       .handle_len = r->handle_len});
}

bool client_is_host(const struct client_reply *r)
{
    return !r->share[0] || strcmp(r->share, "memfd") == 0;
}

struct client_map *client_map_of(mmx *m, const char *name)
{
    struct client_map *unused = NULL;

    for (uint32_t i = 0; i < MAPS_MAX; i++) {
        struct client_map *map = &m->maps[i];

        if (map->used && !map->lender && strcmp(map->pool.name, name) == 0)
            return map;
        if (!map->used && !unused)
            unused = map;
    }
    return unused;
}

void client_pool_answer(mmx *m, uint32_t seq, struct client_reply *r)
{
    struct client_map *map = r->err ? NULL : client_map_of(m, r->pool.name);
    int reason = r->err ? -r->err : map ? 0 : MMX_E_QUOTA;

    assert(m->said && !r->pool.base);
    if (!reason && client_is_host(r) && !client_sealed(r->fd, r->pool.bytes))
        reason = MMX_E_MALFORMED;
    if (reason) {
        static const char text[] =
            "the pool has no fields, no memory of a sealed size, or no place";

        if (r->fd >= 0)
            close(r->fd);
        client_tell(m, (struct mmx_answer){.number = seq,
                           .reason = reason,
                           .text = text,
                           .text_len = sizeof text - 1});
        return;
    }
    *map = (struct client_map){.used = true,
        .number = r->number,
        .serial = m->serial,
        .pool = r->pool};
    client_offer(m, seq, r, (int)(map - m->maps));
}

uint32_t mmx_sent(const mmx *m)
{
    return m ? m->seq : 0;
}

void mmx_wake(mmx *m)
{
    uint64_t n = 1;

    if (!client_forked(m) && m->bell >= 0)
        (void)!write(m->bell, &n, sizeof n);
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
