/* node_test.c - whole nodes, each in a process of its own, tested through their
 * sockets: HELLO, reports, signals, restarts, two daemons that find each
 * other. */
#include "node/admin/admin.h"
#include "node/loop/node.h"

#include "base/log.h"
#include "wire/rows.h"
#include "wire/wire.h"
#include "test/t.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

static struct conf conf; /* large */
static char encoded_path[108], langd_path[108], control[64];
static char orders[SOCKET_PATH_MAX]; /* langd's socket for orders */
static const char *drain = "200ms";
static char told[128]; /* file of a daemon's log, and of what a failed CHECK
                          prints; empty: neither is kept */

static void set(const char *path, const char *value)
{
    struct conf_error e;

    T_CHECK(conf_set(&conf, path, span_str(value), &e) == OK, "%s", e.text);
}

/* Picks a port of an address that no other test of this host has, so that it
 * stays free while a daemon restarts: loopback has 2^24 addresses. */
static void pick_address(void)
{
    unsigned pid = (unsigned)getpid();
    struct sockaddr_in {
        sa_family_t family;
        uint8_t port[2], address[4], zero[8];
    } a = {.family = AF_INET,
        .address = {127, (uint8_t)(1 + pid / 62500), (uint8_t)(pid / 250 % 250),
            (uint8_t)(1 + pid % 250)}};
    socklen_t n = sizeof(a);
    int s = socket(AF_INET, SOCK_STREAM, 0);

    T_TRUE(bind(s, (struct sockaddr *)&a, sizeof(a)) == 0);
    T_TRUE(getsockname(s, (struct sockaddr *)&a, &n) == 0);
    close(s);
    snprintf(control, sizeof(control), "tcp://127.%u.%u.%u:%d", a.address[1],
        a.address[2], a.address[3], a.port[0] << 8 | a.port[1]);
}

static void configure(uint8_t role)
{
    static const char *const names[] = {
        [ROLE_ENCODED] = "e-test", [ROLE_LANGD] = "l-test"};
    const char *const paths[] = {
        [ROLE_ENCODED] = encoded_path, [ROLE_LANGD] = langd_path};
    struct conf_error e;

    if (control[0] == 0)
        pick_address();
    snprintf(encoded_path, sizeof(encoded_path), "%.80s/s/e", t_dir());
    snprintf(langd_path, sizeof(langd_path), "%.80s/s/l", t_dir());
    snprintf(orders, sizeof(orders), "%.80s/s", t_dir());
    (void)mkdir(orders, 0700);
    T_TRUE(orders_path(langd_path, orders));
    conf_init(&conf, role);
    set("name", names[role]);
    set("log", "error");
    set("socket.path", paths[role]);
    set("insecure", "true");
    set("timeouts.drain", drain);
    set("control.heartbeat", "60s"); /* ends are noticed without heartbeats */
    set("pools[0].name", "vit");
    set("pools[0].blocks", "16");
    set("pools[0].layout", "embedding:bf16:64");
    if (role == ROLE_ENCODED) {
        set("control.listen", control);
    } else {
        set("peers[0].name", "e");
        set("peers[0].address", control);
    }
    T_CHECK(conf_finish(&conf, "host", &e) == OK, "%s", e.text);
}

/* Starts a daemon of this role; the child ends with 0, or with 1 if it could
 * not start. */
static pid_t daemon_start(uint8_t role)
{
    pid_t pid;

    configure(role);
    pid = fork();
    if (pid == 0) {
        struct node_opt opt = {.conf = &conf, .listen_fd = -1};
        struct node *n;

        log_init("node", told[0] ? LOG_INFO : LOG_ERROR);
        if (told[0])
            T_TRUE(dup2(open(told, O_CREAT | O_WRONLY, 0600), 2) == 2);
        if (node_new(&n, &opt) != OK)
            _exit(1);
        node_run(n);
        if (told[0])
            node_print(n);
        node_free(&n);
        _exit(0);
    }
    return pid;
}

/* a client */

struct dial {
    const char *path;
    int s;
};

static bool connected(void *ud)
{
    struct dial *d = ud;
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    memcpy(a.sun_path, d->path, strlen(d->path));
    d->s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(d->s, (struct sockaddr *)&a, sizeof(a)) == 0)
        return true;
    close(d->s);
    return false;
}

static int dial(const char *path)
{
    struct dial d = {path, -1};

    T_WAIT(connected, &d);
    return d.s;
}

static uint8_t packet[LOCAL_PACKET_MAX];
static struct reader unread;

