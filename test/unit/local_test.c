/* local_test.c - the engines' socket from both of its ends: real sockets, real
 * processes, the loop turned by hand. */
#include "io/local.h"
#include "test/t.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONNS 8

static uv_loop_t loop;
static struct local *server;
static char path[108];

/* What the server was told. */
static struct {
    uint32_t opened, ended, dead, messages, bad, writable;
    uint32_t last_conn, last_seq, uid;
    int32_t pid;
    enum err err;
    char order[64]; /* o, m, b, e, d */
    bool silent;    /* messages get no answer */
    bool full;
} seen;

static void note(char c)
{
    size_t n = strlen(seen.order);

    if (n + 1 < sizeof(seen.order))
        seen.order[n] = c;
}

static void answer(uint32_t conn, uint32_t seq, enum err err)
{
    uint8_t frame[1024];
    struct writer w = writer_of(frame, sizeof(frame));
    struct local_msg m = {.type = LOCAL_ANSWER, .seq = seq};

    m.answer.err = (uint8_t)err;
    m.answer.text = span_str("an answer of about the usual size");
    T_TRUE(local_put(&w, &m));
    local_send(server, conn, span_of(w.p, w.len), -1);
}

static void on_opened(
    void *ud, uint32_t conn, uint32_t uid, uint32_t gid, int32_t pid)
{
    (void)ud;
    (void)gid;
    seen.opened++;
    seen.last_conn = conn;
    seen.uid = uid;
    seen.pid = pid;
    note('o');
}

static void on_ended(void *ud, uint32_t conn)
{
    (void)ud;
    (void)conn;
    seen.ended++;
    note('e');
}

static void on_dead(void *ud, uint32_t conn)
{
    (void)ud;
    (void)conn;
    seen.dead++;
    note('d');
}

static void on_message(void *ud, uint32_t conn, const struct local_msg *m)
{
    (void)ud;
    seen.messages++;
    seen.last_seq = m->seq;
    note('m');
    if (!seen.silent)
        answer(conn, m->seq, OK);
}

static void on_bad(void *ud, uint32_t conn, enum err err, uint32_t seq)
{
    (void)ud;
    seen.bad++;
    seen.err = err;
    note('b');
    answer(conn, seq, err);
}

static void on_writable(void *ud, uint32_t conn)
{
    (void)ud;
    (void)conn;
    seen.writable++;
}

static bool on_full(void *ud)
{
    (void)ud;
    return seen.full;
}

static const struct local_calls calls = {NULL, on_opened, on_ended, on_dead,
    on_message, on_bad, on_writable, on_full};

static void pump(void)
{
    uv_run(&loop, UV_RUN_NOWAIT);
    local_serve(server);
    local_flush(server);
}

static void start(void)
{
    struct local_opt opt = {path, 0600, "", -1, CONNS};

    snprintf(path, sizeof(path), "%.90s/s", t_dir());
    T_TRUE(uv_loop_init(&loop) == 0);
    T_OK(local_new(&server, &loop, &opt, &calls));
}

static void stop(void)
{
    local_stop(server);
    uv_run(&loop, UV_RUN_DEFAULT);
    T_EQ_I64(uv_loop_close(&loop), 0);
    local_free(&server);
    T_TRUE(access(path, F_OK) != 0);
}

static int client(void)
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

static bool reached(void *ud)
{
    struct until *u = ud;

    pump();
    return *u->count >= u->wanted;
}

static void wait_for(const uint32_t *count, uint32_t wanted)
{
    struct until u = {count, wanted};

    T_CHECK(t_wait(reached, &u, 5000), "%u, not %u; order %s", *count, wanted,
        seen.order);
}

/* n BYE frames with seq from first on. */
static size_t frames(uint8_t *p, size_t cap, uint32_t first, uint32_t n)
{
    struct writer w = writer_of(p, cap);

    for (uint32_t i = 0; i < n; i++) {
        struct local_msg m = {.type = LOCAL_BYE, .seq = first + i};

        T_TRUE(local_put(&w, &m));
    }
    return w.len;
}

