/* local_life_test.c - the engines' socket: processes that come and go, cells,
 * the path, and running out of descriptors. */
#include "test/unit/local_side.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Starts a child that connects, sends one frame, closes if told to, and
 * waits. */
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

/* Connects a client that has said HELLO, the n-th one. */
static int known_client(uint32_t n)
{
    int s = client();

    wait_for(&seen.opened, n);
    local_known(server, seen.last_conn);
    return s;
}

/* Checks that a refused client gets one answer, and then the end. */
static void expect_refusal(int s, enum err err)
{
    uint8_t p[512];
    struct reader r;
    struct local_msg m;
    ssize_t n = recv(s, p, sizeof(p), 0);

    T_CHECK(n > 0, "%zd bytes, %s", n, strerror(errno));
    r = reader_of(p, (size_t)n);
    T_OK(local_get(&r, &m));
    T_EQ_U64(m.type, LOCAL_ANSWER);
    T_EQ_U64(m.seq, 0);
    T_EQ_U64(m.answer.err, err);
    T_EQ_I64(recv(s, p, sizeof(p), 0), 0);
    close(s);
}

/* RULES 6.5 */
TEST_AROUND(a_process_that_closed_but_lives_keeps_its_place, start(), stop())
{
    struct until refused = {NULL, 1};
    int others[CONNS];
    pid_t pid = child(true);

    wait_for(&seen.ended, 1);
    T_EQ_STR(seen.order, "ome");
    for (uint32_t i = 0; i < CONNS - 1; i++) {
        others[i] = known_client(2 + i);
        T_CHECK(seen.last_conn != 0, "number 0 was used again");
    }
    others[CONNS - 1] = client();
    T_WAIT(was_refused, &refused);
    expect_refusal(others[CONNS - 1], ERR_QUOTA);
    T_EQ_U64(seen.dead, 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    wait_for(&seen.dead, 1);
    pump();
    others[CONNS - 1] = known_client(1 + CONNS);
    for (int i = 0; i < CONNS; i++)
        close(others[i]);
}

TEST_AROUND(a_process_that_holds_nothing_is_forgotten, start(), stop())
{
    unsigned before = open_fds();

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
}

/* RULES 6.5 */
TEST_AROUND(a_killed_process_is_ended_then_dead, start(), stop())
{
    pid_t pid = child(false);

    wait_for(&seen.messages, 1);
    T_EQ_U64(seen.ended, 0);
    kill(pid, SIGKILL);
    wait_for(&seen.dead, 1);
    T_EQ_STR(seen.order, "omed");
    waitpid(pid, NULL, 0);
}

/* RULES 6.5 */
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

/* Frames that it has sent meanwhile do not cost it the answer. */
TEST_AROUND(one_client_too_many_is_told, start(), stop())
{
    struct until refused = {NULL, 1};
    int s[CONNS + 1];

    for (uint32_t i = 0; i < CONNS; i++)
        s[i] = known_client(i + 1);
    s[CONNS] = client();
    send_frames(s[CONNS], 1, 100);
    T_WAIT(was_refused, &refused);
    T_TRUE(send(s[CONNS], "x", 1, MSG_NOSIGNAL) < 0);
    expect_refusal(s[CONNS], ERR_QUOTA);
    T_EQ_U64(seen.opened, CONNS);
    T_EQ_U64(seen.ended, 0);
}

/* RULES 7.7 */
TEST_AROUND(silent_clients_give_way_the_oldest_first, start(), stop())
{
    int known, s[2 * SLOTS];
    uint32_t first = 0;

    seen.forgets = true;
    known = known_client(1);
    for (uint32_t i = 0; i < ARRAY_LEN(s); i++)
        s[i] = client();
    wait_for(&seen.opened, 1 + ARRAY_LEN(s));
    first = ARRAY_LEN(s) - (CONNS - 1);
    for (uint32_t i = 0; i < first; i++)
        expect_refusal(s[i], ERR_QUOTA);
    T_EQ_U64(seen.ended, first);
    T_EQ_U64(local_stats(server)->gave_way, first);
    T_EQ_U64(local_stats(server)->refused, 0);
    /* The other clients are still read. */
    seen.messages = 0;
    send_frames(known, 1, 1);
    for (uint32_t i = first; i < ARRAY_LEN(s); i++)
        send_frames(s[i], 1, 1);
    wait_for(&seen.messages, CONNS);
}

/* If the place is needed, the ended client's last messages are still flushed.
 * RULES 7.7 */
TEST(a_client_that_is_ended_gives_way_with_what_it_was_told)
{
    int s[CONNS + 1];
    uint32_t oldest;

    start();
    seen.forgets = true;
    s[0] = client();
    wait_for(&seen.opened, 1);
    oldest = seen.last_conn;
    for (uint32_t i = 1; i < CONNS; i++)
        s[i] = client();
    wait_for(&seen.opened, CONNS);
    answer(oldest, 0, ERR_TIMEOUT);
    local_end(server, oldest);
    s[CONNS] = client();
    wait_for(&seen.opened, 1 + CONNS);
    expect_refusal(s[0], ERR_TIMEOUT);
    T_EQ_U64(seen.ended, 1);
    T_EQ_U64(local_stats(server)->gave_way, 0);
    T_EQ_U64(local_stats(server)->refused, 0);
    for (uint32_t i = 1; i <= CONNS; i++)
        close(s[i]);
    stop();
}

/* RULES 7.7 */
TEST(places_beyond_the_limit_are_for_our_own_user)
{
    struct until refused = {NULL, 1};
    int s[CONNS + 3];

    own_places = 2;
    start();
    for (uint32_t i = 0; i < CONNS + 2; i++)
        s[i] = known_client(i + 1);
    s[CONNS + 2] = client();
    T_WAIT(was_refused, &refused);
    expect_refusal(s[CONNS + 2], ERR_QUOTA);
    close(s[0]); /* one of the places that every user may take */
    wait_for(&seen.ended, 1);
    local_end(server, 0);
    wait_for(&seen.dead, 1);
    s[0] = known_client(CONNS + 3);
    stop();
}

/* A full table keeps no one from giving orders, even if our own user fills
 * it. */
TEST(orders_have_places_of_their_own)
{
    struct until refused = {NULL, 1};
    char at[108], engines[108];
    struct stat st;
    int one_more;

    own_places = 1;
    snprintf(at, sizeof(at), "%.80s/admin/s", t_dir());
    orders = at;
    start();
    T_TRUE(stat(at, &st) == 0);
    T_EQ_U64(st.st_mode & 07777, 0600);
    for (uint32_t i = 0; i < CONNS + 1; i++) {
        (void)known_client(i + 1);
        T_FALSE(local_orders(server, seen.last_conn));
    }
    memcpy(engines, path, sizeof(path));
    memcpy(path, at, sizeof(at));
    (void)known_client(CONNS + 2);
    T_TRUE(local_orders(server, seen.last_conn));
    one_more = client();
    T_WAIT(was_refused, &refused);
    expect_refusal(one_more, ERR_QUOTA);
    memcpy(path, engines, sizeof(path));
    stop();
    T_TRUE(access(at, F_OK) != 0);
    *strrchr(at, '/') = 0;
    T_TRUE(access(at, F_OK) != 0);
}

/* A folder that is removed before the next socket is bound, as by the host's
 * other daemon that ends; "": none. */
static char removed[108];

int bind(int fd, const struct sockaddr *a, socklen_t len)
{
    static int (*real)(int, const struct sockaddr *, socklen_t);
    const char *at = ((const struct sockaddr_un *)a)->sun_path;

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "bind");
    if (removed[0] && strncmp(at, removed, strlen(removed)) == 0) {
        T_TRUE(rmdir(removed) == 0);
        removed[0] = 0;
    }
    return real(fd, a, len);
}

