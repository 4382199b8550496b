/* notify.c - sd_notify and socket activation in a few lines.
 *
 * Invariants: the environment is read once and its variables removed; values
 * are static, since they belong to the process and not to a daemon object. A
 * manager that does not answer never blocks us: texts wait here, in order,
 * until its queue takes them. Main thread.
 *
 * Rejected: libsystemd. It is a dependency that many container hosts lack, and
 * it blocks while the queue is full. Rejected: keeping only the last text. A
 * manager that missed RELOADING=1 does not take READY=1 as the answer to its
 * reload. */
#include "io/notify.h"

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_FD 3 /* SD_LISTEN_FDS_START */
#define FDS_MAX  64

static struct {
    struct sockaddr_un address;
    socklen_t address_len; /* 0: no manager */
    int fd;                /* socket for messages; -1: none */
    bool complained;
    char waiting[4096]; /* texts to send, each with its 0 */
    size_t waiting_len;
    uint64_t watchdog_ns;
    unsigned fds; /* number passed to us, from FIRST_FD on */
} state = {.fd = -1};

/* Returns a decimal number from the environment, at most 2^64 / 1000; 0: it is
 * missing or invalid. */
static uint64_t env_number(const char *name)
{
    const char *s = getenv(name);
    uint64_t v = 0;

    return s && text_number(span_str(s), UINT64_MAX / 1000, &v) ? v : 0;
}

/* True if the number in the environment is our process id. */
static bool env_is_us(const char *name)
{
    return env_number(name) == (uint64_t)getpid();
}

static void read_socket(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    size_t len = path ? strlen(path) : 0;

    state.address_len = 0;
    if (len == 0)
        return;
    if (len >= sizeof(state.address.sun_path) ||
        (path[0] != '/' && path[0] != '@')) {
        log_warn("notify: cannot use NOTIFY_SOCKET %s", path);
        return;
    }
    memset(&state.address, 0, sizeof(state.address));
    state.address.sun_family = AF_UNIX;
    memcpy(state.address.sun_path, path, len);
    if (path[0] == '@')
        state.address.sun_path[0] = 0;
    state.address_len =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

static void read_watchdog(void)
{
    bool ours = !getenv("WATCHDOG_PID") || env_is_us("WATCHDOG_PID");

    state.watchdog_ns = ours ? env_number("WATCHDOG_USEC") * 1000 : 0;
}

static void read_listen(void)
{
    uint64_t fds = env_number("LISTEN_FDS");

    state.fds = 0;
    if (!env_is_us("LISTEN_PID") || fds > FDS_MAX)
        return;
    state.fds = (unsigned)fds;
    for (unsigned i = 0; i < state.fds; i++)
        (void)fcntl(FIRST_FD + (int)i, F_SETFD, FD_CLOEXEC);
}

void notify_init(void)
{
    static const char *const names[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC",
        "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"};

    read_socket();
    read_watchdog();
    read_listen();
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        unsetenv(names[i]);
    if (state.address_len && state.fd < 0)
        state.fd =
            socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

void notify_send(const char *format, ...)
{
    size_t space = sizeof(state.waiting) - state.waiting_len;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(state.waiting + state.waiting_len, space, format, args);
    va_end(args);
    if (state.address_len && n >= 0 && (size_t)n < space)
        state.waiting_len += (size_t)n + 1;
    notify_retry();
}

void notify_retry(void)
{
    while (state.waiting_len) {
        size_t len = strlen(state.waiting);
        ssize_t n = sendto(state.fd, state.waiting, len, MSG_NOSIGNAL,
            (const struct sockaddr *)&state.address, state.address_len);

        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0 && !state.complained)
            log_warn("notify: service manager: %s", strerror(errno));
        state.complained |= n < 0;
        state.waiting_len -= len + 1;
        memmove(state.waiting, state.waiting + len + 1, state.waiting_len);
    }
}

uint64_t notify_watchdog_ns(void)
{
    return state.watchdog_ns;
}

static bool option_is(int fd, int option, int wanted)
{
    int v;
    socklen_t len = sizeof(v);

    return getsockopt(fd, SOL_SOCKET, option, &v, &len) == 0 && v == wanted;
}

int notify_listen_fd(void)
{
    int found = -1;

    CHECK(state.fds <= FDS_MAX, "%u descriptors", state.fds);
    for (unsigned i = 0; i < state.fds && found < 0; i++) {
        int fd = FIRST_FD + (int)i;

        if (option_is(fd, SO_DOMAIN, AF_UNIX) &&
            option_is(fd, SO_TYPE, SOCK_SEQPACKET) &&
            option_is(fd, SO_ACCEPTCONN, 1))
            found = fd;
    }
    state.fds = 0;
    return found;
}
