/* local.c - the server sockets: which processes may connect, which number a
 * connection gets, and what happens when descriptors run out.
 *
 * Invariants: a number is free only when its socket is closed, its process has
 * exited and libuv has closed both handles; libuv's callbacks only mark
 * connections that have work, and do none. Owned by the loop's thread.
 *
 * Rejected: uv_pipe_t. It is a byte stream, does not keep packets apart, and
 * drops descriptors silently. */
#include "io/local/local_impl.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define ACCEPTS_TURN 64
#define LINES_PER_S  5
#define BACKOFF_MS   100

static struct log_rate refusals =
    LOG_RATE("refused engines", LOG_WARN, LINES_PER_S);
static struct log_rate shortages =
    LOG_RATE("engines that wait for descriptors", LOG_WARN, LINES_PER_S);

/* listening */

/* Removes a socket that a crashed daemon left at the path. ERR_BUSY: another
 * process serves it. */
static enum err clear_path(const struct sockaddr_un *a)
{
    struct stat st;
    int s, e;

    if (lstat(a->sun_path, &st) != 0)
        return OK;
    if (!S_ISSOCK(st.st_mode)) {
        log_error("%s: is there and is no socket", a->sun_path);
        return ERR_INTERNAL;
    }
    s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0) {
        log_error("%s: socket: %s", a->sun_path, strerror(errno));
        return ERR_INTERNAL;
    }
    e = connect(s, (const struct sockaddr *)a, sizeof(*a)) == 0 ? 0 : errno;
    close(s);
    if (e != ECONNREFUSED) {
        log_error("%s: served by another process", a->sun_path);
        return ERR_BUSY;
    }
    /* No process listens: a crashed daemon left the socket. */
    if (unlink(a->sun_path) != 0) {
        log_error("%s: unlink: %s", a->sun_path, strerror(errno));
        return ERR_INTERNAL;
    }
    return OK;
}

/* Sets the path's group ("": unchanged) and its mode. Clients cannot connect
 * yet, between bind and listen. */
static enum err path_rights(const char *path, const char *name, uint32_t mode)
{
    char buffer[4096];
    struct group group, *found = NULL;

    if (name[0] != 0) {
        if (getgrnam_r(name, &group, buffer, sizeof(buffer), &found) ||
            !found) {
            log_error("socket.group: no group %s", name);
            return ERR_INTERNAL;
        }
        if (chown(path, (uid_t)-1, group.gr_gid) != 0) {
            log_error("%s: group %s: %s", path, name, strerror(errno));
            return ERR_INTERNAL;
        }
    }
    if (chmod(path, mode) != 0) {
        log_error("%s: mode %o: %s", path, mode, strerror(errno));
        return ERR_INTERNAL;
    }
    return OK;
}

static enum err bind_path(
    struct listener *p, const char *path, const char *group, uint32_t mode)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    enum err e;

    if (strlen(path) >= sizeof(a.sun_path)) {
        log_error("%s: path is too long for a socket", path);
        return ERR_INTERNAL;
    }
    memcpy(a.sun_path, path, strlen(path) + 1);
    e = clear_path(&a);
    if (e != OK)
        return e;
    if (p->fd < 0) /* otherwise it is there from the last try */
        p->fd =
            socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->fd < 0 || bind(p->fd, (struct sockaddr *)&a, sizeof(a)) != 0) {
        if (errno == ENOENT && p == &p->owner->listeners[LISTEN_ORDERS])
            return ERR_GONE;
        log_error("%s: bind: %s", path, strerror(errno));
        return ERR_INTERNAL;
    }
    if (lstat(path, &st) == 0) {
        p->path_dev = st.st_dev;
        p->path_ino = st.st_ino;
        memcpy(p->path, a.sun_path, sizeof(p->path));
    }
    e = path_rights(path, group, mode);
    if (e == OK && listen(p->fd, 128) != 0) {
        log_error("%s: listen: %s", path, strerror(errno));
        e = ERR_INTERNAL;
    }
    return e;
}

