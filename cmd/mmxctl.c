/* mmxctl - shows what a daemon knows: connects to its socket like an engine,
 * says HELLO and QUERY, prints the REPORTs. Blocking, one thread, one answer.
 * Rejected: the client library. It is made for engines (cells, pools, many
 * requests at once); thirty lines of the wire are less than that. */
#include "core/wire.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { EXIT_DAEMON = 1, EXIT_CONNECT = 2, EXIT_USAGE = 64, WAIT_S = 10 };

static void usage(FILE *to)
{
    fputs("usage: mmxctl [--socket PATH | --encoded | --langd] [--json] WHAT\n"
          "  WHAT is status, rooms, pools, peers, conf or stats\n"
          "  --encoded       /run/mmx/encoded.sock\n"
          "  --langd         /run/mmx/langd.sock\n"
          "  --socket PATH   the daemon's socket; without any of the three,\n"
          "                  whichever of the two above is there\n"
          "  --json          an array of objects\n"
          "exit status: 0 shown, 1 refused by the daemon, 2 no daemon,\n"
          "64 bad command line\n",
        to);
}

static int connect_to(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = WAIT_S};
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (strlen(path) >= sizeof(a.sun_path)) {
        fprintf(
            stderr, "mmxctl: %s: longer than a socket's path can be\n", path);
        close(s);
        return -1;
    }
    memcpy(a.sun_path, path, strlen(path) + 1);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (connect(s, (struct sockaddr *)&a, sizeof(a)) == 0)
        return s;
    fprintf(stderr, "mmxctl: %s: %s\n", path,
        errno == ECONNREFUSED ? "no daemon is listening" : strerror(errno));
    close(s);
    return -1;
}

static bool ask(int s, const char *what, bool json)
{
    uint8_t packet[1024];
    struct writer w = writer_of(packet, sizeof(packet));
    struct local_msg hello = {.type = LOCAL_HELLO, .seq = 1};
    struct local_msg query = {.type = LOCAL_QUERY, .seq = 2};
    struct local_msg bye = {.type = LOCAL_BYE, .seq = 3};
    char session[32];

    snprintf(session, sizeof(session), "mmxctl-%d", (int)getpid());
    hello.hello.magic = LOCAL_MAGIC;
    hello.hello.version_min = hello.hello.version_max = WIRE_VERSION;
    hello.hello.cells = 1;
    hello.hello.name = span_str("mmxctl");
    hello.hello.session = span_str(session);
    query.query.json = json;
    query.query.what = span_str(what);
    return local_put(&w, &hello) && local_put(&w, &query) &&
           local_put(&w, &bye) &&
           send(s, packet, w.len, MSG_NOSIGNAL) == (ssize_t)w.len;
}

static int refused(enum err err, struct span text)
{
    fprintf(stderr, "mmxctl: %s: %.*s\n", err_name(err), (int)text.len,
        (const char *)text.p);
    return EXIT_DAEMON;
}

/* -1: there is more to come; else the exit status. */
static int take(const struct local_msg *m)
{
    if (m->type == LOCAL_ANSWER)
        return refused(m->answer.err, m->answer.text);
    if (m->type != LOCAL_REPORT)
        return -1;
    if (m->report.err)
        return refused(m->report.err, m->report.text);
    fwrite(m->report.text.p, 1, m->report.text.len, stdout);
    if (m->report.more)
        return -1;
    return fflush(stdout) == 0 ? 0 : EXIT_DAEMON;
}

static int print_answer(int s)
{
    static uint8_t packet[LOCAL_PACKET_MAX];

    for (;;) {
        /* The descriptor of WELCOME is not asked for and not received. */
        ssize_t n = recv(s, packet, sizeof(packet), 0);
        struct reader r = reader_of(packet, n > 0 ? (size_t)n : 0);
        struct local_msg m;
        enum err e;

        if (n <= 0) {
            fprintf(stderr, "mmxctl: %s\n",
                n == 0 ? "the daemon ended the connection" : strerror(errno));
            return EXIT_DAEMON;
        }
        while ((e = local_get(&r, &m)) != ERR_NOT_READY) {
            int status = e == OK ? take(&m) : -1;

            if (status >= 0)
                return status;
        }
    }
}

static const char *find_socket(void)
{
    static const char *const paths[] = {
        "/run/mmx/encoded.sock", "/run/mmx/langd.sock"};
    const char *found = NULL;

    for (int i = 0; i < 2; i++) {
        if (access(paths[i], F_OK) != 0)
            continue;
        if (found) {
            fputs("mmxctl: both daemons are here: say --encoded or --langd\n",
                stderr);
            return NULL;
        }
        found = paths[i];
    }
    if (!found)
        fputs("mmxctl: no socket in /run/mmx: say --socket PATH\n", stderr);
    return found;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"socket", required_argument, NULL, 's'},
        {"encoded", no_argument, NULL, 'e'}, {"langd", no_argument, NULL, 'l'},
        {"json", no_argument, NULL, 'j'}, {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    const char *path = NULL;
    bool json = false;
    int c, s, status;

    while ((c = getopt_long(argc, argv, "s:jh", longs, NULL)) != -1) {
        if (c == 's')
            path = optarg;
        else if (c == 'e')
            path = "/run/mmx/encoded.sock";
        else if (c == 'l')
            path = "/run/mmx/langd.sock";
        else if (c == 'j')
            json = true;
        else if (c == 'v')
            return printf("mmxctl %s\n", MMX_VERSION) < 0;
        else
            return usage(c == 'h' ? stdout : stderr), c == 'h' ? 0 : EXIT_USAGE;
    }
    if (optind + 1 != argc)
        return usage(stderr), EXIT_USAGE;
    if (!path && !(path = find_socket()))
        return EXIT_CONNECT;
    s = connect_to(path);
    if (s < 0)
        return EXIT_CONNECT;
    status = EXIT_DAEMON;
    if (ask(s, argv[optind], json))
        status = print_answer(s);
    else
        fprintf(stderr, "mmxctl: %s: %s\n", path, strerror(errno));
    close(s);
    return status;
}
