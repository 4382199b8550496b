/* client.c - a handle: opening, closing, stepping, waiting.
 *
 * Invariants. The descriptor of mmx_fd is an epoll instance: the socket, those
 * to lenders (lend.c), a timer for the next try to connect or, while the link
 * is up, for the next room whose deadline passes (wait.c), and the wakeup fd,
 * which is readable while events are pending that were received (by a thread
 * that waited for something else) but not handed out. So the descriptor is
 * readable whenever mmx_step has something to do, across reconnects. Everything
 * is guarded by one lock that is never held during a wait. All memory is
 * allocated in mmx_open.
 *
 * A fork is detected by a page that the kernel zeroes in the child: no system
 * call per call, no atfork handlers.
 *
 * Rejected: a thread inside the library (engines fork, trace and pin their
 * threads), and to hand out events as they are received (a caller that does not
 * step would lose them, or need memory without bound). */
#include "client/client.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define BYE_MS 200

/* opening and closing */

static void *pages(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static bool copy_name(char *out, size_t size, const char *s)
{
    size_t n = strlen(s);

    if (n >= size)
        return false;
    memcpy(out, s, n + 1);
    return true;
}

static bool take_names(mmx *m, const struct mmx_opt *o)
{
    static const char *const env[] = {
        NULL, "MMX_ENCODED_SOCKET", "MMX_LANGD_SOCKET"};
    static const char *const usual[] = {
        NULL, "/run/mmx/encoded.sock", "/run/mmx/langd.sock"};
    const char *path = o->socket;
    uint64_t alone[2] = {(uint64_t)getpid(), client_now()};

    if (o->role < MMX_ANY || o->role > MMX_LANGD)
        return false;
    m->role = (uint8_t)o->role;
    if (!path && m->role != MMX_ANY)
        path = getenv(env[m->role]);
    if (!path || !*path)
        path = usual[m->role];
    snprintf(m->engine, sizeof m->engine, "pid %d", (int)getpid());
    if (!o->session && getrandom(alone, sizeof alone, GRND_NONBLOCK) < 0)
        client_error(m, "getrandom: %m");
    snprintf(m->session, sizeof m->session, "alone-%016llx%016llx",
        (unsigned long long)alone[0], (unsigned long long)alone[1]);
    return path && copy_name(m->path, sizeof m->path, path) &&
           (!o->engine || copy_name(m->engine, sizeof m->engine, o->engine)) &&
           (!o->session ||
               copy_name(m->session, sizeof m->session, o->session));
}

static bool take_memory(mmx *m, uint32_t cells)
{
    long page = sysconf(_SC_PAGESIZE);
    size_t size = page > 0 ? (size_t)page : 4096;

    assert(cells >= 1 && cells <= CELLS_MAX);
    m->cells = cells;
    m->page_bytes = (cells * sizeof(uint64_t) + size - 1) / size * size;
    m->alive = pages(size);
    m->page = pages(m->page_bytes);
    m->own = pages(m->page_bytes);
    m->rooms = pages(cells * sizeof *m->rooms);
    m->stores = pages(cells * sizeof *m->stores);
    m->tickets = pages(TICKETS_MAX * sizeof *m->tickets);
    if (!m->alive || !m->page || !m->own || !m->rooms || !m->stores ||
        !m->tickets)
        return false;
    if (madvise(m->alive, size, MADV_WIPEONFORK) != 0)
        return false;
    *m->alive = CLIENT_ALIVE;
    /* Core dumps must not contain users' data. */
    (void)madvise(m->stores, cells * sizeof *m->stores, MADV_DONTDUMP);
    client_rooms_init(m);
    client_tickets_init(m);
    return true;
}

static bool take_fds(mmx *m)
{
    struct epoll_event e = {.events = EPOLLIN};

    m->ep = epoll_create1(EPOLL_CLOEXEC);
    m->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    m->wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (m->ep < 0 || m->timer < 0 || m->wakeup < 0)
        return false;
    if (epoll_ctl(m->ep, EPOLL_CTL_ADD, m->timer, &e) != 0 ||
        epoll_ctl(m->ep, EPOLL_CTL_ADD, m->wakeup, &e) != 0)
        return false;
    if (!m->said)
        return true;
    m->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return m->bell >= 0 && epoll_ctl(m->ep, EPOLL_CTL_ADD, m->bell, &e) == 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Closes the descriptor of mmx_fd and what only makes it readable. */
static void close_own(mmx *m)
{
    close_fd(&m->timer);
    close_fd(&m->wakeup);
    close_fd(&m->ep);
}

static void unpage(void *p, size_t bytes)
{
    if (p)
        munmap(p, bytes);
}

/* Frees a handle; accepts a half-built one, and a child's copy. */
static void drop(mmx *m)
{
    long page = sysconf(_SC_PAGESIZE);

    for (uint32_t i = 0; i < LENDERS_MAX; i++)
        if (m->lenders[i].number)
            close_fd(&m->lenders[i].sock);
    close_fd(&m->sock);
    close_fd(&m->bell);
    close_own(m);
    unpage(m->alive, page > 0 ? (size_t)page : 4096);
    unpage(m->page, m->page_bytes);
    unpage(m->own, m->page_bytes);
    unpage(m->rooms, m->cells * sizeof *m->rooms);
    unpage(m->stores, m->cells * sizeof *m->stores);
    unpage(m->tickets, TICKETS_MAX * sizeof *m->tickets);
    unpage(m->said, SAID_BYTES);
    free(m);
}

/* Steps the link until it is up, refused without advice to retry, or the
 * timeout has expired. */
static int wait_up(mmx *m, int timeout_ms)
{
    uint64_t end = client_end(timeout_ms);

    for (;;) {
        struct pollfd p = {.fd = m->ep, .events = POLLIN};
        int64_t left = client_left(end);
        uint64_t n;

        client_flush(m); /* the socket may not have taken it at first */
        client_receive(m);
        if (m->link == LINK_UP)
            return 0;
        if (m->hello_err && err_advice((enum err)m->hello_err) != ADVICE_RETRY)
            return -m->hello_err;
        if (left == 0)
            break;
        if (poll(&p, 1, (int)min_u64((uint64_t)left, INT32_MAX)) < 0 &&
            errno != EINTR)
            return -MMX_E_SYSTEM;
        if (m->link == LINK_DOWN && read(m->timer, &n, sizeof n) > 0)
            client_connect(m);
    }
    if (m->hello_err)
        return -m->hello_err;
    if (m->link == LINK_DOWN)
        return -MMX_E_NOT_READY;
    return client_expired(m, timeout_ms, timeout_ms >= SILENT_MS);
}

static int open_handle(mmx *m, const struct mmx_opt *o)
{
    uint32_t cells = o->cells ? o->cells : CELLS_USUAL;

    m->ep = m->sock = m->timer = m->wakeup = m->bell = -1;
    m->no_lend = o->no_lend != 0;
    m->info.role = o->role;
    m->backoff_ms = 1;
    m->due = TIME_NEVER;
    if (cells > CELLS_MAX || !take_names(m, o)) {
        client_error(m,
            "a name is too long, the role is unknown, MMX_ANY has no socket, "
            "or there are more than %d cells",
            CELLS_MAX);
        return -MMX_E_MALFORMED;
    }
    errno = pthread_mutex_init(&m->lock, NULL);
    m->said = o->binding ? pages(SAID_BYTES) : NULL;
    if (errno != 0 || (o->binding && !m->said) || !take_memory(m, cells) ||
        !take_fds(m)) {
        client_error(m, "%m");
        return -MMX_E_SYSTEM;
    }
    client_connect(m);
    return o->timeout_ms ? wait_up(m, o->timeout_ms) : 0;
}

int mmx_open(const struct mmx_opt *opt, mmx **out)
{
    struct mmx_opt o;
    mmx *m;
    int err, saved;

    if (!out || !CLIENT_TAKE(o, opt))
        return -MMX_E_MALFORMED;
    m = calloc(1, sizeof *m);
    if (!m)
        return -MMX_E_SYSTEM;
    err = open_handle(m, &o);
    saved = errno;
    if (err) {
        if (o.why && o.why_size)
            snprintf(o.why, o.why_size, "%s", m->error);
        drop(m);
        errno = saved;
        return err;
    }
    *out = m;
    return 0;
}

/* Sends BYE and reads until the daemon has closed, too: if we closed with
 * unread data, the messages that were sent before would be discarded. */
static void say_bye(mmx *m)
{
    struct local_msg msg = {.type = LOCAL_BYE};
    uint64_t end = client_end(BYE_MS);

    m->corks = 0;
    if (m->link != LINK_UP || client_ask(m, &msg, 0, NONE, 0, NULL) != 0)
        return;
    while (m->link == LINK_UP && client_left(end) != 0) {
        client_poll(m->sock, client_left(end));
        client_flush(m);
        client_receive(m);
    }
}

void mmx_close(mmx **mp)
{
    mmx *m = mp ? *mp : NULL;

    if (!m)
        return;
    *mp = NULL;
    if (!client_forked(m)) {
        client_unmap_all(m);
        say_bye(m);
        client_lend_end(m, client_end(BYE_MS));
        client_untold(m);
        pthread_mutex_destroy(&m->lock);
    }
    drop(m);
}

/* stepping and waiting */

int mmx_fd(const mmx *m)
{
    return m->ep;
}

/* Hands out DOWN, UP and refused declines, after the events of rooms and
 * tickets. The handle does not reconnect before DOWN is handed out, so the
 * order of DOWN and UP is the true one. */
static int give_link(mmx *m, struct mmx_event *ev, int max)
{
    int n = 0;

    assert(m->notes_count <= NOTES_MAX);
    if (m->say_down && n < max) {
        ev[n++] = (struct mmx_event){.what = MMX_DOWN,
            .reason = MMX_E_DAEMON_LOST,
            .advice = MMX_ADVICE_RETRY,
            .text = ""};
        m->say_down = m->up_reported = false;
    }
    if (m->say_up && n < max) {
        ev[n++] = (struct mmx_event){
            .what = MMX_UP, .epoch = m->info.epoch, .text = ""};
        m->say_up = false;
        m->up_reported = true;
    }
    for (; m->notes_count && n < max; m->notes_count--) {
        const struct client_note *k = &m->notes[m->notes_head++ % NOTES_MAX];

        ev[n++] = (struct mmx_event){.what = MMX_REFUSED,
            .id = k->id,
            .reason = k->reason,
            .advice = (int)err_advice((enum err)k->reason),
            .op = "decline",
            .text = k->text};
    }
    return n;
}

int mmx_step(mmx *m, struct mmx_event *ev, int max)
{
    uint64_t expired;
    int n, err;

    if (!ev || max < 1)
        return -MMX_E_MALFORMED;
    err = client_lock(m);
    if (err)
        return err;
    if (m->bell >= 0)
        (void)!read(m->bell, &expired, sizeof expired);
    client_rooms_reap(m);
    client_tickets_reap(m);
    if (m->link == LINK_DOWN && !m->say_down && !m->ended &&
        read(m->timer, &expired, sizeof expired) > 0)
        client_connect(m);
    client_flush(m);
    if (client_receive(m))
        client_due_look(m);
    client_lend(m, !m->rooms_news && list_empty(&m->tickets_news));
    n = client_rooms_give(m, ev, max);
    if (!m->rooms_news)
        n += client_tickets_give(m, ev + n, max - n);
    if (n < max && !m->rooms_news && list_empty(&m->tickets_news))
        n += give_link(m, ev + n, max - n);
    assert(n >= 0 && n <= max);
    client_flush(m);
    m->said_seen = m->said_tail;
    client_unlock(m);
    return n;
}

int mmx_wait(mmx *m, struct mmx_event *ev, int max, int timeout_ms)
{
    uint64_t end = client_end(timeout_ms);

    for (;;) {
        struct pollfd p = {.fd = m->ep, .events = POLLIN};
        int64_t left = client_left(end);
        int n = mmx_step(m, ev, max);

        if (n != 0 || left == 0)
            return n;
        if (left > INT32_MAX)
            left = INT32_MAX;
        if (poll(&p, 1, (int)left) < 0)
            return 0;
    }
}

int mmx_query(mmx *m, const char *what)
{
    struct local_msg msg = {
        .type = LOCAL_QUERY, .query = {.what = span_str(what)}};

    return CLIENT_LOCKED(m, client_ask(m, &msg, 0, NONE, 0, NULL));
}

int mmx_bye(mmx *m)
{
    struct local_msg msg = {.type = LOCAL_BYE};

    return CLIENT_LOCKED(
        m, (m->ended = true, client_ask(m, &msg, 0, NONE, 0, NULL)));
}

int mmx_end(mmx *m)
{
    int err = client_lock(m);

    if (err)
        return err;
    m->ended = true;
    client_hang_up(m);
    close_own(m);
    client_unlock(m);
    return 0;
}

int mmx_cork(mmx *m)
{
    return CLIENT_LOCKED(m, (m->corks++, 0));
}

int mmx_uncork(mmx *m)
{
    int err = client_lock(m);

    if (err)
        return err;
    if (m->corks && --m->corks == 0)
        client_flush(m);
    client_unlock(m);
    return 0;
}

int mmx_info(mmx *m, struct mmx_info *out)
{
    struct mmx_info i;
    int err = client_lock(m);

    if (err)
        return err;
    i = m->info;
    i.up = m->link == LINK_UP;
    i.refused = m->hello_err;
    client_unlock(m);
    return CLIENT_GIVE(out, i) ? 0 : -MMX_E_MALFORMED;
}

int mmx_error_text(mmx *m, char *out, size_t size)
{
    int err = client_lock(m);

    if (err)
        return err;
    if (size)
        snprintf(out, size, "%s", m->error);
    client_unlock(m);
    return 0;
}