/* Writes the folder of a path; "": the path has none, or only the root. */
static void folder_of(const char *path, char out[108])
{
    char *slash;

    snprintf(out, 108, "%s", path);
    slash = strrchr(out, '/');
    out[slash ? slash - out : 0] = 0;
}

/* Makes the folder, which engines must not enter or mount. ERR_GONE: it is
 * removed already. */
static enum err make_folder(const char *folder)
{
    char above[120];
    struct stat st, up;

    snprintf(above, sizeof(above), "%s/..", folder);
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
        log_error("socket.orders: %s: mkdir: %s", folder, strerror(errno));
        return ERR_INTERNAL;
    }
    if (lstat(folder, &st) != 0 || stat(above, &up) != 0)
        return ERR_GONE;
    /* Who may rename the folder's files could replace our socket. A container's
     * volume may have any mode: who mounts it is its fence. */
    if (S_ISDIR(st.st_mode) && (st.st_uid == 0 || st.st_uid == geteuid()) &&
        (!(st.st_mode & (S_IWGRP | S_IWOTH)) || st.st_mode & S_ISVTX ||
            st.st_dev != up.st_dev))
        return OK;
    log_error("socket.orders: %s: is no folder of root or this user that no "
              "other may write to (mode 0700)",
        folder);
    return ERR_INTERNAL;
}

static enum err bind_orders(struct listener *p, const char *path)
{
    char folder[108];
    enum err e = ERR_GONE;

    folder_of(path, folder);
    /* The host's other daemon removes the folder when it ends. */
    for (int i = 0; e == ERR_GONE && i < 10; i++) {
        e = folder[0] ? make_folder(folder) : OK;
        if (e == OK)
            e = bind_path(p, path, "", 0600);
    }
    if (e == ERR_GONE)
        log_error("socket.orders: %s: another process removes it", folder);
    return e;
}

/* Takes over a socket that notify_listen_fd() has found good. */
static enum err take_socket(struct listener *p, int fd)
{
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
        log_error("descriptor %d: %s", fd, strerror(errno));
        return ERR_INTERNAL;
    }
    p->fd = fd;
    return OK;
}

/* accepting */

static void on_listen(uv_poll_t *h, int status, int events)
{
    struct listener *p = h->data;

    (void)status;
    (void)events;
    p->ready = true;
}

static void listen_again(struct listener *p)
{
    int e = uv_poll_start(&p->poll, UV_READABLE, on_listen);

    CHECK(e == 0, "poll of the listener: %s", uv_strerror(e));
}

static void on_backoff(uv_timer_t *t)
{
    listen_again(t->data);
}

/* Answers a client with the reason and closes its socket. */
static void refuse(int fd, enum err err, const char *text)
{
    conn_refuse(fd, err, text);
    conn_close(fd);
}

/* Refuses one client with the reserved descriptor, because none is left. Stops
 * the listener for BACKOFF_MS, so that the loop does not spin on clients that
 * it cannot accept. */