TEST(a_folder_that_vanishes_is_made_again)
{
    static char at[108];

    snprintf(removed, sizeof(removed), "%.80s/admin", t_dir());
    snprintf(at, sizeof(at), "%.100s/s", removed);
    orders = at;
    start();
    T_EQ_STR(removed, "");
    T_TRUE(access(at, F_OK) == 0);
    stop();
}

/* Who may rename a folder's files could put another socket in the place of the
 * one for orders. */
TEST(a_folder_that_others_may_change_is_none_for_orders)
{
    static const uint32_t modes[] = {0777, 0775, 0757, 0755, 01777};
    static char folder[108], at[108];
    struct local_opt opt;

    snprintf(folder, sizeof(folder), "%.80s/admin", t_dir());
    snprintf(at, sizeof(at), "%.100s/s", folder);
    orders = at;
    for (uint32_t i = 0; i < ARRAY_LEN(modes); i++) {
        T_TRUE(mkdir(folder, 0700) == 0 && chmod(folder, modes[i]) == 0);
        if (i >= 3) {
            start();
            stop();
            continue;
        }
        opt = options();
        snprintf(path, sizeof(path), "%.90s/s", t_dir());
        T_TRUE(uv_loop_init(&loop) == 0);
        T_ERR(local_new(&server, &loop, &opt, &calls), ERR_INTERNAL);
        T_TRUE(uv_loop_close(&loop) == 0);
        T_TRUE(rmdir(folder) == 0);
    }
}

