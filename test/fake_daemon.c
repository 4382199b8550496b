/* fake_daemon.c - see fake_daemon.h: takes and sends frames, and does nothing
 * with them. */
#include "test/fake_daemon.h"

#include <poll.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

int fake_memory(size_t bytes, void *map_out)
{
    int fd = memfd_create("mmx-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *p;

    T_EQ_I64(posix_fallocate(fd, 0, (off_t)bytes), 0);
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    T_TRUE(p != MAP_FAILED);
    T_EQ_I64(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    memcpy(map_out, &p, sizeof p);
    return fd;
}

void fake_listen(struct fake *f, uint8_t role)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    *f = (struct fake){.conn = -1, .epoch = EPOCH, .role = role};
    snprintf(f->path, sizeof f->path, "%s/%s.sock", t_dir(), role_name(role));
    memcpy(sa.sun_path, f->path, strlen(f->path));
    unlink(f->path);
    f->listen = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    T_EQ_I64(bind(f->listen, (struct sockaddr *)&sa, sizeof sa), 0);
    T_EQ_I64(listen(f->listen, 8), 0);
    f->cells_fd = fake_memory(CELLS * 8, &f->cells);
    f->pool_fd = fake_memory(POOL_BYTES, &f->pool);
}

struct local_msg fake_get(struct fake *f)
{
    struct local_msg m;

    if (f->r.at == f->r.len) {
        ssize_t n = recv(f->conn, f->in, sizeof f->in, 0);

        T_CHECK(n > 0, "the fake daemon received %zd: %s", n, strerror(errno));
        f->r = reader_of(f->in, (size_t)n);
        f->packets++;
    }
    T_OK(local_get(&f->r, &m));
    return m;
}

/* Returns the next frame, which must be of this type. */
struct local_msg fake_want(struct fake *f, enum local_type type)
{
    struct local_msg m = fake_get(f);

    T_EQ_STR(local_name(m.type), local_name(type));
    return m;
}

bool fake_idle(struct fake *f)
{
    struct pollfd p = {.fd = f->conn, .events = POLLIN};

    return f->r.at == f->r.len && poll(&p, 1, 0) == 0;
}

void fake_put(struct fake *f, const struct local_msg *m, int fd)
{
    static __thread uint8_t bytes[LOCAL_PACKET_MAX];
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } c = {{0}};
    struct writer w = writer_of(bytes, sizeof bytes);
    struct iovec iov = {bytes, 0};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};

    T_TRUE(local_put(&w, m));
    iov.iov_len = w.len;
    if (fd >= 0) {
        h.msg_control = &c;
        h.msg_controllen = sizeof c;
        *CMSG_FIRSTHDR(&h) =
            (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&h)), &fd, sizeof fd);
    }
    T_EQ_I64(sendmsg(f->conn, &h, MSG_NOSIGNAL), w.len);
}

void fake_answer(struct fake *f, uint32_t seq, enum err e, const char *text)
{
    struct local_msg m = {.type = LOCAL_ANSWER,
        .seq = seq,
        .answer = {.err = (uint8_t)e, .a = 9, .b = 4, .text = span_str(text)}};

    fake_put(f, &m, -1);
}

void fake_event(struct fake *f, const struct local_event *e)
{
    struct local_msg m = {.type = LOCAL_EVENT, .event = *e};

    fake_put(f, &m, -1);
}

void fake_welcome(struct fake *f, int fd)
{
    struct local_msg hello, m = {.type = LOCAL_WELCOME};

    f->conn = accept4(f->listen, NULL, NULL, SOCK_CLOEXEC);
    T_TRUE(f->conn >= 0);
    f->r = reader_of(f->in, 0);
    hello = fake_want(f, LOCAL_HELLO);
    f->hello_seq = hello.seq;
    T_EQ_U64(hello.hello.magic, LOCAL_MAGIC);
    m.seq = hello.seq;
    m.welcome = (struct local_welcome){.version = WIRE_VERSION,
        .role = f->role,
        .epoch = f->epoch,
        .cells = min_u32(CELLS, hello.hello.cells),
        .rooms_max = 1000,
        .aux_max = AUX_MAX,
        .name = span_str("fake"),
        .advertise = span_str("tcp://127.0.0.1:1"),
        .software = span_str("0")};
    fake_put(f, &m, fd);
}

