/* mmx-otel - sends spans of rooms to an OpenTelemetry collector: follows the
 * flight recorders of the daemons of this host, as mmxctl trace reads them, and
 * posts OTLP over HTTP. A separate program, so that the daemons link neither
 * HTTP nor protobuf. One thread: it reads every POLL_MS, and waits meanwhile
 * for the collector's answer.
 *
 * Rejected: finding how far two hosts' clocks are apart. Each host says its own
 * time, which NTP or PTP keeps; spans of one request are joined by its trace.
 */
#include "otel/otel.h"

#include "base/check.h"
#include "base/text.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { POLL_MS = 200, PAUSE_MAX_S = 30, SAY_S = 60, FLUSH_S = 3 };
/* A daemon that hangs delays all others by HANG_S, and is then left alone, for
 * longer each time. */
enum { HANG_S = 1, HANG_PAUSE_MAX_S = 8 };
enum { CANNOT_START = 1 };

/* A daemon that is followed. */
struct followed {
    const char *path;           /* NULL: no daemon is followed */
    struct ctl *c;              /* NULL: not connected, until again_ns */
    uint64_t epoch;             /* of the daemon's present run */
    uint64_t again_ns, pause_s; /* time of the next connect; the last pause */
    bool away;                  /* the daemon is away, as a line has said */
    struct happenings got;      /* from the last report */
    uint64_t lost; /* happenings that were overwritten before they were read */
    struct lives lives;
};

struct otel {
    struct followed of[HOST_MAX];
    struct post post;
    /* turn: daemon of the last request; batch: its spans */
    uint32_t turn, batch;
    struct lives *from;         /* that daemon's spans */
    uint64_t again_ns, pause_s; /* time of the next try; the last pause */
    bool failing;               /* the last request failed */
    uint64_t sent, refused;
    /* time of the last line about losses; the losses then */
    uint64_t said_ns, said;
};

static void usage(FILE *to)
{
    fputs(
        "usage: mmx-otel [options]\n"
        "  --endpoint URL     send to the collector there, at /v1/traces;\n"
        "                     default: OTEL_EXPORTER_OTLP_ENDPOINT, else\n"
        "                     http://localhost:4318\n"
        "  --encoded PATH     follow only the daemons that are named, at\n"
        "                     their sockets; default: both, in /run/mmx\n"
        "  --langd PATH       the same\n"
        "  --version          print the version and exit\n"
        "  --help             print this and exit\n"
        "It sends spans of the rooms whose engine gave a trace context that\n"
        "is sampled, when each has ended. Daemons show it the rooms of its\n"
        "own user; to root and to their own user all. A collector that is\n"
        "away is tried again; 8192 spans of each daemon wait meanwhile, more\n"
        "are dropped and counted.\n"
        "exit status: 0 success, 1 cannot start, 64 bad command line\n",
        to);
}

/* reading */

static int64_t unix_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * (int64_t)NS_PER_S + t.tv_nsec;
}

/* Ends a connection; the next one is tried in a second, or later if the daemon
 * hangs: it records nothing meanwhile. */
static void leave(struct followed *f, const char *why)
{
    uint64_t most = f->c || errno == EAGAIN ? HANG_PAUSE_MAX_S : 1;

    if (!f->away)
        fprintf(stderr, "mmx-otel: %s: %s; tried again\n", f->path, why);
    f->away = true;
    f->pause_s = min_u64(2 * f->pause_s + 1, most);
    if (f->c)
        ctl_close(f->c);
    f->c = NULL;
    f->again_ns = clock_ns() + f->pause_s * NS_PER_S;
}

/* Connects; begins anew if the daemon is another run. */
static bool join(struct followed *f)
{
    struct local_msg m = {0};
    struct lives *l = &f->lives;

    if (clock_ns() < f->again_ns)
        return false;
    f->c = ctl_open(f->path, HANG_S);
    if (!f->c || !ctl_hello(f->c, 1, &m) || m.type != LOCAL_WELCOME) {
        leave(f, f->c ? "does not answer" : strerror(errno));
        return false;
    }
    if (m.welcome.epoch != f->epoch) {
        memset(l->at, 0, sizeof(l->at));
        f->got.next = 0;
    }
    f->epoch = m.welcome.epoch;
    text_copy(m.welcome.name, l->name, sizeof(l->name));
    snprintf(
        l->service, sizeof(l->service), "mmx-%s", role_name(m.welcome.role));
    fprintf(stderr, "mmx-otel: follows %s %s\n", l->service, l->name);
    f->away = false;
    return true;
}

/* Takes the happenings up to now. */
static void follow(struct followed *f)
{
    int64_t now_ns = (int64_t)clock_ns();
    struct happenings *g = &f->got;
    bool more = true;

    if (!f->path || (!f->c && !join(f)))
        return;
    f->lives.unix_ns = unix_ns() - now_ns;
    while (more) {
        uint64_t next = g->next;
        struct local_msg m;
        bool whole = trace_ask(f->c, g, 0, &m);

        /* g->next is behind all of them, even if the report was cut off. */
        for (size_t i = 0; i < g->count; i++)
            spans_take(&f->lives, &g->all[i]);
        more = whole && g->count > 0 && g->all[g->count - 1].ns < now_ns;
        if (g->count > 0 && next > 0 && g->all[0].number > next)
            f->lost += g->all[0].number - next;
        g->count = 0;
        if (!whole)
            leave(f, "does not answer");
        else
            f->pause_s = 0;
    }
}

