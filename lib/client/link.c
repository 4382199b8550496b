/* link.c - the connection of a handle: packets out, packets in, answers.
 *
 * Invariants. Frames leave in the order of the calls. While the socket is full
 * they wait in a fixed number of packets, and frames of later calls join the
 * last packet; beyond that calls are refused as busy. Every message has an
 * entry in `asked`, indexed by its seq, until its one answer has arrived, so an
 * answer finds its room without a search. All that the daemon sends is
 * validated: a broken daemon can end the connection, not this process. Under
 * the handle's lock throughout.
 *
 * Rejected: one buffer of bytes (SEQPACKET keeps packets, and the daemon
 * executes one packet at a time), and waiting for answers in the calls (an
 * engine's scheduler must not wait). */
#include "client/client.h"

#include "base/fds.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKOFF_MS_MAX  1000
#define RECEIVE_PACKETS 64

/* out */

static void poll_out(mmx *m, bool on)
{
    struct epoll_event e = {.events = EPOLLIN | (on ? EPOLLOUT : 0u)};

    assert(m->link != LINK_DOWN && m->sock >= 0);
    if (m->polls_out == on)
        return;
    m->polls_out = on;
    (void)epoll_ctl(m->ep, EPOLL_CTL_MOD, m->sock, &e);
}

void client_flush(mmx *m)
{
    while (m->link != LINK_DOWN && m->out_count) {
        struct client_packet *p = &m->out[m->out_head];

        assert(m->out_count <= PACKETS && m->out_head < PACKETS);
        assert(p->len >= LOCAL_HEADER && p->len <= sizeof p->bytes);
        if (send(m->sock, p->bytes, p->len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN || errno == ENOBUFS) {
                poll_out(m, true);
                return;
            }
            /* The daemon's last messages are still to be received; the
             * receive after them ends the connection. */
            m->out_count = 0;
            break;
        }
        p->len = 0;
        m->out_head = (m->out_head + 1) % PACKETS;
        m->out_count--;
    }
    if (m->link != LINK_DOWN)
        poll_out(m, false);
}

static bool put_into(struct client_packet *p, const struct local_msg *msg)
{
    struct writer w = writer_of(p->bytes, sizeof p->bytes);

    w.len = p->len;
    if (!local_put(&w, msg))
        return false;
    p->len = (uint32_t)w.len;
    return true;
}

static int put_frame(mmx *m, const struct local_msg *msg)
{
    uint32_t last = (m->out_head + m->out_count + PACKETS - 1) % PACKETS;
    struct client_packet *p;

    assert(m->out_count <= PACKETS && m->out_head < PACKETS);
    if (m->out_count && put_into(&m->out[last], msg))
        return 0;
    if (m->out_count == PACKETS)
        client_flush(m);
    if (m->link == LINK_DOWN)
        return -MMX_E_DAEMON_LOST;
    if (m->out_count == PACKETS)
        return -MMX_E_BUSY;
    p = &m->out[(m->out_head + m->out_count) % PACKETS];
    p->len = 0;
    if (!put_into(p, msg))
        return -MMX_E_MALFORMED;
    m->out_count++;
    return 0;
}

bool client_is_open_op(unsigned type)
{
    return type == LOCAL_ANNOUNCE || type == LOCAL_REQUEST ||
           type == LOCAL_ATTACH;
}

int client_put(mmx *m, struct local_msg *msg, uint64_t id, uint32_t cell,
    uint32_t tag, struct client_reply *reply)
{
    struct client_asked *q;
    int err;

    if (m->link == LINK_DOWN ||
        (m->link == LINK_HELLO && msg->type != LOCAL_HELLO))
        return -MMX_E_NOT_READY;
    if (m->seq - m->answered >= ASKED_MAX) {
        client_flush(m);
        client_receive(m);
        if (m->link != LINK_UP)
            return -MMX_E_DAEMON_LOST;
        if (m->seq - m->answered >= ASKED_MAX)
            return -MMX_E_BUSY;
    }
    msg->seq = m->seq + 1;
    err = put_frame(m, msg);
    if (err)
        return err;
    m->seq++;
    q = &m->asked[m->seq % ASKED_MAX];
    assert(q->type == 0 && m->seq - m->answered <= ASKED_MAX);
    *q = (struct client_asked){(uint8_t)msg->type, cell, tag, id, reply};
    return 0;
}

