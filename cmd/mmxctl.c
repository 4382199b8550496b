/* mmxctl - shows what a daemon knows: connects to its socket like an engine,
 * says HELLO and QUERY, prints the REPORTs; or, as doctor, checks what an
 * engine needs to use the daemons. Blocking, one thread. The rest is in
 * cmd/ctl. */
#include "ctl/ctl.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void usage(FILE *to)
{
    fputs(
        "usage: mmxctl [--socket PATH | --encoded | --langd] [--json] WHAT\n"
        "  WHAT is status, rooms, pools, peers, sequences, conf or stats;\n"
        "  doctor checks what an engine of this user needs and prints one\n"
        "  line per check: ok, warn or fail, and what to do\n"
        "  --encoded       use /run/mmx/encoded.sock\n"
        "  --langd         use /run/mmx/langd.sock\n"
        "  --socket PATH   use the daemon's socket at PATH; default: that of\n"
        "                  the two above which exists (doctor: both)\n"
        "  --json          print an array of objects\n"
        "exit status: 0 success, 1 refused by the daemon or a check failed,\n"
        "2 no daemon, 64 bad command line\n",
        to);
}

static bool ask(int s, const char *what, bool json)
{
    struct local_msg m[3];

    ctl_hello(&m[0]);
    m[1] = (struct local_msg){.type = LOCAL_QUERY};
    m[1].query.json = json;
    m[1].query.what = span_str(what);
    m[2] = (struct local_msg){.type = LOCAL_BYE};
    return ctl_send(s, m, 3);
}

static int refused(enum err err, struct span text)
{
    fprintf(stderr, "mmxctl: %s: %.*s\n", err_name(err), (int)text.len,
        (const char *)text.p);
    return CTL_REFUSED;
}

/* Returns the exit status, or -1: more packets follow. */
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
    return fflush(stdout) == 0 ? 0 : CTL_REFUSED;
}

static int print_answer(int s)
{
    static uint8_t packet[LOCAL_PACKET_MAX];

    for (;;) {
        int fd; /* of WELCOME's cells, which are not asked for */
        ssize_t n = ctl_recv(s, packet, &fd);
        struct reader r = reader_of(packet, n > 0 ? (size_t)n : 0);
        struct local_msg m;
        enum err e;

        if (fd >= 0)
            close(fd);
        if (n <= 0) {
            fprintf(stderr, "mmxctl: %s\n",
                n == 0 ? "the daemon closed the connection" : strerror(errno));
            return CTL_REFUSED;
        }
        while ((e = local_get(&r, &m)) != ERR_NOT_READY) {
            int status = e == OK ? take(&m) : -1;

            if (status >= 0)
                return status;
        }
    }
}

static int show(const char *path, const char *what, bool json)
{
    int status = CTL_REFUSED, s = ctl_connect(path);

    if (s < 0) {
        fprintf(stderr, "mmxctl: %s: %s\n", path,
            errno == ECONNREFUSED ? "no daemon is listening" : strerror(errno));
        return CTL_NO_DAEMON;
    }
    /* A daemon that has no place says so before it reads. */
    if (ask(s, what, json) || errno == EPIPE)
        status = print_answer(s);
    else
        fprintf(stderr, "mmxctl: %s: %s\n", path, strerror(errno));
    close(s);
    return status;
}

static const char *const sockets[] = {CTL_ENCODED, CTL_LANGD};

/* Checks the daemon at the path, or without one every daemon that has a socket
 * here. No socket at all is a finding, too. */
static int doctor(const char *path, bool json)
{
    struct report r = {.json = json};
    uint32_t visited = 0;

    for (int i = 0; i < 2 && !path; i++) {
        if (access(sockets[i], F_OK) != 0)
            continue;
        if (visited++ && !json)
            putchar('\n');
        doctor_daemon(&r, sockets[i]);
    }
    if (!visited)
        doctor_daemon(&r, path ? path : CTL_LANGD);
    report_end(&r);
    return r.count[FAIL] ? CTL_REFUSED : CTL_SHOWN;
}

static const char *find_socket(void)
{
    const char *found = NULL;

    for (int i = 0; i < 2; i++) {
        if (access(sockets[i], F_OK) != 0)
            continue;
        if (found) {
            fputs("mmxctl: both daemons run here: use --encoded or --langd\n",
                stderr);
            return NULL;
        }
        found = sockets[i];
    }
    if (!found)
        fputs("mmxctl: no socket in /run/mmx: use --socket PATH\n", stderr);
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
    int c;

    while ((c = getopt_long(argc, argv, "s:jh", longs, NULL)) != -1) {
        if (c == 's')
            path = optarg;
        else if (c == 'e')
            path = CTL_ENCODED;
        else if (c == 'l')
            path = CTL_LANGD;
        else if (c == 'j')
            json = true;
        else if (c == 'v')
            return printf("mmxctl %s\n", MMX_VERSION) < 0;
        else
            return usage(c == 'h' ? stdout : stderr), c == 'h' ? 0 : CTL_USAGE;
    }
    if (optind + 1 != argc)
        return usage(stderr), CTL_USAGE;
    if (!strcmp(argv[optind], "doctor"))
        return doctor(path, json);
    if (!path && !(path = find_socket()))
        return CTL_NO_DAEMON;
    return show(path, argv[optind], json);
}
