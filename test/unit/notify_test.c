/* notify_test.c - messages to the service manager, and sockets from it, over
 * real sockets. */
#include "io/notify.h"
#include "test/t.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Fills in an address, a path or @abstract; returns its length. */
static socklen_t address(struct sockaddr_un *a, const char *name)
{
    size_t len = strlen(name);

    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(a->sun_path, name, len);
    if (name[0] == '@')
        a->sun_path[0] = 0;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

/* Returns a bound socket; name is a path or @abstract. */
static int bound(const char *name, int type)
{
    struct sockaddr_un a;
    socklen_t len = address(&a, name);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    T_TRUE(fd >= 0);
    T_CHECK(bind(fd, (struct sockaddr *)&a, len) == 0, "bind %s: %s", name,
        strerror(errno));
    return fd;
}

static void expect(int fd, const char *text)
{
    char buf[256];
    ssize_t n = recv(fd, buf, sizeof(buf) - 1, MSG_DONTWAIT);

    T_CHECK(n >= 0, "nothing came: %s", strerror(errno));
    buf[n] = 0;
    T_EQ_STR(buf, text);
}

static void set_number(const char *name, unsigned long long v)
{
    char text[32];

    snprintf(text, sizeof(text), "%llu", v);
    setenv(name, text, 1);
}

TEST(no_manager)
{
    notify_init();
    notify_send("READY=1");
    T_EQ_U64(notify_watchdog_ns(), 0);
    T_EQ_I64(notify_listen_fd(), -1);
}

/* Starts a manager; returns its socket, and writes the path. */
static int manager(char name[300])
{
    int fd;

    snprintf(name, 300, "%s/n", t_dir());
    fd = bound(name, SOCK_DGRAM);
    setenv("NOTIFY_SOCKET", name, 1);
    notify_init();
    return fd;
}

TEST(path_socket)
{
    char name[300];
    int fd = manager(name);

    T_TRUE(getenv("NOTIFY_SOCKET") == NULL);
    notify_send("READY=1\nSTATUS=up");
    expect(fd, "READY=1\nSTATUS=up");
    notify_send("STOPPING=1");
    expect(fd, "STOPPING=1");
}

TEST(abstract_socket)
{
    char name[64];
    int fd;

    snprintf(name, sizeof(name), "@mmx-notify-test-%d", (int)getpid());
    fd = bound(name, SOCK_DGRAM);
    setenv("NOTIFY_SOCKET", name, 1);
    notify_init();
    notify_send("WATCHDOG=1");
    expect(fd, "WATCHDOG=1");
}

TEST(a_manager_that_is_gone_harms_nobody)
{
    char name[300];

    snprintf(name, sizeof(name), "%s/none", t_dir());
    setenv("NOTIFY_SOCKET", name, 1);
    notify_init();
    notify_send("READY=1");
    notify_send("READY=1");
}

TEST(what_finds_the_queue_full_is_sent_later_in_order)
{
    struct sockaddr_un a;
    char name[300], buf[8];
    int fd = manager(name), other, held = 0;

    other = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    T_TRUE(connect(other, (struct sockaddr *)&a, address(&a, name)) == 0);
    while (send(other, "x", 1, 0) == 1)
        held++;
    T_EQ_I64(errno, EAGAIN);
    notify_send("READY=1");
    notify_send("STATUS=up");
    notify_retry();
    for (; held > 0; held--)
        T_EQ_I64(recv(fd, buf, sizeof(buf), MSG_DONTWAIT), 1);
    notify_retry();
    expect(fd, "READY=1");
    expect(fd, "STATUS=up");
    notify_retry();
    T_EQ_I64(recv(fd, buf, sizeof(buf), MSG_DONTWAIT), -1);
    close(other);
}

TEST(what_waits_for_a_manager_is_bounded)
{
    char name[300];
    int fd = manager(name);

    for (int i = 0; i < 5000; i++)
        notify_send("STATUS=a line that nobody reads");
    expect(fd, "STATUS=a line that nobody reads");
}

TEST(addresses_that_cannot_be_used)
{
    char name[300];

    memset(name, '/', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    setenv("NOTIFY_SOCKET", name, 1);
    notify_init();
    notify_send("READY=1");
    setenv("NOTIFY_SOCKET", "vsock:2:1", 1);
    notify_init();
    notify_send("READY=1");
}

TEST(watchdog)
{
    set_number("WATCHDOG_USEC", 3000000);
    notify_init();
    T_EQ_U64(notify_watchdog_ns(), 3 * NS_PER_S);
    T_TRUE(getenv("WATCHDOG_USEC") == NULL);
    set_number("WATCHDOG_USEC", 5);
    set_number("WATCHDOG_PID", (unsigned long long)getpid());
    notify_init();
    T_EQ_U64(notify_watchdog_ns(), 5000);
    set_number("WATCHDOG_USEC", 5);
    set_number("WATCHDOG_PID", (unsigned long long)getpid() + 1);
    notify_init();
    T_EQ_U64(notify_watchdog_ns(), 0);
    setenv("WATCHDOG_USEC", "5s", 1);
    notify_init();
    T_EQ_U64(notify_watchdog_ns(), 0);
    setenv("WATCHDOG_USEC", "18446744073709551615", 1);
    notify_init();
    T_EQ_U64(notify_watchdog_ns(), 0);
}

/* Puts into descriptors 3 to 5 a datagram socket, a SEQPACKET socket that does
 * not listen, and the right one. */
static void hand_over(pid_t pid)
{
    char name[300];
    int fds[3];

    snprintf(name, sizeof(name), "%s/listen", t_dir());
    fds[0] = socket(AF_UNIX, SOCK_DGRAM, 0);
    fds[1] = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    fds[2] = bound(name, SOCK_SEQPACKET);
    T_TRUE(listen(fds[2], 1) == 0);
    for (int i = 0; i < 3; i++)
        fds[i] = fcntl(fds[i], F_DUPFD, 20);
    for (int i = 0; i < 3; i++)
        T_TRUE(dup2(fds[i], 3 + i) == 3 + i);
    set_number("LISTEN_PID", (unsigned long long)pid);
    setenv("LISTEN_FDS", "3", 1);
}

/* RULES 9.3 */
TEST(listening_socket)
{
    hand_over(getpid());
    notify_init();
    T_TRUE(getenv("LISTEN_FDS") == NULL);
    T_EQ_I64(notify_listen_fd(), 5);
    T_EQ_I64(fcntl(5, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    T_EQ_I64(notify_listen_fd(), -1);
}

TEST(a_socket_for_somebody_else)
{
    hand_over(getppid());
    notify_init();
    T_EQ_I64(notify_listen_fd(), -1);
    T_TRUE(getenv("LISTEN_PID") == NULL);
}

TEST(no_socket_of_the_right_kind)
{
    hand_over(getpid());
    setenv("LISTEN_FDS", "2", 1);
    notify_init();
    T_EQ_I64(notify_listen_fd(), -1);
    setenv("LISTEN_FDS", "99999", 1);
    set_number("LISTEN_PID", (unsigned long long)getpid());
    notify_init();
    T_EQ_I64(notify_listen_fd(), -1);
}