static void out_of_descriptors(struct listener *p, int error)
{
    struct local *l = p->owner;
    int fd;

    log_rated(&shortages, "accept: %s, new engines wait", strerror(error));
    if (l->reserve_fd >= 0) {
        close(l->reserve_fd);
        fd = accept4(p->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            refuse(fd, ERR_BUSY, "the daemon is out of descriptors");
        l->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    uv_poll_stop(&p->poll);
    uv_timer_start(&p->backoff, on_backoff, BACKOFF_MS, 0);
}

/* Returns a pidfd, which means the same process even after its number is
 * reused; -1 with errno: error. */
static int open_pidfd(int fd, pid_t pid)
{
    int pidfd = -1;
    socklen_t n = sizeof(pidfd);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &n) == 0)
        return pidfd;
    if (errno != ENOPROTOOPT)
        return -1;
    /* Before Linux 6.5. If the process has exited and its number was reused,
     * only the wait for its exit is wrong. */
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

/* places */

static bool admit(struct local *l, struct local_conn *c, uint32_t uid)
{
    bool own = c->orders || uid == 0 || uid == (uint32_t)geteuid();

    c->uid = uid;
    c->extra = false;
    if (share_take(l->share, uid, 1))
        return true;
    if (!own || l->own_used[c->orders] == l->own)
        return false;
    l->own_used[c->orders]++;
    c->extra = true;
    return true;
}

void conn_leave(struct local_conn *c)
{
    CHECK(!c->extra || c->owner->own_used[c->orders] > 0,
        "no place of our own is used");
    if (c->extra)
        c->owner->own_used[c->orders]--;
    else
        share_give(c->owner->share, c->uid, 1);
}

/* Evicts the oldest connection without a HELLO whose user is `uid` or has more
 * connections. Returns false if there is none. */
static bool evict_silent(struct local *l, uint32_t uid)
{
    uint32_t used = share_used(l->share, uid);
    char text[128];

    LIST_FOREACH_SAFE (n, &l->silent) {
        struct local_conn *c = LIST_ENTRY(n, struct local_conn, silent);

        if (c->uid != uid && share_used(l->share, c->uid) <= used)
            continue;
        (void)local_push(l, c->index); /* why it ends, if it does */
        if (!c->over) {
            snprintf(text, sizeof(text),
                "no hello came, and limits.connections, %u, is reached",
                l->share->limit);
            l->stats.gave_way++;
            conn_refuse(c->fd, ERR_QUOTA, text);
        }
        conn_end(c);
        return true;
    }
    return false;
}

/* Reads the groups that the client had when it connected. The kernel keeps them
 * in ascending order. */
static void take_groups(int fd, struct groups *g)
{
    static gid_t all[NGROUPS_MAX]; /* used by the loop's thread only */
    socklen_t len = sizeof(all);

    g->count = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, all, &len) != 0)
        return; /* an older kernel */
    g->count = min_u32(len / sizeof(all[0]), GROUPS_MAX);
    for (uint32_t i = 0; i < g->count; i++)
        g->ids[i] = all[i];
}

static void take_client(struct listener *p, int fd)
{
    struct local *l = p->owner;
    struct local_conn *c = LIST_FIRST(&l->free, struct local_conn, free);
    struct ucred cred;
    struct groups groups;
    struct event ev = {.type = EV_CONN_OPEN, .groups = &groups};
    socklen_t len = sizeof(cred);
    int pidfd;

    CHECK(c, "no free number of %u", l->conns_count);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) {
        log_rated(
            &refusals, "a client without credentials: %s", strerror(errno));
        close(fd);
        return;
    }
    pidfd = open_pidfd(fd, cred.pid);
    if (pidfd < 0) {
        if (errno != ESRCH)
            log_rated(
                &refusals, "pid %d: pidfd: %s", (int)cred.pid, strerror(errno));
        refuse(fd, ERR_BUSY, "no pidfd for this process");
        return;
    }
    c->orders = p == &l->listeners[LISTEN_ORDERS];
    if (!admit(l, c, cred.uid) &&
        !(evict_silent(l, cred.uid) && admit(l, c, cred.uid))) {
        l->stats.refused++;
        log_rated(&refusals, "pid %d uid %u: refused, %s", (int)cred.pid,
            cred.uid, l->share->why);
        refuse(fd, ERR_QUOTA, l->share->why);
        close(pidfd);
        return;
    }
    fcntl(pidfd, F_SETFD, FD_CLOEXEC);
    list_remove(&c->free);
    if (!conn_start(c, fd, pidfd)) {
        l->stats.refused++;
        log_rated(
            &refusals, "pid %d: no descriptor more is polled", (int)cred.pid);
        conn_leave(c);
        refuse(fd, ERR_BUSY, "the system polls no more descriptors");
        close(pidfd);
        return;
    }
    take_groups(fd, &groups);
    ev.conn = c->index;
    ev.uid = cred.uid;
    ev.gid = cred.gid;
    ev.pid = cred.pid;
    l->calls.event(l->calls.ud, &ev);
}