static void send_frames(int s, uint32_t first, uint32_t n)
{
    static uint8_t p[LOCAL_PACKET_MAX];
    size_t len = frames(p, sizeof(p), first, n);

    T_EQ_I64(send(s, p, len, 0), (ssize_t)len);
}

/* Reads what is there; counts answers and holds their order. */
static uint32_t read_answers(int s, uint32_t next)
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

static bool all_read(void *ud)
{
    struct reading *r = ud;

    pump();
    r->next = read_answers(r->s, r->next);
    return r->next == r->wanted;
}

static unsigned open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

TEST(frames_of_one_packet_are_answered_in_order)
{
    struct reading r;
    int s;

    start();
    s = client();
    send_frames(s, 1, 100);
    r = (struct reading){s, 1, 101};
    T_WAIT(all_read, &r, 2000);
    T_EQ_U64(seen.opened, 1);
    T_EQ_U64(seen.messages, 100);
    T_EQ_U64(seen.uid, getuid());
    T_EQ_I64(seen.pid, getpid());
    close(s);
    wait_for(&seen.ended, 1);
    T_EQ_U64(seen.dead, 0);
    stop();
}

TEST(what_was_sent_before_the_end_is_read)
{
    int s;

    start();
    s = client();
    send_frames(s, 1, 3);
    close(s); /* answers stay unread: the server meets a reset */
    wait_for(&seen.ended, 1);
    T_EQ_STR(seen.order, "ommme");
    stop();
}

TEST(many_small_packets_before_the_end_are_read)
{
    int s;

    start();
    s = client();
    for (uint32_t i = 0; i < 150; i++)
        send_frames(s, i + 1, 1);
    close(s);
    wait_for(&seen.ended, 1);
    T_EQ_U64(seen.messages, 150);
    stop();
}

static void expect_malformed_end(int s, uint32_t seq)
{
    uint8_t p[1024];
    struct reader r;
    struct local_msg m;
    ssize_t n;

    wait_for(&seen.ended, 1);
    n = recv(s, p, sizeof(p), 0);
    T_TRUE(n > 0);
    r = reader_of(p, (size_t)n);
    T_OK(local_get(&r, &m));
    T_EQ_U64(m.type, LOCAL_ANSWER);
    T_EQ_U64(m.seq, seq);
    T_EQ_U64(m.answer.err, ERR_MALFORMED);
    T_EQ_I64(recv(s, p, sizeof(p), 0), 0);
    T_EQ_U64(seen.messages, 0);
    close(s);
}

TEST(a_cut_frame_ends_the_connection_after_an_answer)
{
    uint8_t p[64];
    size_t n;
    int s;

    start();
    s = client();
    n = frames(p, sizeof(p), 77, 1);
    p[4] = 1; /* one byte of body that is not there */
    T_EQ_I64(send(s, p, n, 0), (ssize_t)n);
    expect_malformed_end(s, 77);
    stop();
}

TEST(a_packet_that_is_no_frame_ends_the_connection)
{
    int s;

    start();
    s = client();
    T_EQ_I64(send(s, "hello", 5, 0), 5);
    expect_malformed_end(s, 0);
    stop();
}

TEST(an_unknown_type_is_refused_and_the_connection_stands)
{
    uint8_t p[64];
    struct writer w = writer_of(p, sizeof(p));
    struct reading r;
    int s;

    start();
    s = client();
    put_u16(&w, 999);
    put_u16(&w, 0);
    put_u32(&w, 0);
    put_u32(&w, 1);
    w.len += frames(p + w.len, sizeof(p) - w.len, 2, 1);
    T_EQ_I64(send(s, p, w.len, 0), (ssize_t)w.len);
    r = (struct reading){s, 1, 3};
    T_WAIT(all_read, &r, 2000);
    T_EQ_STR(seen.order, "obm");
    T_EQ_U64(seen.err, ERR_BUSY);
    T_EQ_U64(seen.ended, 0);
    close(s);
    stop();
}