int client_ask(mmx *m, struct local_msg *msg, uint64_t id, uint32_t cell,
    uint32_t tag, struct client_reply *reply)
{
    int err = client_put(m, msg, id, cell, tag, reply);

    if (err)
        return err;
    if (m->corks && m->out_count < 2)
        return 0;
    client_flush(m);
    return m->link == LINK_DOWN ? -MMX_E_DAEMON_LOST : 0;
}

uint32_t client_doubt(mmx *m)
{
    struct local_msg msg = {
        .type = LOCAL_POOL, .pool = {.name = span_str("?")}};

    if (m->doubt && !client_is_answered(m, m->doubt))
        return m->doubt;
    (void)client_put(m, &msg, 0, NONE, 0, NULL);
    client_flush(m);
    return m->doubt = m->seq;
}

int client_late(mmx *m, struct client_patience *p, int64_t left)
{
    if (left == 0 && p->timeout_ms < SILENT_MS)
        return -MMX_E_TIMEOUT;
    if (left == 0)
        return client_expired(
            m, p->timeout_ms, p->doubt && !client_is_answered(m, p->doubt));
    if (!p->doubt && left > 0 && left <= SILENT_MS &&
        p->timeout_ms >= SILENT_MS)
        p->doubt = client_doubt(m);
    return 0;
}

/* Waits for the answer, without the lock during the wait. The end of the
 * connection is an answer, too (forget_asked). */
static int await(mmx *m, struct client_reply *r, uint32_t seq, int timeout_ms)
{
    struct client_patience p = {timeout_ms, client_end(timeout_ms), 0};
    int err;

    for (;;) {
        int64_t left = client_left(p.end);
        int sock = m->sock;

        client_flush(m);
        client_receive(m);
        if (r->over)
            return r->err;
        err = client_late(m, &p, left);
        if (err)
            break;
        client_unlock(m);
        client_poll(sock, left);
        pthread_mutex_lock(&m->lock);
    }
    m->asked[seq % ASKED_MAX].reply = NULL;
    return err;
}

int client_call(mmx *m, struct local_msg *msg, uint64_t id,
    struct client_reply *r, int timeout_ms)
{
    uint32_t corks = m->corks, serial = m->serial;
    int err;

    assert(r && !r->over);
    m->corks = 0;
    err = client_ask(m, msg, id, NONE, 0, r);
    m->corks = corks;
    if (!err)
        err = await(m, r, m->seq, timeout_ms);
    return err || serial == m->serial ? err : -MMX_E_STALE;
}

/* up and down */

static void retry_later(mmx *m)
{
    struct itimerspec t = {.it_value = {m->backoff_ms / 1000,
                               (long)(m->backoff_ms % 1000) * 1000000}};

    assert(m->link == LINK_DOWN && m->backoff_ms > 0);
    m->backoff_ms = min_u32(m->backoff_ms * 2, BACKOFF_MS_MAX);
    (void)timerfd_settime(m->timer, 0, &t, NULL);
}

static void forget_asked(mmx *m)
{
    while (m->answered != m->seq) {
        struct client_asked *q = &m->asked[++m->answered % ASKED_MAX];

        if (q->type)
            client_tell(m, (struct mmx_answer){.number = m->answered,
                               .reason = MMX_E_DAEMON_LOST});

        if (q->type == LOCAL_SPACE)
            client_space_answer(
                m, q->id, &(struct local_answer){.err = MMX_E_DAEMON_LOST});
        if (q->type && q->reply) {
            q->reply->over = true;
            q->reply->err = -MMX_E_DAEMON_LOST;
        }
        q->type = 0;
    }
}

