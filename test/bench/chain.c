/* chain.c - measures what small rooms are compared with: the messages of one
 * room's life and nothing else. There are four processes, as with mmx: the two
 * engines, and two in the place of the daemons. They use SEQPACKET between
 * engine and daemon, and between the daemons ZMQ over TCP and a plain
 * connection for rows. A message is a record of its type; no table is looked
 * up, and only the count is checked. Each process takes the messages that are
 * there, then sends its own in as few calls as it can.
 *
 *   engine     daemon      daemon     engine
 *   ANNOUNCE ->             <- REQUEST
 *              <- INIT
 *   <- GRANTED
 *   COMMIT   -> LENGTH, rows ->
 *              <- ACK        READY ->
 *   <- DONE                 <- RELEASE
 *   RELEASE  ->
 *
 * The daemons are children of the engines' processes, on the same cores. */
#include "test/bench/bench.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <zmq.h>

enum step {
    ANNOUNCE,
    REQUEST,
    INIT,
    GRANTED,
    COMMIT,
    LENGTH,
    READY,
    ACK,
    DONE,
    RELEASE
};

struct record {
    uint32_t step, room;
    uint8_t rest[56]; /* the rest of about a frame */
};

#define PACKET    64 /* records in a packet */
#define ROW_FRAME (sizeof(struct record) + SMALL_BYTES)

/* Records that wait to go one way. */
struct outbox {
    struct record r[8 * IN_FLIGHT];
    uint32_t count;
};

static void check(bool good, const char *what)
{
    if (!good)
        die("chain: %s: %s", what, strerror(errno));
}

static void put(struct outbox *o, enum step step, uint32_t room)
{
    check(o->count < 8 * IN_FLIGHT, "too many records");
    o->r[o->count++] = (struct record){.step = step, .room = room};
}

static void send_packets(int fd, struct outbox *o)
{
    for (uint32_t i = 0; i < o->count; i += PACKET) {
        uint32_t n = o->count - i < PACKET ? o->count - i : PACKET;

        check(send(fd, &o->r[i], n * sizeof *o->r, MSG_NOSIGNAL) > 0, "send");
    }
    o->count = 0;
}

/* Returns the number of records; 0: none has come, -1: the other end has
 * closed. */
static int receive(int fd, struct record *r, int flags)
{
    ssize_t n = recv(fd, r, PACKET * sizeof *r, flags);

    if (n < 0 && errno == EAGAIN)
        return 0;
    return n > 0 ? (int)((size_t)n / sizeof *r) : -1;
}

/* a daemon */

struct daemon {
    int engine, tcp;
    void *zmq;
    uint8_t *rows; /* of the encode side */
    struct outbox to_engine, to_peer, to_rows;
    uint8_t in[IN_FLIGHT * ROW_FRAME];
    size_t have;
};

static void step_of(struct daemon *d, const struct record *r)
{
    switch ((enum step)r->step) {
    case REQUEST:
        put(&d->to_peer, INIT, r->room);
        return;
    case INIT:
        put(&d->to_engine, GRANTED, r->room);
        return;
    case COMMIT:
        put(&d->to_peer, LENGTH, r->room);
        put(&d->to_rows, COMMIT, r->room);
        return;
    case ACK:
        put(&d->to_engine, DONE, r->room);
        return;
    default:
        return;
    }
}

static void take_rows(struct daemon *d)
{
    ssize_t n =
        recv(d->tcp, d->in + d->have, sizeof d->in - d->have, MSG_DONTWAIT);
    size_t at = 0;

    check(n > 0 || (n < 0 && errno == EAGAIN), "rows");
    d->have += n > 0 ? (size_t)n : 0;
    for (; d->have - at >= ROW_FRAME; at += ROW_FRAME) {
        struct record r;

        memcpy(&r, d->in + at, sizeof r);
        put(&d->to_engine, READY, r.room);
        put(&d->to_peer, ACK, r.room);
    }
    d->have -= at;
    memmove(d->in, d->in + at, d->have);
}

static void send_rows(struct daemon *d)
{
    struct iovec iov[2 * PACKET] = {{0}};
    uint32_t n = 0;
    size_t left;

    for (uint32_t i = 0; i < d->to_rows.count; i += n / 2) {
        struct iovec *at = iov;

        for (n = 0; n < 2 * PACKET && i + n / 2 < d->to_rows.count; n += 2) {
            struct record *r = &d->to_rows.r[i + n / 2];

            iov[n] = (struct iovec){r, sizeof *r};
            iov[n + 1] = (struct iovec){
                d->rows + (size_t)(r->room % IN_FLIGHT) * SMALL_BYTES,
                SMALL_BYTES};
        }
        for (left = n / 2 * ROW_FRAME; left > 0;) {
            ssize_t took = writev(d->tcp, at, (int)(iov + n - at));

            check(took > 0, "rows");
            left -= (size_t)took;
            for (; left > 0 && (size_t)took >= at->iov_len; at++)
                took -= (ssize_t)at->iov_len;
            if (left > 0) {
                at->iov_base = (uint8_t *)at->iov_base + took;
                at->iov_len -= (size_t)took;
            }
        }
    }
    d->to_rows.count = 0;
}