/* As a volume that only the daemon's container mounts. */
TEST(a_folder_for_orders_that_is_a_mount_may_have_any_mode)
{
    static char folder[108], at[108];

    if (unshare(CLONE_NEWNS) != 0)
        t_skip("no mounts without CAP_SYS_ADMIN");
    snprintf(folder, sizeof(folder), "%.80s/admin", t_dir());
    snprintf(at, sizeof(at), "%.100s/s", folder);
    T_TRUE(mkdir(folder, 0700) == 0);
    T_TRUE(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    T_TRUE(mount("tmpfs", folder, "tmpfs", 0, "mode=0777") == 0);
    orders = at;
    start();
    T_TRUE(access(at, F_OK) == 0);
    stop();
    T_TRUE(umount(folder) == 0);
}

/* Connects as another user. */
static pid_t other_user(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        if (seteuid(OTHER) != 0)
            _exit(1);
        (void)client();
        for (;;)
            pause();
    }
    return pid;
}

/* RULES 7.7 */
TEST(one_user_leaves_places_for_another)
{
    struct until refused = {NULL, 1};
    pid_t pid;

    if (geteuid() != 0)
        t_skip("other users' connections need root");
    start();
    T_EQ_I64(chmod(t_dir(), 0711), 0);
    T_EQ_I64(chmod(path, 0666), 0);
    for (uint32_t i = 0; i < CONNS; i++)
        (void)known_client(i + 1);
    (void)client();
    T_WAIT(was_refused, &refused);
    pid = other_user();
    wait_for(&seen.opened, CONNS + 1);
    T_EQ_U64(seen.uid, OTHER);
    T_EQ_U64(seen.ended, 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    stop();
}

/* Receives one packet and its descriptor; -1: none. */
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

static void send_fd(uint32_t conn, uint32_t seq, int fd)
{
    uint8_t frame[256];
    struct writer w = writer_of(frame, sizeof(frame));
    struct local_msg m = {.type = LOCAL_ANSWER, .seq = seq};

    T_TRUE(local_put(&w, &m));
    local_send_opened(server, conn, span_of(w.p, w.len), fd, false);
}

/* Takes packets that have come, with seqs in order; closes their
 * descriptors. */
static uint32_t take_fds(int s, uint32_t next)
{
    uint8_t p[1024];
    int fd;

    while (receive_fd(s, p, sizeof(p), &fd) > 0) {
        struct reader r = reader_of(p, sizeof(p));
        struct local_msg m;

        T_OK(local_get(&r, &m));
        T_EQ_U64(m.seq, next++);
        T_TRUE(fd >= 0);
        T_EQ_I64(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
        close(fd);
    }
    return next;
}

static bool all_taken(void *ud)
{
    struct reading *r = ud;

    pump();
    r->next = take_fds(r->s, r->next);
    return r->next == r->wanted;
}

/* Descriptors that a client does not read are in flight, which the system
 * limits for all. */
TEST_AROUND(unread_descriptors_are_few_and_the_rest_follows, start(), stop())
{
    struct reading r;
    unsigned before;
    int s, fd = memfd_create("pool", MFD_CLOEXEC);

    s = known_client(1);
    T_EQ_I64(fcntl(s, F_SETFL, O_NONBLOCK), 0);
    before = open_fds();
    for (uint32_t i = 1; i <= 12; i++)
        send_fd(0, i, fd);
    for (int i = 0; i < 20; i++)
        pump();
    T_EQ_U64(take_fds(s, 1), 3);
    T_TRUE(local_stats(server)->rested > 0);
    r = (struct reading){s, 3, 13};
    T_WAIT(all_taken, &r);
    T_EQ_U64(open_fds(), before);
    send_frames(s, 1, 1); /* the client is read again */
    wait_for(&seen.messages, 1);
    close(s);
    wait_for(&seen.ended, 1);
}

/* Puts descriptors in flight until the system allows no more. */
static bool fill_flight(const int s[2])
{
    for (int i = 0; i < 10000; i++) {
        char control[CMSG_SPACE(sizeof(int))] = {0};
        struct iovec iov = {control, 1};
        struct msghdr m = {.msg_iov = &iov,
            .msg_iovlen = 1,
            .msg_control = control,
            .msg_controllen = sizeof(control)};
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);

        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(h), &s[0], sizeof(int));
        if (sendmsg(s[1], &m, MSG_DONTWAIT) < 0)
            return errno == ETOOMANYREFS;
    }
    return false;
}