static void send_with_fds(int s, int count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(200 * sizeof(int))];
    } control;
    uint8_t p[64];
    struct iovec iov = {p, frames(p, sizeof(p), 5, 1)};
    struct msghdr m = {.msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int))};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    int fd = 0;

    memset(&control, 0, sizeof(control));
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    for (int i = 0; i < count; i++)
        memcpy(CMSG_DATA(h) + (size_t)i * sizeof(int), &fd, sizeof(int));
    T_TRUE(sendmsg(s, &m, 0) > 0);
}

static void descriptors(int count)
{
    unsigned before;
    int s;

    start();
    before = open_fds();
    s = client();
    wait_for(&seen.opened, 1);
    send_with_fds(s, count);
    expect_malformed_end(s, 5);
    /* The process lives, and so does its pidfd. */
    T_EQ_U64(open_fds(), before + 1);
    stop();
}

TEST(descriptors_are_closed_and_malformed)
{
    descriptors(3);
}

TEST(more_descriptors_than_fit_are_closed_and_malformed)
{
    descriptors(200);
}

TEST(an_engine_that_does_not_read_is_not_read_and_not_ended)
{
    struct reading r;
    uint32_t sent = 0, other_next;
    int s, other;

    start();
    s = client();
    other = client();
    wait_for(&seen.opened, 2);
    /* Until the socket takes no more: the server has stopped reading. */
    for (unsigned idle = 0; idle < 50;) {
        uint8_t p[12000];
        size_t len = frames(p, sizeof(p), sent + 1, 1000);

        if (send(s, p, len, MSG_DONTWAIT) == (ssize_t)len) {
            sent += 1000;
            idle = 0;
        } else {
            idle++;
        }
        pump();
    }
    T_CHECK(seen.messages < sent, "%u of %u were taken", seen.messages, sent);
    T_EQ_U64(seen.ended, 0);
    /* Nobody else notices. */
    send_frames(other, 1, 1);
    r = (struct reading){other, 1, 2};
    T_WAIT(all_read, &r, 2000);
    other_next = r.next;
    T_EQ_U64(other_next, 2);
    /* All of it is answered, in order, once the engine reads. */
    r = (struct reading){s, 1, sent + 1};
    T_WAIT(all_read, &r, 10000);
    T_EQ_U64(seen.messages, sent + 1);
    T_TRUE(seen.writable > 0);
    T_EQ_U64(seen.ended, 0);
    close(s);
    close(other);
    stop();
}

TEST(a_blocked_engine_that_goes_is_ended)
{
    uint32_t sent = 0;
    int s;

    start();
    s = client();
    wait_for(&seen.opened, 1);
    for (unsigned idle = 0; idle < 50; pump()) {
        uint8_t p[12000];
        size_t len = frames(p, sizeof(p), sent + 1, 1000);

        idle = send(s, p, len, MSG_DONTWAIT) > 0 ? 0 : idle + 1;
        sent += idle == 0 ? 1000 : 0;
    }
    close(s);
    wait_for(&seen.ended, 1);
    /* What it had said before counts. */
    T_EQ_U64(seen.messages, sent);
    stop();
}

TEST(a_full_owner_gets_the_rest_later)
{
    struct reading r;
    int s;

    start();
    s = client();
    wait_for(&seen.opened, 1);
    seen.full = true;
    send_frames(s, 1, 10);
    for (int i = 0; i < 20; i++)
        pump();
    T_EQ_U64(seen.messages, 0);
    T_TRUE(local_busy(server));
    seen.full = false;
    r = (struct reading){s, 1, 11};
    T_WAIT(all_read, &r, 2000);
    close(s);
    stop();
}