static void accept_all(struct listener *p)
{
    const struct list *free_ = &p->owner->free;

    p->ready = false;
    /* Without a free number, connections are being closed; the listener reports
     * the waiting clients again. */
    for (unsigned i = 0; i < ACCEPTS_TURN && !list_empty(free_); i++) {
        int fd = accept4(p->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            take_client(p, fd);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            out_of_descriptors(p, errno);
        return;
    }
}

/* resting */

static void on_rest(uv_timer_t *t)
{
    struct local *l = t->data;
    uint64_t now = uv_hrtime();

    LIST_FOREACH_SAFE (n, &l->resting) {
        struct local_conn *c = LIST_ENTRY(n, struct local_conn, resting);

        if (c->rest_until_ns > now)
            continue;
        list_remove(n);
        conn_ready(c);
    }
    local_rest(l);
}

void local_rest(struct local *l)
{
    uint64_t at = TIME_NEVER, now = uv_hrtime();

    LIST_FOREACH (n, &l->resting)
        at = min_u64(
            at, LIST_ENTRY(n, struct local_conn, resting)->rest_until_ns);
    if (at == TIME_NEVER)
        return;
    uv_update_time(l->loop);
    uv_timer_start(
        &l->rest, on_rest, at > now ? (at - now) / NS_PER_MS + 1 : 1, 0);
}

/* life */

static enum err take_memory(struct local *l, uint32_t connections)
{
    size_t each = 2 * (size_t)LOCAL_PACKET_MAX;
    void *p;

    l->buffers_bytes = each * connections + LOCAL_PACKET_MAX;
    p = mmap(NULL, l->buffers_bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    l->conns = calloc(connections, sizeof(*l->conns));
    if (p == MAP_FAILED || !l->conns) {
        if (p != MAP_FAILED)
            munmap(p, l->buffers_bytes);
        return ERR_NO_BLOCKS;
    }
    l->buffers = p;
    l->packet = l->buffers + each * connections;
    l->conns_count = connections;
    for (uint32_t i = 0; i < connections; i++) {
        struct local_conn *c = &l->conns[i];

        c->owner = l;
        c->index = i;
        c->fd = c->pidfd = c->cells_fd = -1;
        c->out = l->buffers + each * i;
        c->parked = c->out + LOCAL_PACKET_MAX;
        list_init(&c->free);
        list_init(&c->ready);
        list_init(&c->dirty);
        list_init(&c->silent);
        list_init(&c->resting);
        list_push_tail(&l->free, &c->free);
    }
    return OK;
}

static enum err start_polls(struct local *l)
{
    for (int i = 0; i < LISTENERS; i++) {
        struct listener *p = &l->listeners[i];
        int e;

        if (p->fd < 0)
            continue;
        e = uv_poll_init(l->loop, &p->poll, p->fd);
        if (e != 0) {
            log_error("listener %d cannot be polled: %s", i, uv_strerror(e));
            return ERR_INTERNAL;
        }
        p->polled = true;
        uv_timer_init(l->loop, &p->backoff);
        p->poll.data = p->backoff.data = p;
        listen_again(p);
    }
    return OK;
}

/* Opens the socket for engines and, if configured, the one for orders. */
static enum err open_listeners(struct local *l, const struct local_opt *opt)
{
    struct listener *p = &l->listeners[LISTEN_ENGINES];
    enum err e = opt->fd >= 0 ? take_socket(p, opt->fd)
                              : bind_path(p, opt->path, opt->group, opt->mode);

    if (e == OK && opt->orders)
        e = bind_orders(&l->listeners[LISTEN_ORDERS], opt->orders);
    return e;
}

enum err local_new(struct local **out, uv_loop_t *loop,
    const struct local_opt *opt, const struct local_calls *calls)
{
    struct local *l = calloc(1, sizeof(*l));
    enum err e;

    if (!l)
        return ERR_NO_BLOCKS;
    l->loop = loop;
    l->calls = *calls;
    for (int i = 0; i < LISTENERS; i++)
        l->listeners[i] = (struct listener){.owner = l, .fd = -1};
    list_init(&l->free);
    list_init(&l->ready);
    list_init(&l->dirty);
    list_init(&l->coalesced);
    list_init(&l->silent);
    list_init(&l->resting);
    l->share = opt->share;
    l->own = opt->own;
    l->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    uv_timer_init(loop, &l->rest);
    l->rest.data = l;
    e = take_memory(l, opt->connections);
    if (e == OK)
        e = open_listeners(l, opt);
    if (e == OK)
        e = start_polls(l);
    if (e != OK) {
        local_stop(l);
        /* lets libuv call back for the closed handles */
        uv_run(loop, UV_RUN_NOWAIT);
        local_free(&l);
        return e;
    }
    *out = l;
    return OK;
}

static void remove_path(struct listener *p)
{
    struct stat st;

    /* A successor may already have put its own socket there. */
    if (p->path[0] != 0 && lstat(p->path, &st) == 0 &&
        st.st_dev == p->path_dev && st.st_ino == p->path_ino)
        unlink(p->path);
    p->path[0] = 0;
}

static void close_listener(struct listener *p)
{
    char folder[108];

    folder_of(p->path, folder);
    remove_path(p);
    /* The host's other daemon may have its socket there: the last one removes
     * the folder. */
    if (folder[0] && p == &p->owner->listeners[LISTEN_ORDERS])
        (void)rmdir(folder);
    if (p->fd < 0)
        return;
    if (p->polled) {
        uv_close((uv_handle_t *)&p->poll, NULL);
        uv_close((uv_handle_t *)&p->backoff, NULL);
    }
    close(p->fd);
    p->fd = -1;
}

void local_stop(struct local *l)
{
    if (l->stopped)
        return;
    l->stopped = true;
    for (int i = 0; i < LISTENERS; i++)
        close_listener(&l->listeners[i]);
    for (uint32_t i = 0; i < l->conns_count; i++)
        conn_drop(&l->conns[i]);
    uv_close((uv_handle_t *)&l->rest, NULL);
    if (l->reserve_fd >= 0)
        close(l->reserve_fd);
    l->reserve_fd = -1;
}

void local_free(struct local **l)
{
    if (!*l)
        return;
    CHECK((*l)->stopped, "freed before it was stopped");
    if ((*l)->buffers)
        munmap((*l)->buffers, (*l)->buffers_bytes);
    free((*l)->conns);
    free(*l);
    *l = NULL;
}

void local_serve(struct local *l)
{
    uint64_t until = uv_hrtime() + SERVE_NS;
    struct list now;

    for (int i = LISTENERS - 1; i >= 0; i--) /* orders first */
        if (l->listeners[i].ready)
            accept_all(&l->listeners[i]);
    /* A connection that becomes ready meanwhile is served after all others. */
    list_init(&now);
    while (!list_empty(&l->ready))
        list_push_tail(&now, list_pop(&l->ready));
    do {
        if (list_empty(&now))
            return;
        conn_serve(LIST_ENTRY(list_pop(&now), struct local_conn, ready));
    } while (uv_hrtime() < until);
    while (!list_empty(&l->ready))
        list_push_tail(&now, list_pop(&l->ready));
    while (!list_empty(&now))
        list_push_tail(&l->ready, list_pop(&now));
}

bool local_busy(const struct local *l)
{
    return l->listeners[LISTEN_ENGINES].ready ||
           l->listeners[LISTEN_ORDERS].ready || !list_empty(&l->ready);
}

bool local_flush(struct local *l)
{
    while (!list_empty(&l->dirty))
        local_push(l, LIST_FIRST(&l->dirty, struct local_conn, dirty)->index);
    while (!list_empty(&l->coalesced))
        list_push_tail(&l->dirty, list_pop(&l->coalesced));
    return !list_empty(&l->dirty);
}

void local_known(struct local *l, uint32_t conn)
{
    list_remove(&conn_at(l, conn)->silent);
}

const struct local_stats *local_stats(const struct local *l)
{
    return &l->stats;
}

bool local_orders(const struct local *l, uint32_t conn)
{
    return conn_at(l, conn)->orders;
}