/* sending */

/* Begins a request, of the daemons by turns. False: no span waits. */
static bool send_some(struct otel *o)
{
    for (uint32_t i = 0; i < HOST_MAX; i++) {
        o->turn = (o->turn + 1) % HOST_MAX;
        o->from = &o->of[o->turn].lives;
        o->batch =
            (uint32_t)min_u64(o->from->count - o->from->first, BATCH_MAX);
        if (o->batch > 0) {
            post_send(&o->post, otlp_pack(o->from, o->batch, o->post.body));
            return true;
        }
    }
    return false;
}

/* Takes the answer for a batch. */
static void answered(struct otel *o, enum posted is)
{
    struct span said = span_of(o->post.answer, o->post.answer_len);
    uint64_t lost =
        is == POST_DONE ? min_u64(otlp_rejected(said), o->batch) : o->batch;

    CHECK(o->batch <= o->from->count - o->from->first, "%u spans were sent",
        o->batch);
    if (is != POST_DONE && !o->failing)
        fprintf(stderr, "mmx-otel: %s: %s; %s\n", o->post.shown, o->post.why,
            is == POST_LATER ? "tried again" : "spans are refused");
    o->failing = is != POST_DONE;
    if (is == POST_LATER) {
        o->pause_s = min_u64(max_u64(2 * o->pause_s, 1), PAUSE_MAX_S);
        o->again_ns = clock_ns() + o->pause_s * NS_PER_S;
        return;
    }
    o->pause_s = 0;
    o->refused += lost;
    o->sent += o->batch - lost;
    o->from->first += o->batch;
}

/* Logs what was lost if that has grown, at most once a minute; last: at the
 * end. */
static void say(struct otel *o, bool last)
{
    uint64_t wait = 0, gone[4] = {0, o->refused}, all;

    for (uint32_t i = 0; i < HOST_MAX; i++) {
        const struct lives *l = &o->of[i].lives;

        wait += l->count - l->first;
        gone[0] += l->dropped;
        gone[2] += o->of[i].lost + l->forgotten;
        gone[3] += l->hidden;
    }
    all = gone[0] + gone[1] + gone[2] + gone[3];
    if (!last && (all == o->said || clock_ns() < o->said_ns + SAY_S * NS_PER_S))
        return;
    o->said = all;
    o->said_ns = clock_ns();
    fprintf(stderr,
        "mmx-otel: spans: %llu sent, %llu wait, %llu dropped, %llu refused; "
        "not seen: %llu happenings or rooms, %llu contexts of other users\n",
        (unsigned long long)o->sent, (unsigned long long)wait,
        (unsigned long long)gone[0], (unsigned long long)gone[1],
        (unsigned long long)gone[2], (unsigned long long)gone[3]);
}

/* Exchanges requests and answers for so long. False: before that the
 * descriptor can be read; -1: nothing is left to send or try again. */
static bool exchange(struct otel *o, int fd, uint64_t for_ns)
{
    uint64_t now = clock_ns(), until_ns = now + for_ns;
    struct signalfd_siginfo info;

    while (now < until_ns) {
        enum posted is;

        if (!o->post.busy && (now < o->again_ns || !send_some(o)) && fd < 0)
            return false;
        is = post_wait(&o->post, fd, (int)((until_ns - now) / NS_PER_MS) + 1);
        if (is != POST_WAITS)
            answered(o, is);
        if (fd >= 0 && read(fd, &info, sizeof(info)) > 0)
            return false;
        now = clock_ns();
    }
    return true;
}

static void run(struct otel *o, int ends)
{
    bool on = true;

    while (on) {
        on = exchange(o, ends, POLL_MS * NS_PER_MS);
        for (uint32_t i = 0; i < HOST_MAX; i++)
            follow(&o->of[i]);
        say(o, false);
    }
    exchange(o, -1, FLUSH_S * NS_PER_S);
    say(o, true);
}

static int start(struct otel *o, const char *endpoint)
{
    int ends = ctl_ends(), n = (int)strlen(endpoint);
    char url[1024];

    n -= n > 0 && endpoint[n - 1] == '/';
    snprintf(url, sizeof(url), "%.*s/v1/traces", n, endpoint);
    if (ends < 0 || !post_open(&o->post, url)) {
        fputs("mmx-otel: endpoint: expected a URL of http or https\n", stderr);
        return CANNOT_START;
    }
    fprintf(stderr, "mmx-otel: sends to %s\n", o->post.shown);
    run(o, ends);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"endpoint", required_argument, NULL, 'E'},
        {"encoded", required_argument, NULL, 0},
        {"langd", required_argument, NULL, 1},
        {"version", no_argument, NULL, 'v'}, {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    const char *endpoint = getenv("OTEL_EXPORTER_OTLP_ENDPOINT");
    static struct otel o;
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'v')
            return printf("mmx-otel %s\n", MMX_VERSION) < 0;
        if (c == 'h')
            return usage(stdout), 0;
        if (c == '?')
            return usage(stderr), CTL_USAGE;
        if (c == 'E')
            endpoint = optarg;
        else
            o.of[c].path = optarg;
    }
    if (optind != argc)
        return usage(stderr), CTL_USAGE;
    if (!o.of[0].path && !o.of[1].path) {
        o.of[0].path = CTL_ENCODED;
        o.of[1].path = CTL_LANGD;
    }
    return start(
        &o, endpoint && endpoint[0] ? endpoint : "http://localhost:4318");
}