/* Answers the POOL with this seq, which may still come. */
void fake_pool(struct fake *f, uint32_t seq, const char *name, int fd)
{
    uint8_t blob[24];
    struct writer w = writer_of(blob, sizeof blob);
    struct local_msg m = {.type = LOCAL_POOL_INFO, .seq = seq};

    put_u64(&w, 0);
    put_u32(&w, ROW);
    put_u64(&w, BLOCKS * BLOCK_ROWS * ROW);
    put_u32(&w, 4);
    m.pool_info = (struct local_pool_info){.pool = f->number ? f->number : 3,
        .access = f->role == ROLE_ENCODED,
        .block_rows = BLOCK_ROWS,
        .blocks = BLOCKS,
        .bytes = POOL_BYTES,
        .name = span_str(name),
        .memory = span_str("host"),
        .layout = span_str(f->layout ? f->layout : LAYOUT),
        .fields = span_of(blob, w.len)};
    if (f->gpu) {
        m.pool_info.memory = span_str("cuda:0");
        m.pool_info.bytes = f->gpu->bytes;
        m.pool_info.share = span_str(f->gpu->share);
        m.pool_info.handle = span_of(f->gpu->handle, f->gpu->handle_bytes);
    }
    fake_put(f, &m, fd);
}

/* a handle on it */

struct mmx_opt fake_opt(const struct fake *f, int timeout_ms)
{
    return (struct mmx_opt){.size = sizeof(struct mmx_opt),
        .role = f->role,
        .socket = f->path,
        .engine = "test",
        .session = "s",
        .cells = CELLS,
        .timeout_ms = timeout_ms};
}

struct mmx_event rig_one_event(mmx *m)
{
    struct mmx_event ev[2];
    int n = mmx_wait(m, ev, 1, T_WAIT_MS);

    T_EQ_I64(n, 1);
    return ev[0];
}

void rig_no_event(mmx *m)
{
    struct mmx_event ev;

    T_EQ_I64(mmx_step(m, &ev, 1), 0);
}

void rig_pool(struct rig *g)
{
    g->pool = (struct mmx_pool){.size = sizeof g->pool};
    fake_pool(&g->f, ++g->seq, "p", g->f.pool_fd);
    T_EQ_I64(mmx_pool(g->m, "p", LAYOUT, T_WAIT_MS, &g->pool), 0);
    T_EQ_U64(fake_want(&g->f, LOCAL_POOL).seq, g->seq);
}

void rig_open(struct rig *g, uint8_t role)
{
    struct mmx_opt o;
    struct mmx_event ev;

    *g = (struct rig){.seq = 1};
    fake_listen(&g->f, role);
    o = fake_opt(&g->f, 0);
    T_EQ_I64(mmx_open(&o, &g->m), 0);
    fake_welcome(&g->f, g->f.cells_fd);
    ev = rig_one_event(g->m);
    T_EQ_U64(ev.what, MMX_UP);
    T_EQ_U64(ev.epoch, EPOCH);
    rig_pool(g);
    g->f.packets = 0;
}

void rig_close(struct rig *g)
{
    /* The fake closes first: BYE has a test of its own. */
    close(g->f.conn);
    mmx_close(&g->m);
    T_TRUE(g->m == NULL);
}

mmx_room rig_announce(struct rig *g, uint64_t id, uint32_t rows)
{
    struct mmx_announce a = {.size = sizeof a,
        .id = id,
        .pool = g->pool.id,
        .rows = rows,
        .user = g};
    struct local_msg m;
    mmx_room r = {0, 0};

    T_EQ_I64(mmx_announce(g->m, &a, &r), 0);
    m = fake_want(&g->f, LOCAL_ANNOUNCE);
    T_EQ_U64(m.seq, ++g->seq);
    T_EQ_U64(m.announce.room, id);
    T_EQ_U64(m.announce.cell, r.cell);
    T_EQ_U64(m.announce.tag, r.tag);
    T_EQ_U64(m.announce.pool, 3);
    T_EQ_U64(m.announce.max_rows, rows);
    T_EQ_U64(m.announce.total, rows);
    return r;
}

mmx_room rig_request(struct rig *g, uint64_t id, int mode)
{
    struct mmx_request q = {.size = sizeof q,
        .id = id,
        .pool = g->pool.id,
        .mode = mode,
        .encoder = "enc"};
    mmx_room r = {0, 0};

    T_EQ_I64(mmx_request(g->m, &q, &r), 0);
    T_EQ_U64(fake_want(&g->f, LOCAL_REQUEST).seq, ++g->seq);
    return r;
}

void rig_event(struct rig *g, mmx_room r, struct local_event e,
    const uint32_t *runs, uint32_t count)
{
    uint8_t blob[64];
    struct writer w = writer_of(blob, sizeof blob);

    for (uint32_t i = 0; i < 2 * count; i++)
        put_u32(&w, runs[i]);
    e.cell = r.cell;
    e.tag = r.tag;
    e.pool = e.pool ? e.pool : 3; /* fake_pool's number */
    e.runs = span_of(blob, w.len);
    fake_event(&g->f, &e);
}

void rig_word(struct rig *g, mmx_room r, unsigned state, uint32_t rows)
{
    __atomic_store_n(&g->f.cells[r.cell], cell_word(state, 0, r.tag, rows),
        __ATOMIC_RELEASE);
}