TEST(a_held_connection_waits)
{
    struct reading r;
    int s;

    start();
    s = client();
    wait_for(&seen.opened, 1);
    local_hold(server, 0, true);
    send_frames(s, 1, 10);
    for (int i = 0; i < 20; i++)
        pump();
    T_EQ_U64(seen.messages, 0);
    T_FALSE(local_busy(server));
    local_hold(server, 0, false);
    r = (struct reading){s, 1, 11};
    T_WAIT(all_read, &r, 2000);
    close(s);
    stop();
}

TEST(the_end_comes_after_what_is_queued)
{
    struct reading r;
    uint8_t p[16];
    int s;

    start();
    s = client();
    send_frames(s, 1, 5);
    wait_for(&seen.messages, 5);
    answer(0, 6, OK);
    local_end(server, 0);
    send_frames(s, 7, 1);
    r = (struct reading){s, 1, 7};
    T_WAIT(all_read, &r, 2000);
    wait_for(&seen.ended, 1);
    T_EQ_U64(seen.messages, 5);
    (void)recv(s, p, sizeof(p), 0); /* a reset: our last frame was not read */
    T_EQ_I64(recv(s, p, sizeof(p), 0), 0);
    close(s);
    stop();
}

/* A child that connects, sends one frame, closes if told to, and waits. */
static pid_t child(bool closes)
{
    pid_t pid = fork();

    if (pid == 0) {
        int s = client();

        send_frames(s, 1, 1);
        if (closes)
            close(s);
        for (;;)
            pause();
    }
    return pid;
}

TEST(a_process_that_closed_but_lives_keeps_its_number)
{
    pid_t pid;
    int others[CONNS];

    start();
    pid = child(true);
    wait_for(&seen.ended, 1);
    T_EQ_STR(seen.order, "ome");
    for (int i = 0; i < CONNS - 1; i++) {
        others[i] = client();
        wait_for(&seen.opened, 2 + (uint32_t)i);
        T_CHECK(seen.last_conn != 0, "number 0 was used again");
    }
    T_EQ_U64(seen.dead, 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    wait_for(&seen.dead, 1);
    pump();
    others[CONNS - 1] = client();
    wait_for(&seen.opened, 1 + CONNS);
    T_EQ_U64(seen.last_conn, 0);
    for (int i = 0; i < CONNS; i++)
        close(others[i]);
    stop();
}

TEST(a_process_that_holds_nothing_is_forgotten)
{
    unsigned before;

    start();
    before = open_fds();
    for (uint32_t i = 1; i <= 10 * CONNS; i++) {
        int s = client();

        wait_for(&seen.opened, i);
        close(s);
        wait_for(&seen.ended, i);
        T_EQ_U64(seen.dead, i - 1);
        local_end(server, seen.last_conn);
        wait_for(&seen.dead, i);
        pump();
    }
    T_EQ_U64(open_fds(), before);
    stop();
}

TEST(a_killed_process_is_ended_then_dead)
{
    pid_t pid;

    start();
    pid = child(false);
    wait_for(&seen.messages, 1);
    T_EQ_U64(seen.ended, 0);
    kill(pid, SIGKILL);
    wait_for(&seen.dead, 1);
    T_EQ_STR(seen.order, "omed");
    waitpid(pid, NULL, 0);
    stop();
}

TEST(a_process_whose_child_has_its_socket_is_dead_all_the_same)
{
    int ready[2];
    pid_t pid, heir = 0;

    start();
    T_TRUE(pipe(ready) == 0);
    pid = fork();
    if (pid == 0) {
        int s = client();

        send_frames(s, 1, 1);
        heir = fork();
        if (heir == 0)
            for (;;)
                pause();
        (void)!write(ready[1], &heir, sizeof(heir));
        _exit(0);
    }
    T_EQ_I64(read(ready[0], &heir, sizeof(heir)), (ssize_t)sizeof(heir));
    wait_for(&seen.dead, 1);
    T_EQ_STR(seen.order, "omed");
    kill(heir, SIGKILL);
    waitpid(pid, NULL, 0);
    stop();
}

TEST(one_client_too_many_is_told)
{
    uint8_t p[256];
    struct reader r;
    struct local_msg m;
    int s[CONNS + 1];
    ssize_t n;

    start();
    for (int i = 0; i <= CONNS; i++)
        s[i] = client();
    wait_for(&seen.opened, CONNS);
    pump();
    n = recv(s[CONNS], p, sizeof(p), 0);
    T_TRUE(n > 0);
    r = reader_of(p, (size_t)n);
    T_OK(local_get(&r, &m));
    T_EQ_U64(m.answer.err, ERR_QUOTA);
    T_EQ_I64(recv(s[CONNS], p, sizeof(p), 0), 0);
    T_EQ_U64(seen.opened, CONNS);
    stop();
}

/* Receives one packet and the descriptor with it, -1: none. */
static ssize_t receive_fd(int s, uint8_t *p, size_t cap, int *fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {p, cap};
    struct msghdr m = {.msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes)};
    ssize_t n = recvmsg(s, &m, 0);
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);

    *fd = -1;
    if (n > 0 && h)
        memcpy(fd, CMSG_DATA(h), sizeof(int));
    return n;
}