/* Does one turn of a daemon. Returns false when its engine has closed. */
static bool turn(struct daemon *d)
{
    zmq_pollitem_t items[] = {{.socket = d->zmq, .events = ZMQ_POLLIN},
        {.fd = d->engine, .events = ZMQ_POLLIN},
        {.fd = d->tcp, .events = ZMQ_POLLIN}};
    struct record r[8 * IN_FLIGHT];
    int n;

    check(zmq_poll(items, d->rows ? 2 : 3, ROOM_MS) > 0, "nothing comes");
    while ((n = receive(d->engine, r, MSG_DONTWAIT)) > 0)
        for (int i = 0; i < n; i++)
            step_of(d, &r[i]);
    if (n < 0)
        return false;
    while ((n = zmq_recv(d->zmq, r, sizeof r, ZMQ_DONTWAIT)) > 0)
        for (int i = 0; i < n / (int)sizeof *r; i++)
            step_of(d, &r[i]);
    if (!d->rows)
        take_rows(d);
    send_packets(d->engine, &d->to_engine);
    if (d->to_peer.count)
        check(zmq_send(d->zmq, d->to_peer.r,
                  d->to_peer.count * sizeof *d->to_peer.r, 0) > 0,
            "zmq_send");
    d->to_peer.count = 0;
    send_rows(d);
    return true;
}

/* Runs as a daemon until its engine has closed. */
static NORETURN void serve(struct side *x, int engine)
{
    static struct daemon d;
    void *ctx = zmq_ctx_new();
    int zero = 0;
    size_t n = sizeof x->s->chain_at;

    d.engine = engine;
    d.tcp = x->tcp;
    d.zmq = zmq_socket(ctx, ZMQ_PAIR);
    check(d.zmq != NULL, "zmq_socket");
    zmq_setsockopt(d.zmq, ZMQ_LINGER, &zero, sizeof zero);
    if (x->which == ENC) {
        d.rows =
            /* fork does not inherit a pool's map */
            faulted((size_t)IN_FLIGHT * SMALL_BYTES);
        check(zmq_bind(d.zmq, "tcp://127.0.0.1:*") == 0, "zmq_bind");
        zmq_getsockopt(d.zmq, ZMQ_LAST_ENDPOINT, x->s->chain_at, &n);
        check(write(engine, "up", 2) == 2, "up"); /* engines may connect now */
    } else {
        check(zmq_connect(d.zmq, x->s->chain_at) == 0, "zmq_connect");
    }
    while (turn(&d))
        ;
    zmq_close(d.zmq);
    zmq_ctx_term(ctx);
    _exit(0);
}

/* the engines */

static void encode(int fd, uint8_t *rows, uint32_t rooms)
{
    uint32_t announced = 0, done = 0;
    struct outbox out = {.count = 0};
    struct record r[PACKET];

    while (done < rooms) {
        int n;

        for (; announced < rooms && announced < done + IN_FLIGHT; announced++)
            put(&out, ANNOUNCE, announced);
        send_packets(fd, &out);
        n = receive(fd, r, 0);
        check(n > 0, "the daemon is gone");
        do {
            for (int i = 0; i < n; i++) {
                memcpy(rows + (size_t)(r[i].room % IN_FLIGHT) * SMALL_BYTES,
                    &r[i].room, sizeof r[i].room);
                done += r[i].step == DONE;
                put(&out, r[i].step == DONE ? RELEASE : COMMIT, r[i].room);
                if (r[i].step != DONE)
                    send_packets(fd, &out);
            }
        } while (out.count < 4 * IN_FLIGHT &&
                 (n = receive(fd, r, MSG_DONTWAIT)) > 0);
    }
    send_packets(fd, &out);
}

static void language(int fd, uint32_t rooms)
{
    uint32_t requested = 0, ready = 0;
    struct outbox out = {.count = 0};
    struct record r[PACKET];

    while (ready < rooms) {
        int n;

        for (; requested < rooms && requested < ready + IN_FLIGHT; requested++)
            put(&out, REQUEST, requested);
        send_packets(fd, &out);
        n = receive(fd, r, 0);
        check(n > 0, "the daemon is gone");
        for (int i = 0; i < n; i++) {
            put(&out, RELEASE, r[i].room);
            ready++;
        }
    }
    send_packets(fd, &out);
}

void chain(struct side *x, unsigned rooms)
{
    char up[2];
    int s[2], status;
    uint64_t t;
    pid_t pid;

    check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0,
        "socketpair");
    if (x->which == LANG)
        meet(x); /* the other daemon listens */
    pid = fork();
    check(pid >= 0, "fork");
    if (pid == 0) {
        close(s[0]);
        serve(x, s[1]);
    }
    close(s[1]);
    if (x->which == ENC) {
        check(read(s[0], up, 2) == 2, "the daemon is gone");
        meet(x);
    }
    meet(x);
    t = now_ns();
    if (x->which == ENC) {
        encode(s[0], x->e->pools[POOL_ROWS].base, rooms);
    } else {
        language(s[0], rooms);
        note(x, S_CHAIN, (now_ns() - t) / rooms);
    }
    meet(x);
    close(s[0]);
    check(waitpid(pid, &status, 0) == pid && status == 0, "a daemon failed");
    meet(x);
}