/* Returns the socket's next frame, and the descriptor of its packet. */
static struct local_msg next(int s, int *fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control_bytes;
    struct iovec iov = {packet, sizeof(packet)};
    struct msghdr h = {.msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control_bytes.bytes,
        .msg_controllen = sizeof(control_bytes.bytes)};
    struct local_msg m;

    if (fd)
        *fd = -1;
    if (unread.at == unread.len) {
        ssize_t n = recvmsg(s, &h, 0);

        T_CHECK(n > 0, "recvmsg: %zd %s", n, strerror(errno));
        unread = reader_of(packet, (size_t)n);
        if (fd && CMSG_FIRSTHDR(&h))
            memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof(int));
    }
    T_OK(local_get(&unread, &m));
    return m;
}

static void say(int s, const struct local_msg *m)
{
    uint8_t p[4096];
    struct writer w = writer_of(p, sizeof(p));

    T_TRUE(local_put(&w, m));
    T_EQ_I64(send(s, p, w.len, 0), (ssize_t)w.len);
}

static void hello(int s, int *cells)
{
    struct local_msg m = {.type = LOCAL_HELLO, .seq = 1};

    m.hello.magic = LOCAL_MAGIC;
    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.cells = 4000;
    m.hello.name = m.hello.session = span_str("test");
    say(s, &m);
    m = next(s, cells);
    T_EQ_U64(m.type, LOCAL_WELCOME);
    T_EQ_U64(m.seq, 1);
    T_EQ_U64(m.welcome.cells, 4000);
}

static int engine(const char *path)
{
    int fd, s = dial(path);

    unread = reader_of(packet, 0);
    hello(s, &fd);
    T_TRUE(fd >= 0);
    close(fd);
    return s;
}

/* Returns a report's rows as name=value; valid until the next call. */
static const char *query(int s, const char *what, unsigned *pieces)
{
    static uint8_t rows[8u << 20];
    static char text[8u << 20];
    size_t len = 0, n = 0;
    struct reader all;
    struct cell c;
    struct local_msg m = {.type = LOCAL_QUERY, .seq = 77};

    m.query.what = span_str(what);
    say(s, &m);
    *pieces = 0;
    do {
        m = next(s, NULL);
        if (m.type == LOCAL_EVENT) {
            m.report.more = 1;
            continue;
        }
        T_EQ_U64(m.type, LOCAL_REPORT);
        T_EQ_U64(m.seq, 77);
        T_EQ_U64(m.report.err, OK);
        T_TRUE(len + m.report.text.len < sizeof(rows));
        memcpy(rows + len, m.report.text.p, m.report.text.len);
        len += m.report.text.len;
        ++*pieces;
    } while (m.report.more);
    all = reader_of(rows, len);
    while (cell_get(&all, &c)) {
        char *to = text + n;
        size_t left = sizeof(text) - n;
        int name = (int)c.name.len;

        if (c.kind == CELL_TEXT)
            n += (size_t)snprintf(to, left, "%.*s=%.*s ", name,
                (const char *)c.name.p, (int)c.text.len,
                (const char *)c.text.p);
        else if (c.kind == CELL_NUMBER)
            n += (size_t)snprintf(to, left, "%.*s=%llu ", name,
                (const char *)c.name.p, (unsigned long long)c.number);
    }
    T_TRUE(all.at == all.len);
    text[n] = 0;
    return text;
}

static void gone(pid_t pid, int status)
{
    int got;

    T_EQ_I64(waitpid(pid, &got, 0), pid);
    T_CHECK(WIFEXITED(got) && WEXITSTATUS(got) == status, "status %x", got);
}

/* cases */