TEST(cells_are_shared_and_cannot_be_written)
{
    uint8_t p[1024];
    _Atomic uint64_t *cells;
    int s, fd = -1, got;
    void *writable;

    start();
    s = client();
    wait_for(&seen.opened, 1);
    T_OK(local_cells(server, 0, 1000, &fd));
    answer(0, 1, OK);
    {
        uint8_t frame[64];
        size_t n = frames(frame, sizeof(frame), 2, 1);

        local_send(server, 0, span_of(frame, n), fd);
    }
    answer(0, 3, OK);
    pump();
    /* Three packets: the one in the middle has the descriptor. */
    T_TRUE(receive_fd(s, p, sizeof(p), &got) > 0);
    T_EQ_I64(got, -1);
    T_EQ_I64(receive_fd(s, p, sizeof(p), &got), LOCAL_HEADER);
    T_TRUE(got >= 0);
    cells = mmap(NULL, 8000, PROT_READ, MAP_SHARED, got, 0);
    T_TRUE((void *)cells != MAP_FAILED);
    writable = mmap(NULL, 8000, PROT_READ | PROT_WRITE, MAP_SHARED, got, 0);
    T_TRUE(writable == MAP_FAILED);
    T_TRUE(ftruncate(got, 0) != 0);
    T_TRUE(pwrite(got, "x", 1, 0) != 1);
    local_cell(server, 0, 999, cell_word(3, 0, 5, 77));
    T_EQ_U64(atomic_load(&cells[999]), cell_word(3, 0, 5, 77));
    T_EQ_U64(atomic_load(&cells[0]), 0);
    T_TRUE(receive_fd(s, p, sizeof(p), &fd) > 0);
    T_EQ_I64(fd, -1);
    close(s);
    wait_for(&seen.ended, 1);
    /* Our map outlives the connection; stores go nowhere. */
    local_cell(server, 0, 999, 1);
    T_EQ_U64(atomic_load(&cells[999]), cell_word(3, 0, 5, 77));
    stop();
}

static size_t resident(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;

    T_TRUE(f && fscanf(f, "%*u %lu", &pages) == 1);
    fclose(f);
    return pages * 4096;
}

static void garbage(unsigned n, uint64_t *seed)
{
    static uint8_t p[LOCAL_PACKET_MAX];

    for (unsigned i = 0; i < n; i++) {
        uint32_t ended = seen.ended, dead = seen.dead;
        size_t len = 1 + t_rand_below(seed, sizeof(p));
        pid_t pid = fork();

        if (pid == 0) {
            int s = client();

            t_rand_bytes(seed, p, len);
            (void)!send(s, p, len, 0);
            _exit(0);
        }
        wait_for(&seen.dead, dead + 1);
        T_EQ_U64(seen.ended, ended + 1);
        waitpid(pid, NULL, 0);
    }
}