void client_hang_up(mmx *m)
{
    if (m->link == LINK_DOWN)
        return;
    assert(m->sock >= 0);
    if (m->link == LINK_UP) {
        client_rooms_lost(m);
        client_tickets_lost(m);
        /* The last words of the rooms are in m->own, and the page becomes
         * zero. */
        (void)mmap(m->page, m->page_bytes, PROT_READ,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        m->say_down = m->up_reported;
        m->say_up = false;
        m->backoff_ms = 1;
    }
    m->link = LINK_DOWN;
    m->due = TIME_NEVER;
    forget_asked(m);
    m->out_count = 0;
    m->polls_out = false;
    client_hang(m, &m->sock);
    m->lend_due = true;
    if (!m->ended)
        retry_later(m);
}

void client_hang(mmx *m, int *sock)
{
    assert(*sock >= 0);
    /* A close alone would leave the socket in the set if a forked child has
     * it. */
    (void)epoll_ctl(m->ep, EPOLL_CTL_DEL, *sock, NULL);
    close(*sock);
    *sock = -1;
}

int client_dial(mmx *m, const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct epoll_event e = {.events = EPOLLIN};
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    memcpy(sa.sun_path, path, strnlen(path, sizeof sa.sun_path - 1));
    if (s < 0 || connect(s, (struct sockaddr *)&sa, sizeof sa) != 0 ||
        (m->ep >= 0 && epoll_ctl(m->ep, EPOLL_CTL_ADD, s, &e) != 0)) {
        int saved = errno;

        client_error(m, "%s: %m", path);
        if (s >= 0)
            close(s);
        errno = saved;
        return -1;
    }
    return s;
}

void client_connect(mmx *m)
{
    struct local_msg msg = {.type = LOCAL_HELLO};

    assert(m->link == LINK_DOWN && m->answered == m->seq);
    m->sock = client_dial(m, m->path);
    m->info.system = m->sock < 0 ? errno : 0;
    if (m->sock < 0) {
        retry_later(m);
        return;
    }
    m->link = LINK_HELLO;
    m->serial++;
    m->out_head = m->out_count = 0;
    msg.hello = (struct local_hello){.magic = LOCAL_MAGIC,
        .version_min = WIRE_VERSION,
        .version_max = WIRE_VERSION,
        .role = m->role,
        .cells = m->cells,
        .name = span_str(m->engine),
        .session = span_str(m->session),
        .abilities = m->no_lend ? 0 : ABLE_LEND};
    if (client_put(m, &msg, 0, NONE, 0, NULL) == 0)
        client_flush(m);
}

/* in */

static bool map_cells(mmx *m, int fd, uint32_t cells)
{
    size_t bytes = cells * sizeof(uint64_t);
    void *p;

    if (cells == 0 || cells > m->cells || !client_sealed(fd, bytes))
        return false;
    /* Replaces the old page at its address, so that mmx_cell's pointers and
     * readers without the lock always see a mapped page. */
    p = mmap(m->page, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
    return p != MAP_FAILED;
}

/* False: the connection has ended, since there are no cells. */
static bool welcome(mmx *m, const struct local_welcome *w, int fd)
{
    if (!map_cells(m, fd, w->cells)) {
        client_error(m, "%s: the daemon's WELCOME has no valid cells", m->path);
        client_hang_up(m);
        return false;
    }
    m->granted = w->cells;
    m->info = (struct mmx_info){.role = w->role,
        .protocol = w->version,
        .epoch = w->epoch,
        .cells = w->cells,
        .rooms_max = w->rooms_max,
        .aux_max = w->aux_max};
    span_copy_str(w->name, m->info.name, sizeof m->info.name);
    span_copy_str(w->advertise, m->info.advertise, sizeof m->info.advertise);
    span_copy_str(w->software, m->info.software, sizeof m->info.software);
    m->link = LINK_UP;
    m->hello_err = 0;
    m->backoff_ms = 1;
    m->say_up = true;
    return true;
}

bool client_is_answered(const mmx *m, uint32_t seq)
{
    return seq - m->answered - 1 >= m->seq - m->answered ||
           !m->asked[seq % ASKED_MAX].type;
}

/* Removes the message with this seq from `asked`; false: it was not pending, or
 * is of another type (0: any). */
static bool answered(
    mmx *m, uint32_t seq, enum local_type type, struct client_asked *out)
{
    struct client_asked *q = &m->asked[seq % ASKED_MAX];

    if (client_is_answered(m, seq) || (type && q->type != type))
        return false;
    *out = *q;
    q->type = 0;
    while (
        m->answered != m->seq && !m->asked[(m->answered + 1) % ASKED_MAX].type)
        m->answered++;
    return true;
}

static void tell_answer(
    mmx *m, uint32_t seq, const struct local_answer *a, int reason)
{
    client_tell(m, (struct mmx_answer){.number = seq,
                       .reason = reason,
                       .a = a->a,
                       .b = a->b,
                       .text = a->text.p ? (const char *)a->text.p : "",
                       .text_len = a->text.len});
}

static void answer(mmx *m, uint32_t seq, const struct local_answer *a)
{
    struct client_asked q = {0};
    char text[256];

    span_copy_str(a->text, text, sizeof text);
    if (seq == 0 && a->err)
        tell_answer(m, 0, a, a->err);
    if (seq == 0 && a->err && m->link == LINK_HELLO) {
        client_error(m, "%s: refused: %s%s%s", m->path,
            err_name((enum err)a->err), *text ? ": " : "", text);
        m->hello_err = a->err;
        client_hang_up(m);
        return;
    }
    /* The answer to client_doubt() may be an error: any answer will do. */
    if (a->err && seq != m->doubt)
        client_error(m, "%s: %s%s%s",
            local_name(m->asked[seq % ASKED_MAX].type),
            err_name((enum err)a->err), *text ? ": " : "", text);
    if (!answered(m, seq, 0, &q))
        return;
    tell_answer(m, seq, a,
        a->err                                          ? a->err
        : q.type == LOCAL_POOL || q.type == LOCAL_QUERY ? MMX_E_INTERNAL
                                                        : 0);
    if (q.type == LOCAL_SPACE)
        client_space_answer(m, q.id, a);
    if (q.type == LOCAL_HELLO) {
        m->hello_err = a->err;
        client_hang_up(m);
    } else if (q.reply) {
        q.reply->over = true;
        q.reply->err = a->err                 ? -(int)a->err
                       : q.type == LOCAL_POOL ? -MMX_E_INTERNAL
                                              : 0;
        q.reply->a = a->a;
        q.reply->b = a->b;
    } else if (q.type == LOCAL_TICKET) {
        client_ticket_answer(m, &q, a);
    } else if (a->err) {
        client_room_refused(m, &q, a);
    } else if (q.type == LOCAL_REQUEST) {
        struct client_room *r = client_room(m, (mmx_room){q.cell, q.tag});

        if (r)
            r->stream_rows = a->a;
    }
}

/* Reads the fields of a POOL_INFO; `data` holds offsets until the pool is
 * mapped. False if they are malformed. */
static bool fields_from(
    struct mmx_pool *p, const struct local_pool_info *i, struct layout *l)
{
    struct reader r = reader_of(i->fields.p, i->fields.len);
    uint64_t rows = (uint64_t)i->blocks * i->block_rows;
    uint32_t at;

    if (layout_parse(i->layout, l, &at) != OK || rows == 0)
        return false;
    for (uint32_t f = 0; f < l->count; f++) {
        uint64_t offset = get_u64(&r);
        uint32_t row_bytes = get_u32(&r);

        if (r.failed || row_bytes != l->fields[f].row_bytes || row_bytes == 0 ||
            offset > i->bytes || rows > (i->bytes - offset) / row_bytes)
            return false;
        memcpy(p->fields[f].name, l->fields[f].name, sizeof p->fields->name);
        memcpy(p->fields[f].dtype, l->fields[f].dtype, sizeof p->fields->dtype);
        p->fields[f].elements = l->fields[f].elements;
        p->fields[f].row_bytes = row_bytes;
        p->fields[f].data = (void *)(uintptr_t)offset;
    }
    assert(l->count <= MMX_FIELDS_MAX);
    p->fields_count = l->count;
    return true;
}

_Static_assert(sizeof((struct mmx_field *)0)->name == LAYOUT_NAME_MAX + 1 &&
                   sizeof((struct mmx_field *)0)->dtype ==
                       sizeof((struct field *)0)->dtype &&
                   MMX_FIELDS_MAX == LAYOUT_FIELDS_MAX,
    "mmx.h and layout.h differ");

void client_take_pool(struct client_reply *r, const struct local_pool_info *i)
{
    struct mmx_pool *p = &r->pool;
    struct layout l;

    *p = (struct mmx_pool){.size = sizeof *p,
        .writable = i->access == 1,
        .block_rows = i->block_rows,
        .blocks = i->blocks,
        .bytes = i->bytes,
        .gpu = -1};
    span_copy_str(i->name, p->name, sizeof p->name);
    span_copy_str(i->memory, p->memory, sizeof p->memory);
    span_copy_str(i->layout, p->layout, sizeof p->layout);
    span_copy_str(i->share, r->share, sizeof r->share);
    r->handle_len = min_u32(i->handle.len, sizeof r->handle);
    if (r->handle_len)
        memcpy(r->handle, i->handle.p, r->handle_len);
    r->number = i->pool;
    r->err = fields_from(p, i, &l) ? 0 : -MMX_E_MALFORMED;
}

static void pool_info(
    mmx *m, uint32_t seq, const struct local_pool_info *i, int fd)
{
    struct client_reply r = {.fd = fd};
    struct client_asked q;
    bool asked = answered(m, seq, LOCAL_POOL, &q);

    if (asked && q.reply) {
        q.reply->fd = fd;
        client_take_pool(q.reply, i);
        q.reply->over = true;
    } else if (asked && m->said) {
        client_take_pool(&r, i);
        client_pool_answer(m, seq, &r);
    } else if (fd >= 0)
        close(fd);
}

/* Hands the texts of a report to a binding. */
static void report(mmx *m, uint32_t seq, const struct local_report *r)
{
    struct client_asked q;

    if (r->more ? !client_is_answered(m, seq) &&
                      m->asked[seq % ASKED_MAX].type == LOCAL_QUERY
                : answered(m, seq, LOCAL_QUERY, &q))
        client_tell(m, (struct mmx_answer){.number = seq,
                           .reason = r->err,
                           .text = (const char *)r->text.p,
                           .text_len = r->text.len,
                           .more = r->more});
}

/* Notes a lender. If there is no place for it, it is not mapped, and its rows
 * are copied. */
static void lender(mmx *m, const struct local_lender *n)
{
    struct client_lender *l = m->lenders;

    while (l < m->lenders + LENDERS_MAX && l->number)
        l++;
    if (l == m->lenders + LENDERS_MAX || n->lender == 0 ||
        n->lender > UINT16_MAX / LENDER_POOLS)
        return;
    *l = (struct client_lender){.number = n->lender,
        .serial = m->serial,
        .sock = -1,
        .last = m->seq,
        .token = n->token,
        .epoch = n->epoch};
    span_copy_str(n->name, l->name, sizeof l->name);
    span_copy_str(n->socket, l->path, sizeof l->path);
    m->lend_due = true;
}

/* fd: the packet's descriptor; -1: none, or another frame has taken it. */
static void frame(mmx *m, const struct local_msg *msg, int *fd)
{
    struct client_asked q;

    switch (msg->type) {
    case LOCAL_EVENT:
        if (m->link == LINK_UP)
            client_room_event(m, &msg->event);
        break;
    case LOCAL_TICKET_EVENT:
        if (m->link == LINK_UP)
            client_ticket_event(m, &msg->ticket_event);
        break;
    case LOCAL_LENDER:
        if (m->link == LINK_UP)
            lender(m, &msg->lender);
        break;
    case LOCAL_ANSWER:
        answer(m, msg->seq, &msg->answer);
        break;
    case LOCAL_REPORT:
        report(m, msg->seq, &msg->report);
        break;
    case LOCAL_WELCOME:
        /* HELLO is asked until it is welcome: a binding hears of its end. */
        if (m->link == LINK_HELLO && !client_is_answered(m, msg->seq) &&
            welcome(m, &msg->welcome, *fd))
            (void)answered(m, msg->seq, LOCAL_HELLO, &q);
        break;
    case LOCAL_POOL_INFO:
        pool_info(m, msg->seq, &msg->pool_info, *fd);
        *fd = -1;
        break;
    default:
        break;
    }
}

static void packet(mmx *m, size_t len, int *fd)
{
    struct reader r = reader_of(m->in, len);
    struct local_msg msg;
    enum err e;

    /* Skips frames of a newer daemon (ERR_BUSY) and broken ones. */
    while (m->link != LINK_DOWN && (e = local_get(&r, &msg)) != ERR_NOT_READY)
        if (e == OK)
            frame(m, &msg, fd);
}

static bool receive_one(mmx *m)
{
    struct iovec in = {m->in, sizeof m->in};
    bool cut;
    int fd;
    ssize_t n = fds_receive(m->sock, in, MSG_DONTWAIT, &fd, 1, &cut);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    /* Reported once, before the packets that were already received. */
    if (n < 0 && errno == ECONNRESET)
        return true;
    if (n <= 0) {
        if (n == 0)
            errno = ECONNRESET; /* for %m */
        client_error(m, "%s: %m", m->path);
        client_hang_up(m);
        return false;
    }
    packet(m, (size_t)n, &fd);
    if (fd >= 0)
        close(fd);
    return true;
}

bool client_receive(mmx *m)
{
    for (unsigned i = 0; i < RECEIVE_PACKETS && m->link != LINK_DOWN &&
                         m->said_tail < SAID_BYTES / 2;
         i++)
        if (!receive_one(m))
            return true;
    return m->link == LINK_DOWN;
}