static void opens(uint8_t role, const char *path)
{
    pid_t pid = daemon_start(role);
    struct local_msg m = {.type = LOCAL_POOL, .seq = 2};
    int s = dial(path), fd;
    void *p;

    unread = reader_of(packet, 0);
    hello(s, &fd);
    p = mmap(NULL, 4000 * 8, PROT_READ, MAP_SHARED, fd, 0);
    T_TRUE(p != MAP_FAILED);
    T_TRUE(mmap(NULL, 8, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    say(s, &m);
    m = next(s, &fd);
    T_EQ_U64(m.type, LOCAL_POOL_INFO);
    T_TRUE(fd >= 0);
    T_EQ_U64(m.pool_info.blocks, 16);
    T_EQ_U64(m.pool_info.access, role == ROLE_ENCODED);
    p = mmap(NULL, m.pool_info.bytes, PROT_WRITE, MAP_SHARED, fd, 0);
    T_EQ_U64(p != MAP_FAILED, role == ROLE_ENCODED);
    kill(pid, SIGTERM);
    gone(pid, 0);
    T_TRUE(access(path, F_OK) != 0);
}

TEST_IS(encoded_opens, opens(ROLE_ENCODED, encoded_path));
TEST_IS(langd_opens, opens(ROLE_LANGD, langd_path));

TEST(every_report_is_there)
{
    static const char *const whats[] = {
        "status", "rooms", "pools", "peers", "stats"};
    pid_t pid = daemon_start(ROLE_LANGD);
    int s = engine(langd_path);
    struct local_msg m = {.type = LOCAL_QUERY, .seq = 3};
    unsigned n;

    for (size_t i = 0; i < ARRAY_LEN(whats); i++)
        query(s, whats[i], &n);
    T_HAS(query(s, "status", &n), "l-test");
    T_HAS(query(s, "pools", &n), "embedding:bf16:64");
    T_HAS(query(s, "peers", &n), "transport=- ");
    T_HAS(query(s, "stats", &n), "name=segments_landed ");
    T_HAS(query(s, "stats", &n), "name=peer_frames_dropped ");
    m.query.what = span_str("everything");
    say(s, &m);
    m = next(s, NULL);
    T_EQ_U64(m.type, LOCAL_REPORT);
    T_EQ_U64(m.report.err, ERR_MALFORMED);
    kill(pid, SIGTERM);
    gone(pid, 0);
}

/* Gives an order at langd's socket `path`; returns the reason. */
static enum err order(const char *path, const char *what, const char *args)
{
    int s = engine(path);
    struct local_msg m = {.type = LOCAL_QUERY, .seq = 5};

    m.query.what = span_str(what);
    m.query.args = span_str(args);
    say(s, &m);
    do
        m = next(s, NULL);
    while (m.type != LOCAL_REPORT);
    close(s);
    if (m.report.err == ERR_NOT_OWNER) {
        char text[256];

        span_copy_str(m.report.text, text, sizeof(text));
        T_HAS(text, orders);
    }
    return m.report.err;
}

/* The engines' socket takes no orders, even of the daemon's own user. */
TEST(orders_are_taken_at_their_own_socket)
{
    static const struct {
        const char *word;
        bool takes;
    } all[] = {
#define COMMAND(name, word, takes, meaning) {word, takes},
#include "wire/command.def"
#undef COMMAND
    };
    pid_t pid = daemon_start(ROLE_LANGD);
    struct stat st;

    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        T_ERR(order(langd_path, all[i].word, ""), ERR_NOT_OWNER);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (!all[i].takes)
            T_ERR(order(orders, all[i].word, "FILE"), ERR_MALFORMED);
    T_OK(order(langd_path, "status", ""));
    T_OK(order(orders, "status", ""));
    T_OK(order(orders, "conf", ""));
    T_OK(order(orders, "drain", ""));
    T_OK(order(orders, "undrain", ""));
    T_TRUE(stat(orders, &st) == 0);
    T_EQ_U64(st.st_mode & 07777, 0600);
    *strrchr(orders, '/') = 0;
    T_TRUE(stat(orders, &st) == 0);
    T_EQ_U64(st.st_mode & 07777, 0700);
    kill(pid, SIGTERM);
    gone(pid, 0);
    T_TRUE(stat(orders, &st) != 0);
}

TEST(a_query_before_hello_is_refused)
{
    pid_t pid = daemon_start(ROLE_LANGD);
    int s = dial(langd_path);
    struct local_msg m = {.type = LOCAL_QUERY, .seq = 3};

    m.query.what = span_str("status");
    say(s, &m);
    m = next(s, NULL);
    T_EQ_U64(m.type, LOCAL_ANSWER);
    T_EQ_U64(m.seq, 3);
    T_TRUE(m.answer.err != OK);
    kill(pid, SIGTERM);
    gone(pid, 0);
}

static uint64_t first_room = 1000;

static void request(int s, uint32_t i)
{
    struct local_msg m = {.type = LOCAL_REQUEST, .seq = 100 + i};

    m.request.room = first_room + i;
    m.request.cell = i;
    m.request.tag = 1;
    m.request.encoder = span_str("e");
    say(s, &m);
    do
        m = next(s, NULL);
    while (m.type == LOCAL_EVENT);
    T_EQ_U64(m.seq, 100 + i);
    T_EQ_U64(m.answer.err, OK);
}

/* Its end, too: an order, and what a failed CHECK prints. */
/* RULES 10.1 */
TEST(a_log_has_only_the_last_digits_of_rooms)
{
    static char text[64 << 10];
    char number[24];
    pid_t pid;
    int s;

    snprintf(told, sizeof(told), "%.80s/log", t_dir());
    first_room = 0x1122334455667788;
    snprintf(number, sizeof(number), "%llu", (unsigned long long)first_room);
    pid = daemon_start(ROLE_LANGD);
    s = engine(langd_path);
    request(s, 0);
    request(s, 1);
    T_OK(order(orders, "kill", number));
    kill(pid, SIGTERM);
    gone(pid, 0);
    s = open(told, O_RDONLY);
    T_TRUE(read(s, text, sizeof(text) - 1) > 0);
    T_HAS(text, "command `kill` of user");
    T_HAS(text, "\nroom=..55667788 ");
    T_HAS(text, "\nroom=..55667789 ");
    number[12] = 0; /* the first digits of both */
    T_CHECK(!strstr(text, number), "%s", text);
}

/* RULES 7.8 */
TEST(a_long_report_comes_in_pieces_and_in_its_turn)
{
    pid_t pid = daemon_start(ROLE_LANGD);
    int s = engine(langd_path);
    struct local_msg m = {.type = LOCAL_QUERY, .seq = 5};
    unsigned n;
    uint32_t answers = 0;

    for (uint32_t i = 0; i < 3000; i++)
        request(s, i);
    T_HAS(query(s, "rooms", &n), "room=3999 ");
    T_CHECK(n > 5, "%u pieces", n);
    /* Unread reports, and messages behind them, keep their order. */
    for (uint32_t i = 0; i < 3; i++) {
        m.query.what = span_str("rooms");
        say(s, &m);
        m.seq++;
    }
    m = (struct local_msg){.type = LOCAL_BYE, .seq = 8};
    say(s, &m);
    while (m = next(s, NULL), m.type != LOCAL_ANSWER) {
        if (m.type != LOCAL_REPORT)
            continue;
        T_EQ_U64(m.seq, 5 + answers);
        answers += !m.report.more;
    }
    T_EQ_U64(answers, 3);
    T_EQ_U64(m.seq, 8);
    kill(pid, SIGTERM);
    gone(pid, 0);
}

TEST(a_second_daemon_on_the_socket_does_not_start)
{
    pid_t pid = daemon_start(ROLE_LANGD);
    int s = engine(langd_path);
    unsigned n;

    gone(daemon_start(ROLE_LANGD), 1);
    T_HAS(query(s, "status", &n), "l-test");
    kill(pid, SIGTERM);
    gone(pid, 0);
}

TEST(a_signal_in_a_start_that_fails_ends_it)
{
    pid_t first = daemon_start(ROLE_LANGD), second;
    int status;

    close(engine(langd_path));
    signal(SIGTERM, SIG_IGN); /* until the daemon has a handler */
    second = daemon_start(ROLE_LANGD);
    signal(SIGTERM, SIG_DFL);
    while (waitpid(second, &status, WNOHANG) == 0)
        kill(second, SIGTERM);
    T_TRUE(WIFEXITED(status) || WTERMSIG(status) == SIGTERM);
    kill(first, SIGTERM);
    gone(first, 0);
}

TEST(two_signals_in_a_start_end_it)
{
    for (int i = 0; i < 100; i++) {
        pid_t pid;
        int got;

        signal(SIGTERM, SIG_IGN); /* until the daemon has handlers */
        signal(SIGINT, SIG_IGN);
        pid = daemon_start(ROLE_ENCODED);
        while (access(encoded_path, F_OK) != 0)
            ;
        kill(pid, SIGTERM);
        kill(pid, SIGINT);
        T_EQ_I64(waitpid(pid, &got, 0), pid);
        /* The first may have ended the handlers before the second came. */
        T_CHECK(WIFEXITED(got) || WTERMSIG(got) == SIGINT, "status %x", got);
    }
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
}

TEST(a_killed_daemon_leaves_nothing_in_the_way)
{
    pid_t pid = daemon_start(ROLE_ENCODED);

    close(engine(encoded_path));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    pid = daemon_start(ROLE_ENCODED);
    close(engine(encoded_path));
    kill(pid, SIGINT);
    gone(pid, 0);
}

/* RULES 9.5 */
TEST(a_drain_waits_for_rooms_but_not_for_ever)
{
    pid_t pid = daemon_start(ROLE_LANGD);
    int s = engine(langd_path);
    uint64_t from;

    request(s, 0);
    from = t_now_ns();
    kill(pid, SIGTERM);
    gone(pid, 0);
    T_TRUE(t_now_ns() - from >= 190 * NS_PER_MS);
}

/* F34 */
TEST(a_second_signal_does_not_wait)
{
    pid_t pid;
    unsigned n;
    int s;

    drain = "1h"; /* longer than the test */
    pid = daemon_start(ROLE_LANGD);
    s = engine(langd_path);
    request(s, 0);
    kill(pid, SIGTERM);
    T_HAS(query(s, "status", &n), "open");
    kill(pid, SIGINT);
    gone(pid, 0);
}