TEST_LIMIT(a_thousand_malformed_packets_leave_nothing_behind, 60)
{
    uint64_t seed = 7;
    size_t before, after;
    unsigned fds;

    start();
    garbage(100, &seed);
    before = resident();
    fds = open_fds();
    garbage(1000, &seed);
    after = resident();
    T_CHECK(after <= before + 262144, "resident %zu, then %zu", before, after);
    T_EQ_U64(open_fds(), fds);
    stop();
}

TEST(a_dead_socket_is_replaced_and_a_live_one_is_not)
{
    struct local_opt opt = {path, 0600, "", -1, CONNS};
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct local *second = NULL;
    int s = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    snprintf(path, sizeof(path), "%.90s/s", t_dir());
    memcpy(a.sun_path, path, sizeof(path));
    T_TRUE(bind(s, (struct sockaddr *)&a, sizeof(a)) == 0);
    close(s);
    start();
    T_ERR(local_new(&second, &loop, &opt, &calls), ERR_BUSY);
    T_TRUE(second == NULL);
    s = client();
    wait_for(&seen.opened, 1);
    close(s);
    stop();
}

TEST(a_file_in_the_way_stays)
{
    struct local_opt opt = {path, 0600, "", -1, CONNS};
    int fd;

    snprintf(path, sizeof(path), "%.90s/s", t_dir());
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    T_TRUE(fd >= 0);
    T_TRUE(uv_loop_init(&loop) == 0);
    T_ERR(local_new(&server, &loop, &opt, &calls), ERR_INTERNAL);
    T_TRUE(access(path, F_OK) == 0);
}

TEST(an_inherited_socket_is_served_and_its_path_kept)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct local_opt opt = {path, 0600, "", -1, CONNS};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), s;

    snprintf(path, sizeof(path), "%.90s/s", t_dir());
    memcpy(a.sun_path, path, sizeof(path));
    T_TRUE(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
    T_TRUE(uv_loop_init(&loop) == 0);
    opt.fd = fd;
    T_ERR(local_new(&server, &loop, &opt, &calls), ERR_INTERNAL);
    fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    unlink(path);
    T_TRUE(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
    T_TRUE(listen(fd, 8) == 0);
    opt.fd = fd;
    T_OK(local_new(&server, &loop, &opt, &calls));
    s = client();
    wait_for(&seen.opened, 1);
    close(s);
    local_stop(server);
    uv_run(&loop, UV_RUN_DEFAULT);
    local_free(&server);
    T_TRUE(access(path, F_OK) == 0);
}

TEST(without_descriptors_it_neither_spins_nor_stops)
{
    struct rlimit old, few;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    uint8_t p[256];
    int s[3];
    uint64_t turns = 0, until;

    start();
    memcpy(a.sun_path, path, sizeof(path));
    for (int i = 0; i < 3; i++)
        s[i] = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    getrlimit(RLIMIT_NOFILE, &old);
    few = old;
    few.rlim_cur = (rlim_t)s[2] + 1;
    setrlimit(RLIMIT_NOFILE, &few);
    for (int i = 0; i < 3; i++)
        T_TRUE(connect(s[i], (struct sockaddr *)&a, sizeof(a)) == 0);
    /* One is told and let go; the others wait without keeping us busy. */
    for (until = t_now_ns() + 80 * NS_PER_MS; t_now_ns() < until; turns++) {
        uv_run(&loop, UV_RUN_ONCE);
        local_serve(server);
        local_flush(server);
    }
    T_CHECK(turns <= 8, "%llu turns in 80 ms", (unsigned long long)turns);
    T_EQ_U64(seen.opened, 0);
    T_TRUE(recv(s[0], p, sizeof(p), 0) > 0);
    setrlimit(RLIMIT_NOFILE, &old);
    wait_for(&seen.opened, 2);
    stop();
}