/* While others use up that limit a client waits, but keeps its connection. */
TEST(a_client_waits_for_room_for_its_descriptor)
{
    struct rlimit few = {60, 60};
    struct reading r;
    int s, flight[2], fd = memfd_create("pool", MFD_CLOEXEC);

    start();
    s = known_client(1);
    T_EQ_I64(fcntl(s, F_SETFL, O_NONBLOCK), 0);
    T_EQ_I64(socketpair(AF_UNIX, SOCK_STREAM, 0, flight), 0);
    T_EQ_I64(fchmod(fd, 0666), 0);
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &few), 0);
    if (geteuid() == 0 && setuid(OTHER) != 0)
        t_skip("root may have any number in flight");
    if (!fill_flight(flight))
        t_skip("this user may have any number in flight");
    send_fd(0, 1, fd);
    send_fd(0, 2, fd);
    for (int i = 0; i < 20; i++)
        pump();
    T_EQ_U64(take_fds(s, 1), 1);
    T_EQ_U64(seen.ended, 0);
    close(flight[0]);
    close(flight[1]);
    r = (struct reading){s, 1, 3};
    T_WAIT(all_taken, &r);
    T_EQ_U64(seen.ended, 0);
    close(s);
    local_stop(server);
}

TEST_AROUND(cells_are_shared_and_cannot_be_written, start(), stop())
{
    uint8_t p[1024];
    _Atomic uint64_t *cells;
    int s, fd = -1, got;
    void *writable;

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
    /* Three packets, of which the second one has the descriptor. */
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
    /* The server's map outlives the connection; stores have no effect. */
    local_cell(server, 0, 999, 1);
    T_EQ_U64(atomic_load(&cells[999]), cell_word(3, 0, 5, 77));
}

TEST(a_dead_socket_is_replaced_and_a_live_one_is_not)
{
    struct local_opt opt = options();
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
    struct local_opt opt = options();
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
    struct local_opt opt = options();
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), s;

    snprintf(path, sizeof(path), "%.90s/s", t_dir());
    memcpy(a.sun_path, path, sizeof(path));
    T_TRUE(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
    T_TRUE(uv_loop_init(&loop) == 0);
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

static bool is_told(void *ud)
{
    struct pollfd p = {.fd = *(int *)ud, .events = POLLIN};

    pump();
    return poll(&p, 1, 0) == 1;
}

/* F37 */
TEST_AROUND(without_descriptors_it_neither_spins_nor_stops, start(), stop())
{
    struct rlimit old, few;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    uint8_t p[256];
    int s[3];
    uint64_t turns = 0, until;

    memcpy(a.sun_path, path, sizeof(path));
    for (int i = 0; i < 3; i++)
        s[i] = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    getrlimit(RLIMIT_NOFILE, &old);
    few = old;
    few.rlim_cur = (rlim_t)s[2] + 1;
    setrlimit(RLIMIT_NOFILE, &few);
    for (int i = 0; i < 3; i++)
        T_TRUE(connect(s[i], (struct sockaddr *)&a, sizeof(a)) == 0);
    /* One is refused; the others wait, and the loop does not spin. */
    T_WAIT(is_told, &s[0]);
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
}
