/* local_conn.c - one engine's connection: packets in, frames out, cells.
 *
 * Invariants: a message is passed on only if its answer fits (frames that
 * cannot be taken yet are parked, at most one packet); a frame with a
 * descriptor has a packet of its own, in order; a full socket is polled only
 * for writing; `ended` is reported once, before `dead`; at most FDS_UNREAD
 * descriptors are unread, and while the system passes none the connection
 * rests. Owned by the loop's thread.
 *
 * Rejected: a queue of unread messages per connection. An engine that stops
 * reading may cost the memory of one packet, not unbounded memory. */
#include "io/local/local_impl.h"

#include "base/log.h"
#include "base/fds.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static struct log_rate endings =
    LOG_RATE("connections that were ended", LOG_WARN, 5);

void conn_ready(struct local_conn *c)
{
    if (!list_linked(&c->ready))
        list_push_tail(&c->owner->ready, &c->ready);
}

static void on_socket(uv_poll_t *h, int status, int events)
{
    struct local_conn *c = h->data;

    (void)events;
    /* libuv stops the poll when the kernel reports an error on the socket. What
     * was received before is read first, then the connection ends. */
    if (status < 0)
        c->deaf = c->broken = true;
    conn_ready(c);
}

static void on_pidfd(uv_poll_t *h, int status, int events)
{
    struct local_conn *c = h->data;

    (void)status;
    (void)events;
    uv_poll_stop(h);
    c->dead = true;
    conn_ready(c);
}

static void on_closed(uv_handle_t *h)
{
    struct local_conn *c = h->data;

    CHECK(c->closing > 0, "connection %u: no handle is closing", c->index);
    c->closing--;
    if (c->closing == 0 && c->fd < 0 && c->pidfd < 0 && !c->owner->stopped)
        list_push_tail(&c->owner->free, &c->free);
}

static void close_poll(struct local_conn *c, uv_poll_t *h)
{
    c->closing++;
    uv_close((uv_handle_t *)h, on_closed);
}

static void poll_for(struct local_conn *c)
{
    int events = c->blocked ? UV_WRITABLE : UV_READABLE;
    int e = list_linked(&c->resting)
                ? uv_poll_stop(&c->sock_poll)
                : uv_poll_start(&c->sock_poll, events, on_socket);

    CHECK(e == 0, "poll of connection %u: %s", c->index, uv_strerror(e));
}

bool conn_start(struct local_conn *c, int fd, int pidfd)
{
    int e;

    CHECK(
        c->fd < 0 && c->pidfd < 0 && c->closing == 0 && !list_linked(&c->free),
        "connection %u is in use", c->index);
    c->sock_poll.data = c->pid_poll.data = c;
    if (uv_poll_init(c->owner->loop, &c->sock_poll, fd) != 0) {
        list_push_tail(&c->owner->free, &c->free);
        return false;
    }
    if (uv_poll_init(c->owner->loop, &c->pid_poll, pidfd) != 0) {
        close_poll(c, &c->sock_poll);
        return false;
    }
    c->fd = fd;
    c->pidfd = pidfd;
    c->blocked = c->deaf = c->broken = c->held = c->more = false;
    c->over = c->eof = c->dead = false;
    c->out_head = c->out_len = c->marks_count = 0;
    c->parked_at = c->parked_len = c->rests = c->fds_sent = 0;
    c->owner->stats.open++;
    list_push_tail(&c->owner->silent, &c->silent);
    conn_ready(c); /* its HELLO may already be there */
    poll_for(c);
    e = uv_poll_start(&c->pid_poll, UV_READABLE, on_pidfd);
    CHECK(e == 0, "poll of a process: %s", uv_strerror(e));
    return true;
}

/* out */

static void out_clear(struct local_conn *c)
{
    c->out_head = c->out_len = c->marks_count = 0;
}

static void out_compact(struct local_conn *c)
{
    CHECK(c->out_head <= c->out_len, "connection %u: %u of %u bytes sent",
        c->index, c->out_head, c->out_len);
    if (c->out_head == 0)
        return;
    memmove(c->out, c->out + c->out_head, c->out_len - c->out_head);
    for (uint32_t i = 0; i < c->marks_count; i++)
        c->marks[i].at -= c->out_head;
    c->out_len -= c->out_head;
    c->out_head = 0;
}

