/* link.c - mmxctl's end of the socket: connect, one packet out, packets in.
 * Blocking, with a limit; one thread. Rejected: the client library. It is made
 * for engines (cells, rooms, many requests at once, reconnects) and hides what
 * doctor must see. */
#include "ctl.h"

#include "base/check.h"
#include "base/fds.h"
#include "base/text.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* wait_s 0: calls of the connection do not block. */
static int dial(const char *path, int wait_s)
{
    int type = SOCK_SEQPACKET | SOCK_CLOEXEC | (wait_s ? 0 : SOCK_NONBLOCK);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = wait_s};
    int s;

    if (strlen(path) >= sizeof(a.sun_path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    s = socket(AF_UNIX, type, 0);
    if (s < 0)
        return -1;
    memcpy(a.sun_path, path, strlen(path) + 1);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (connect(s, (struct sockaddr *)&a, sizeof(a)) == 0)
        return s;
    close(s); /* succeeds, so it leaves errno as it is */
    return -1;
}

struct ctl *ctl_open(const char *path, int wait_s)
{
    int s = dial(path, wait_s);
    struct ctl *c = s >= 0 ? calloc(1, sizeof(*c)) : NULL;

    if (c) {
        c->s = s;
        c->fd = -1;
    } else if (s >= 0) {
        close(s);
    }
    return c;
}

const char *ctl_orders(const char *path, char out[SOCKET_PATH_MAX])
{
    return orders_path(path, out) && access(out, F_OK) == 0 ? out : path;
}

bool ctl_listens(const char *path)
{
    int s = dial(path, 0); /* EAGAIN: the daemon's queue is full */

    if (s >= 0)
        close(s);
    return s >= 0 || errno == EAGAIN;
}

void ctl_close(struct ctl *c)
{
    if (c->fd >= 0)
        close(c->fd);
    close(c->s);
    free(c);
}

bool ctl_send(struct ctl *c, const struct local_msg *m)
{
    uint8_t packet[2048];
    struct writer w = writer_of(packet, sizeof(packet));

    CHECK(c->s >= 0, "a message without a connection");
    if (local_put(&w, m))
        return send(c->s, packet, w.len, MSG_NOSIGNAL) == (ssize_t)w.len;
    errno = EMSGSIZE;
    return false;
}

/* Limits the next call to c->until_ns. False: that time has passed. */
static bool in_time(struct ctl *c)
{
    uint64_t now = clock_ns(), us;
    struct timeval left;

    if (!c->until_ns)
        return true;
    errno = EAGAIN;
    if (now >= c->until_ns)
        return false;
    us = (c->until_ns - now) / 1000 + 1;
    left.tv_sec = (time_t)(us / 1000000);
    left.tv_usec = (suseconds_t)(us % 1000000);
    return setsockopt(c->s, SOL_SOCKET, SO_RCVTIMEO, &left, sizeof(left)) == 0;
}

/* Receives a packet, and a descriptor if one came with it. */
static bool receive(struct ctl *c)
{
    struct iovec packet = {c->packet, sizeof(c->packet)};
    bool cut;
    ssize_t n;

    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    if (!in_time(c))
        return false;
    do
        n = fds_receive(c->s, packet, 0, &c->fd, 1, &cut);
    while (n < 0 && errno == EINTR);
    if (n == 0)
        errno = 0;
    c->in = reader_of(c->packet, n > 0 ? (size_t)n : 0);
    return n > 0;
}

bool ctl_next(struct ctl *c, struct local_msg *m)
{
    enum err e = local_get(&c->in, m);

    while (e != OK) {
        if (e == ERR_NOT_READY && !receive(c))
            return false;
        e = local_get(&c->in, m);
    }
    return true;
}

bool ctl_hello(struct ctl *c, uint32_t cells, struct local_msg *m)
{
    char session[32];

    *m = (struct local_msg){.type = LOCAL_HELLO};
    snprintf(session, sizeof(session), "mmxctl-%d", (int)getpid());
    m->hello.magic = LOCAL_MAGIC;
    m->hello.version_min = m->hello.version_max = WIRE_VERSION;
    m->hello.cells = cells;
    m->hello.name = span_str("mmxctl");
    m->hello.session = span_str(session);
    /* A daemon without a free connection answers before it reads. */
    return (ctl_send(c, m) || errno == EPIPE) && ctl_next(c, m);
}

bool ctl_ask(struct ctl *c, const char *what, struct local_msg *m)
{
    struct writer all = writer_of(c->answer, sizeof(c->answer));
    size_t word = strcspn(what, " ");

    *m = (struct local_msg){.type = LOCAL_QUERY};
    m->query.what = span_of(what, word);
    m->query.args = span_str(what + word + (what[word] == ' '));
    if (!ctl_send(c, m))
        return false;
    do {
        if (!ctl_next(c, m))
            return false;
        if (m->type == LOCAL_REPORT)
            put_bytes(&all, m->report.text.p, m->report.text.len);
    } while (m->type != LOCAL_ANSWER &&
             (m->type != LOCAL_REPORT || (m->report.more && !m->report.err)));
    c->got = reader_of(all.p, all.len);
    return m->type == LOCAL_REPORT && !m->report.err;
}

static int refused(enum err err, struct span text)
{
    char clean[REFUSAL_TEXT];

    text_copy(text, clean, sizeof(clean));
    fprintf(stderr, "mmxctl: %s: %s\n", err_name(err), clean);
    return CTL_REFUSED;
}

int ctl_failed(const struct local_msg *m)
{
    if (m->type == LOCAL_ANSWER)
        return refused(m->answer.err, m->answer.text);
    if (m->type == LOCAL_REPORT && m->report.err)
        return refused(m->report.err, m->report.text);
    if (errno == EAGAIN) {
        fprintf(stderr, "mmxctl: the daemon has not answered in %d s\n",
            CTL_WAIT_S);
        return CTL_NO_DAEMON;
    }
    fprintf(stderr, "mmxctl: %s\n",
        errno && errno != EPIPE ? strerror(errno)
                                : "the daemon closed the connection");
    return CTL_REFUSED;
}

int ctl_ends(void)
{
    sigset_t ends;

    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    return signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
}
