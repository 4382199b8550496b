/* local_side.h - a server on a real socket whose loop the test turns by hand,
 * and clients of it: shared by local_test.c and local_life_test.c. */
#ifndef MMX_TEST_LOCAL_SIDE_H
#define MMX_TEST_LOCAL_SIDE_H

#include "io/local.h"
#include "test/t.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/un.h>

#define CONNS 8 /* of the test's user; two more for users with few */
#define SLOTS (CONNS + 2 + CONNECTIONS_CLOSING)
#define OTHER 4711

static uv_loop_t loop;
static struct local *server;
static char path[108];
static const char *orders; /* path of the socket for orders, or NULL */

/* What the server reported. */
static struct {
    uint32_t opened, ended, dead, messages, bad, writable;
    uint32_t last_conn, last_seq, uid;
    int32_t pid;
    struct groups groups;
    enum err err;
    char order[64]; /* one letter for each: open, message, bad, end, dead */
    bool silent;    /* messages get no answer */
    bool full;
    bool forgets; /* forgets ended connections at once */
} seen;

static inline void note(char c)
{
    size_t n = strlen(seen.order);

    if (n + 1 < sizeof(seen.order))
        seen.order[n] = c;
}

static inline void answer(uint32_t conn, uint32_t seq, enum err err)
{
    uint8_t frame[1024];
    struct writer w = writer_of(frame, sizeof(frame));
    struct local_msg m = {.type = LOCAL_ANSWER, .seq = seq};

    m.answer.err = (uint8_t)err;
    m.answer.text = span_str("an answer of about the usual size");
    T_TRUE(local_put(&w, &m));
    local_send(server, conn, span_of(w.p, w.len), -1);
}

static inline void on_event(void *ud, struct event *ev)
{
    switch (ev->type) {
    case EV_CONN_OPEN:
        seen.groups = *ev->groups;
        seen.opened++;
        seen.last_conn = ev->conn;
        seen.uid = ev->uid;
        seen.pid = ev->pid;
        note('o');
        break;
    case EV_CONN_END:
        seen.ended++;
        note('e');
        if (seen.forgets)
            local_end(server, ev->conn);
        break;
    case EV_CONN_DEAD:
        seen.dead++;
        note('d');
        break;
    case EV_LOCAL:
        seen.messages++;
        seen.last_seq = ev->local->seq;
        note('m');
        if (!seen.silent)
            answer(ev->conn, ev->local->seq, OK);
        break;
    case EV_LOCAL_BAD:
        seen.bad++;
        seen.err = ev->err;
        note('b');
        answer(ev->conn, ev->seq, ev->err);
        break;
    default:
        T_FAIL("event %u of a connection", ev->type);
    }
}

static inline void on_writable(void *ud, uint32_t conn)
{
    seen.writable++;
}

static inline bool on_full(void *ud)
{
    return seen.full;
}

static const struct local_calls calls = {NULL, on_event, on_writable, on_full};

static inline void pump(void)
{
    uv_run(&loop, UV_RUN_NOWAIT);
    local_serve(server);
    local_flush(server);
}

static struct share places;
static uint32_t own_places;

static inline struct share *make_places(void)
{
    static uint8_t memory[65536];
    struct slab slab = {memory, 0, sizeof(memory), false};

    share_init(&places, &slab, "limits.connections", CONNS, 1, 1);
    T_FALSE(slab.failed);
    return &places;
}

static inline struct local_opt options(void)
{
    return (struct local_opt){.path = path,
        .mode = 0600,
        .group = "",
        .fd = -1,
        .orders = orders,
        .connections = SLOTS + 2 * own_places,
        .share = make_places(),
        .own = own_places};
}

static inline void start(void)
{
    struct local_opt opt = options();

    snprintf(path, sizeof(path), "%.90s/s", t_dir());
    T_TRUE(uv_loop_init(&loop) == 0);
    T_OK(local_new(&server, &loop, &opt, &calls));
}

static inline void stop(void)
{
    local_stop(server);
    uv_run(&loop, UV_RUN_DEFAULT);
    T_EQ_I64(uv_loop_close(&loop), 0);
    local_free(&server);
    T_TRUE(access(path, F_OK) != 0);
}

static inline int client(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(a.sun_path, path, sizeof(path));
    T_CHECK(connect(s, (struct sockaddr *)&a, sizeof(a)) == 0, "connect: %s",
        strerror(errno));
    return s;
}

/* Pumps until *count reaches wanted. */
struct until {
    const uint32_t *count;
    uint32_t wanted;
};

static inline bool reached(void *ud)
{
    struct until *u = ud;

    pump();
    return *u->count >= u->wanted;
}

static inline void wait_for(const uint32_t *count, uint32_t wanted)
{
    struct until u = {count, wanted};

    T_CHECK(t_wait(reached, &u, T_WAIT_MS), "%u, not %u; order %s", *count,
        wanted, seen.order);
}

static inline bool was_refused(void *ud)
{
    struct until *u = ud;

    pump();
    return local_stats(server)->refused >= u->wanted;
}

/* Writes n BYE frames with seq from `first` on. */
static inline size_t frames(uint8_t *p, size_t cap, uint32_t first, uint32_t n)
{
    struct writer w = writer_of(p, cap);

    for (uint32_t i = 0; i < n; i++) {
        struct local_msg m = {.type = LOCAL_BYE, .seq = first + i};

        T_TRUE(local_put(&w, &m));
    }
    return w.len;
}

static inline void send_frames(int s, uint32_t first, uint32_t n)
{
    static uint8_t p[LOCAL_PACKET_MAX];
    size_t len = frames(p, sizeof(p), first, n);

    T_EQ_I64(send(s, p, len, 0), (ssize_t)len);
}

/* Reads what has come; counts answers and checks their order. */
static inline uint32_t read_answers(int s, uint32_t next)
{
    static uint8_t p[LOCAL_PACKET_MAX];
    ssize_t n;

    while ((n = recv(s, p, sizeof(p), MSG_DONTWAIT)) > 0) {
        struct reader r = reader_of(p, (size_t)n);
        struct local_msg m;
        enum err e;

        while ((e = local_get(&r, &m)) == OK) {
            T_EQ_U64(m.type, LOCAL_ANSWER);
            T_EQ_U64(m.seq, next);
            next++;
        }
        T_ERR(e, ERR_NOT_READY);
    }
    return next;
}

struct reading {
    int s;
    uint32_t next, wanted;
};

static inline bool all_read(void *ud)
{
    struct reading *r = ud;

    pump();
    r->next = read_answers(r->s, r->next);
    return r->next == r->wanted;
}

static inline unsigned open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

#endif