static ssize_t send_packet(int sock, uint8_t *p, uint32_t len, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {p, len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    struct cmsghdr *h;
    ssize_t n;

    if (fd >= 0) {
        memset(&control, 0, sizeof(control));
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof(control.bytes);
        h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(h), &fd, sizeof(int));
    }
    do {
        n = sendmsg(sock, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n;
}

/* True if one more descriptor may be sent: fewer than FDS_UNREAD are unread. */
static bool fd_may_go(struct local_conn *c)
{
    int unread;

    if (c->fds_sent < FDS_UNREAD)
        return true;
    if (ioctl(c->fd, SIOCOUTQ, &unread) != 0 || unread > 0)
        return false;
    c->fds_sent = 0;
    return true;
}

static int open_anew(const struct local_mark *m)
{
    char name[32];

    if (m->open < 0)
        return m->fd;
    snprintf(name, sizeof(name), "/proc/self/fd/%d", m->fd);
    return open(name, m->open | O_CLOEXEC);
}

/* Sends one frame with its descriptor, or all frames before the next frame with
 * one. Returns the bytes sent; 0: none now, errno has the cause. */
static uint32_t send_next(struct local_conn *c)
{
    const struct local_mark *m = c->marks_count ? &c->marks[0] : NULL;
    uint32_t len = (m ? m->at : c->out_len) - c->out_head;
    uint8_t *p = c->out + c->out_head;
    bool sent;
    int fd, error;

    if (len > 0)
        return send_packet(c->fd, p, len, -1) < 0 ? 0 : len;
    CHECK(m, "nothing is queued for connection %u", c->index);
    CHECK(m->at == c->out_head && m->len <= c->out_len - m->at,
        "connection %u: a frame of %u bytes at %u", c->index, m->len, m->at);
    if (!fd_may_go(c)) {
        errno = ETOOMANYREFS;
        return 0;
    }
    fd = open_anew(m);
    if (fd < 0)
        return 0;
    len = m->len;
    sent = send_packet(c->fd, p, len, fd) >= 0;
    error = errno;
    if (fd != m->fd)
        close(fd);
    errno = error;
    if (!sent)
        return 0;
    c->fds_sent++;
    memmove(c->marks, c->marks + 1, --c->marks_count * sizeof(c->marks[0]));
    return len;
}

/* True if the kernel only lacks space now, and no event will end that. */
static bool no_room(int error)
{
    return error == ETOOMANYREFS || error == EMFILE || error == ENFILE ||
           error == ENOMEM || error == ENOBUFS;
}

static void rest(struct local_conn *c)
{
    uint64_t ms = min_u64(UINT64_C(1) << min_u32(c->rests, 30), REST_MS_MAX);

    CHECK(!list_linked(&c->resting), "connection %u rests already", c->index);
    c->owner->stats.rested += c->rests++ == 0;
    c->blocked = true;
    c->rest_until_ns = uv_hrtime() + ms * NS_PER_MS;
    list_push_tail(&c->owner->resting, &c->resting);
    poll_for(c);
    local_rest(c->owner);
}

static void send_failed(struct local_conn *c, int error)
{
    if (error == EAGAIN || error == EWOULDBLOCK) {
        c->blocked = true;
        poll_for(c);
        return;
    }
    if (no_room(error)) {
        rest(c);
        return;
    }
    if (error != EPIPE && error != ECONNRESET && error != ENOTCONN) {
        log_rated(
            &endings, "connection %u: send: %s", c->index, strerror(error));
        c->eof = true;
        conn_ready(c);
    }
    c->deaf = true;
    out_clear(c);
}

/* Sends what is queued. Returns true if nothing is left. */
static bool conn_push(struct local_conn *c)
{
    bool was_blocked = c->blocked;

    list_remove(&c->resting);
    if (c->deaf)
        out_clear(c);
    while (c->out_head < c->out_len) {
        uint32_t len = send_next(c);

        if (len == 0) {
            send_failed(c, errno);
            break;
        }
        c->out_head += len;
        c->rests = 0;
    }
    if (c->out_head < c->out_len)
        return false;
    out_clear(c);
    if (was_blocked) {
        c->blocked = false;
        poll_for(c);
    }
    return true;
}

bool local_push(struct local *l, uint32_t conn)
{
    struct local_conn *c = conn_at(l, conn);

    list_remove(&c->dirty);
    if (c->fd < 0)
        return true;
    if (c->over)
        conn_ready(c);
    return c->blocked ? false : conn_push(c);
}

bool local_gone(const struct local *l, uint32_t conn)
{
    const struct local_conn *c = conn_at(l, conn);

    return c->fd < 0 || c->deaf || c->eof;
}

/* Marks the connection, so that the next flush sends its output. */
static void make_dirty(struct local_conn *c)
{
    list_remove(&c->dirty);
    list_push_tail(&c->owner->dirty, &c->dirty);
}

/* Queues a frame. False: it is dropped, because the connection has ended, or
 * ends now for lack of space. */
static bool append(
    struct local *l, uint32_t conn, struct span frame, int fd, int open_flags)
{
    struct local_conn *c = conn_at(l, conn);

    if (local_gone(l, conn))
        return false;
    if (frame.len > OUT_MAX - c->out_len)
        out_compact(c);
    if (frame.len > OUT_MAX - c->out_len ||
        (fd >= 0 && c->marks_count == MARKS_MAX)) {
        log_rated(&endings,
            "connection %u: ended, %u bytes of answers are unread", conn,
            c->out_len);
        c->eof = true;
        conn_ready(c);
        return false;
    }
    if (fd >= 0)
        c->marks[c->marks_count++] =
            (struct local_mark){c->out_len, frame.len, fd, open_flags};
    memcpy(c->out + c->out_len, frame.p, frame.len);
    c->out_len += frame.len;
    return true;
}

void local_send(struct local *l, uint32_t conn, struct span frame, int fd)
{
    if (append(l, conn, frame, fd, -1))
        make_dirty(conn_at(l, conn));
}

void local_send_opened(
    struct local *l, uint32_t conn, struct span frame, int fd, bool write)
{
    if (append(l, conn, frame, fd, write ? O_RDWR : O_RDONLY))
        make_dirty(conn_at(l, conn));
}

void local_coalesce(struct local *l, uint32_t conn, struct span frame)
{
    struct local_conn *c = conn_at(l, conn);

    if (append(l, conn, frame, -1, -1) && !list_linked(&c->dirty))
        list_push_tail(&l->coalesced, &c->dirty);
}

struct writer local_writer(struct local *l, uint32_t conn)
{
    struct local_conn *c = conn_at(l, conn);
    uint32_t room = 0;

    if (c->over || c->blocked || local_gone(l, conn))
        return writer_of(NULL, 0);
    out_compact(c);
    if (OUT_MAX - c->out_len > 2 * LOCAL_ANSWER_ROOM)
        room = OUT_MAX - c->out_len - 2 * LOCAL_ANSWER_ROOM;
    return writer_of(c->out + c->out_len, room);
}

bool local_wrote(struct local *l, uint32_t conn, size_t bytes)
{
    struct local_conn *c = conn_at(l, conn);

    CHECK(bytes <= OUT_MAX - c->out_len, "%zu bytes behind %u", bytes,
        c->out_len);
    c->out_len += (uint32_t)bytes;
    if (bytes > 0)
        make_dirty(c);
    return c->out_head < c->out_len;
}

void local_hold(struct local *l, uint32_t conn, bool held)
{
    struct local_conn *c = conn_at(l, conn);

    c->held = held;
    if (!held && c->fd >= 0)
        conn_ready(c);
}

void local_end(struct local *l, uint32_t conn)
{
    struct local_conn *c = conn_at(l, conn);

    if (c->fd >= 0) {
        c->over = true;
        make_dirty(c);
    } else if (c->pidfd >= 0) {
        c->dead = true;
        conn_ready(c);
    }
}

/* in */

static void go_on_later(struct local_conn *c)
{
    c->more = true;
    conn_ready(c);
}

/* True if another message may be passed on. Sends queued frames if only space
 * for the answer is missing. */
static bool may_take(struct local_conn *c)
{
    if (c->held)
        return false;
    if (c->frames == 0 || c->owner->calls.full(c->owner->calls.ud)) {
        go_on_later(c);
        return false;
    }
    if (c->deaf)
        return true;
    if (c->blocked)
        return false;
    if (OUT_MAX - (c->out_len - c->out_head) >= 2 * LOCAL_ANSWER_ROOM &&
        c->marks_count + 2 < MARKS_MAX)
        return true;
    return conn_push(c) || c->deaf;
}

/* True if the next frame is complete in the packet. */
static bool frame_whole(const struct reader *r)
{
    size_t left = r->len - r->at;
    uint32_t len;

    if (left < LOCAL_HEADER)
        return false;
    memcpy(&len, r->p + r->at + 4, sizeof(len));
    return le32toh(len) <= left - LOCAL_HEADER;
}

/* Returns the seq of a frame that is cut, for the answer, as far as it can be
 * read. */
static uint32_t seq_of(struct reader r)
{
    (void)get_u64(&r);
    return get_u32(&r);
}

static void bad_packet(struct local_conn *c, uint32_t seq)
{
    struct event ev = {.type = EV_LOCAL_BAD,
        .conn = c->index,
        .err = ERR_MALFORMED,
        .seq = seq};

    c->owner->calls.event(c->owner->calls.ud, &ev);
    c->over = true;
    make_dirty(c);
}

/* Passes the frames on. False: the rest must wait. */
static bool take_frames(struct local_conn *c, struct reader *r)
{
    struct local_calls *calls = &c->owner->calls;

    while (r->at < r->len && !c->eof && !c->over) {
        struct local_msg m;
        struct event ev = {.conn = c->index, .local = &m};

        if (!may_take(c))
            return false;
        c->frames--;
        if (!frame_whole(r)) {
            bad_packet(c, seq_of(*r));
            return true;
        }
        ev.err = local_get(r, &m);
        ev.type = ev.err == OK ? EV_LOCAL : EV_LOCAL_BAD;
        ev.seq = m.seq;
        ev.fault = m.fault;
        calls->event(calls->ud, &ev);
    }
    return true;
}

/* Keeps the rest of a packet until it can be taken. */
static void park(struct local_conn *c, const struct reader *r)
{
    CHECK(c->parked_len == 0, "connection %u has a parked packet", c->index);
    c->parked_at = 0;
    c->parked_len = (uint32_t)(r->len - r->at);
    memcpy(c->parked, r->p + r->at, c->parked_len);
}

static bool take_parked(struct local_conn *c)
{
    struct reader r =
        reader_of(c->parked + c->parked_at, c->parked_len - c->parked_at);
    bool all;

    if (r.len == 0)
        return true;
    all = take_frames(c, &r);
    c->parked_at += (uint32_t)r.at;
    if (all)
        c->parked_at = c->parked_len = 0;
    return all;
}

/* Receives one packet. Returns false if there is nothing to read for now. */
static bool receive(struct local_conn *c)
{
    struct iovec packet = {c->owner->packet, LOCAL_PACKET_MAX};
    struct reader r;
    bool cut;
    int fd;
    ssize_t n = fds_receive(c->fd, packet, MSG_DONTWAIT, &fd, 1, &cut);

    if (n < 0) {
        /* A reset means that the engine left answers unread. What it sent
         * before can still be read. */
        if (errno == EINTR || errno == ECONNRESET)
            return true;
        c->eof = errno != EAGAIN && errno != EWOULDBLOCK;
        return false;
    }
    if (fd >= 0)
        close(fd);
    if (n == 0) {
        c->eof = true;
        return false;
    }
    r = reader_of(packet.iov_base, (size_t)n);
    if (fd >= 0 || cut) {
        bad_packet(c, seq_of(r));
    } else if (!take_frames(c, &r)) {
        park(c, &r);
    }
    return true;
}

static void conn_input(struct local_conn *c)
{
    c->more = false;
    c->frames = FRAMES_TURN;
    if (!take_parked(c))
        return;
    while (!c->eof && !c->held && !c->over && c->parked_len == 0) {
        if (c->blocked && !c->deaf)
            return;
        if (c->frames == 0) {
            go_on_later(c);
            return;
        }
        if (!receive(c))
            return;
    }
}

/* cells */

enum err local_cells(struct local *l, uint32_t conn, uint32_t cells, int *fd)
{
    struct local_conn *c = conn_at(l, conn);
    /* An engine that requests no cells still gets one to map. */
    size_t bytes = (cells ? cells : 1) * sizeof(uint64_t);
    void *p = MAP_FAILED;
    int f;

    CHECK(c->cells_fd < 0, "connection %u has its cells", conn);
    f = memfd_create("mmx-cells", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (f >= 0 && ftruncate(f, (off_t)bytes) == 0)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    /* Our own map stays writable; the seal forbids others. */
    if (p == MAP_FAILED ||
        fcntl(f, F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)) {
        log_rated(
            &endings, "connection %u: status cells: %s", conn, strerror(errno));
        if (p != MAP_FAILED)
            munmap(p, bytes);
        if (f >= 0)
            close(f);
        return ERR_INTERNAL;
    }
    c->cells = p;
    c->cells_count = cells ? cells : 1;
    c->cells_fd = f;
    *fd = f;
    return OK;
}

void local_cell(struct local *l, uint32_t conn, uint32_t index, uint64_t word)
{
    struct local_conn *c = conn_at(l, conn);

    if (!c->cells)
        return;
    CHECK(index < c->cells_count, "cell %u of %u", index, c->cells_count);
    /* Engines acquire it: mmx_poll(), or as mmx.h says of mmx_cell(). */
    atomic_store_explicit(&c->cells[index], word, memory_order_release);
}

/* ends */

void conn_refuse(int fd, enum err err, const char *text)
{
    uint8_t frame[1024];
    struct writer w = writer_of(frame, sizeof(frame));
    struct local_msg m = {.type = LOCAL_ANSWER};
    ssize_t n;

    m.answer.err = (uint8_t)err;
    m.answer.text = span_str(text);
    if (local_put(&w, &m)) {
        n = send(fd, w.p, w.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)n; /* sent once; lost if the socket is full */
    }
}

/* Reads the remaining input before the close. Otherwise the kernel would drop
 * our output and report a reset to the engine. */
void conn_close(int fd)
{
    uint8_t byte;

    shutdown(fd, SHUT_RD); /* no more input */
    while (recv(fd, &byte, 1, MSG_DONTWAIT | MSG_TRUNC) > 0)
        ;
    close(fd);
}

static void drop_socket(struct local_conn *c)
{
    CHECK(c->fd >= 0 && c->owner->stats.open > 0, "connection %u ends twice",
        c->index);
    close_poll(c, &c->sock_poll);
    conn_close(c->fd);
    c->fd = -1;
    c->owner->stats.open--;
    list_remove(&c->dirty);
    list_remove(&c->silent);
    list_remove(&c->resting);
    out_clear(c);
    c->parked_at = c->parked_len = 0;
    if (c->cells) {
        munmap((void *)c->cells, c->cells_count * sizeof(uint64_t));
        close(c->cells_fd);
        c->cells = NULL;
        c->cells_fd = -1;
    }
    madvise(c->out, 2 * (size_t)LOCAL_PACKET_MAX, MADV_DONTNEED);
}

static void drop_pid(struct local_conn *c)
{
    close_poll(c, &c->pid_poll);
    close(c->pidfd);
    c->pidfd = -1;
    conn_leave(c);
}

void conn_drop(struct local_conn *c)
{
    list_remove(&c->ready);
    if (c->fd >= 0)
        drop_socket(c);
    if (c->pidfd >= 0)
        drop_pid(c);
}

static void pid_over(struct local_conn *c)
{
    struct event ev = {.type = EV_CONN_DEAD, .conn = c->index};

    if (c->fd >= 0 || !c->dead || c->pidfd < 0)
        return;
    drop_pid(c);
    c->owner->calls.event(c->owner->calls.ud, &ev);
}

void conn_end(struct local_conn *c)
{
    struct event ev = {.type = EV_CONN_END, .conn = c->index};

    drop_socket(c);
    c->owner->calls.event(c->owner->calls.ud, &ev);
    pid_over(c); /* if its process has already exited */
}

void conn_serve(struct local_conn *c)
{
    struct local_calls *calls = &c->owner->calls;

    if (c->fd >= 0) {
        bool was_blocked = c->blocked;

        if (c->dead)
            c->deaf = true;
        /* The engine waits for no answer any more. */
        if (c->deaf)
            c->held = false;
        if (c->blocked)
            (void)conn_push(c);
        if (was_blocked && !c->blocked)
            calls->writable(calls->ud, c->index);
        if (!c->blocked)
            conn_input(c);
        /* Input from before the end is handled first, in turns. */
        if (c->more && !c->eof)
            return;
        if (c->broken || c->dead || (c->over && conn_push(c)))
            c->eof = true;
        if (c->eof)
            conn_end(c);
    }
    pid_over(c);
}
