/* notify.c - sd_notify and socket activation in a few lines.
 *
 * Invariants: the environment is read once and its variables removed; values
 * are static, since they belong to the process and not to a daemon object. A
 * manager that does not answer never blocks us. Main thread.
 *
 * Rejected: libsystemd. It is a dependency that many container hosts lack. */
#include "io/notify.h"

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
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
    uint64_t watchdog_ns;
    unsigned fds; /* number passed to us, from FIRST_FD on */
} state = {.fd = -1};

/* Returns a decimal number from the environment; 0: missing or invalid. */
static uint64_t env_number(const char *name)
{
    const char *s = getenv(name);
    uint64_t v = 0;

    return s && text_number(span_str(s), UINT64_MAX, &v) ? v : 0;
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
    uint64_t usec = env_number("WATCHDOG_USEC");

    state.watchdog_ns = 0;
    if (usec == 0 || usec > UINT64_MAX / 1000)
        return;
    if (!getenv("WATCHDOG_PID") || env_is_us("WATCHDOG_PID"))
        state.watchdog_ns = usec * 1000;
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

void notify_send(const char *text)
{
    ssize_t n;

    if (!state.address_len)
        return;
    n = sendto(state.fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT,
        (const struct sockaddr *)&state.address, state.address_len);
    if (n < 0 && !state.complained) {
        log_warn("notify: service manager: %s", strerror(errno));
        state.complained = true;
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
