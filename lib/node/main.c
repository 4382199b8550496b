/* main.c - from a command line to a running node: options, configuration,
 * exit status. The main thread; the only place with process-wide state (the
 * node that a failed CHECK prints). Rejected: subcommands. A daemon does one
 * thing; mmxctl asks a running one. */
#include "node/main.h"

#include "base/check.h"
#include "base/log.h"
#include "core/share.h"
#include "wire/wire.h"
#include "io/notify.h"
#include "io/data.h"
#include "node/admin/admin.h"
#include "io/host.h"
#include "node/loop/node.h"

#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { EXIT_USAGE = 64, EXIT_CONFIG = 78, SETS_MAX = 64 };

struct options {
    struct conf_source from;
    const char *sets[SETS_MAX];
    int check, print, comments; /* 1: given */
};

/* Large; they live as long as the process. given: before conf_finish */
static struct conf conf, given;
static struct node *running;

static void print_running(void)
{
    if (running)
        node_print(running);
}

static void usage(FILE *to, uint8_t role)
{
    fprintf(to,
        "usage: mmx-%s [options]\n"
        "  --config FILE      configuration (default /etc/mmx/mmx-%s.yaml)\n"
        "  --set KEY=VALUE    override one key of it; may be repeated\n"
        "  --check-config     check the configuration and exit; FILE may "
        "follow\n"
        "  --print-config     print the effective configuration and exit;\n"
        "                     with --comments as given, and every key's "
        "meaning\n"
        "  --version          print the version and exit\n"
        "  --help             print this and exit\n"
        "exit status: 0 success, 1 cannot start, 64 bad command line,\n"
        "78 bad configuration\n",
        role_name(role), role_name(role));
}

/* Returns -1 if the daemon is to start, else the exit status. */
static int parse(uint8_t role, int argc, char **argv, struct options *o)
{
    const struct option longs[] = {{"config", required_argument, NULL, 'c'},
        {"set", required_argument, NULL, 's'},
        {"check-config", no_argument, &o->check, 1},
        {"print-config", no_argument, &o->print, 1},
        {"comments", no_argument, &o->comments, 1},
        {"version", no_argument, NULL, 'v'}, {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    int c;

    while ((c = getopt_long(argc, argv, "c:s:h", longs, NULL)) != -1) {
        switch (c) {
        case 'c':
            o->from.file = optarg;
            break;
        case 's':
            if (o->from.sets_count == SETS_MAX) {
                fprintf(stderr, "--set may be given %d times\n", SETS_MAX);
                return EXIT_USAGE;
            }
            o->sets[o->from.sets_count++] = optarg;
            break;
        case 0: /* getopt has set it */
            break;
        case 'v':
            printf("mmx-%s %s\n", role_name(role), MMX_VERSION);
            return 0;
        case 'h':
            usage(stdout, role);
            return 0;
        default:
            usage(stderr, role);
            return EXIT_USAGE;
        }
    }
    if (o->check && optind == argc - 1)
        o->from.file = argv[optind++];
    if (optind == argc)
        return -1;
    fprintf(stderr, "unexpected argument `%s`\n", argv[optind]);
    usage(stderr, role);
    return EXIT_USAGE;
}

/* Prints the values in force; with `comments` the given ones, and what each key
 * means: the files in conf/ are made that way. */
static int print_conf(bool comments)
{
    size_t cap = 1u << 20;
    uint8_t *text = malloc(cap);
    struct writer w = writer_of(text, cap);
    bool ok = text && conf_print(comments ? &given : &conf, comments, &w);

    if (ok)
        ok = fwrite(text, 1, w.len, stdout) == w.len && fflush(stdout) == 0;
    free(text);
    return ok ? 0 : 1;
}

static void start_log(uint8_t role)
{
    static char name[16]; /* stays valid for the log */

    snprintf(name, sizeof(name), "mmx-%s", role_name(role));
    /* The words of the key `log` have the order of the levels. */
    log_init(name, (enum log_level)conf.log_level);
}

/* Frees the node. node_free restores the default signal handling; signals are
 * blocked meanwhile, so that a second one cannot kill an orderly shutdown. */
static void end(void)
{
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    node_free(&running);
}

/* Returns the descriptors that the configured limits may need: for each engine
 * its socket, its cells and its process; for each peer those of ZMQ and of the
 * shards, and as many again for connections that have not greeted yet. Other
 * strangers (io/strangers.h) use the rest. */
static uint64_t descriptors_needed(void)
{
    uint64_t streams = data_streams(
        (uint32_t)conf.transfer_streams, (uint32_t)conf.transfer_shards);

    return 64 + 3 * (uint64_t)share_connections(&conf) +
           8 * share_peers(&conf) +
           share_peers(&conf) * (2 * conf.transfer_shards + streams) +
           2 * conf.pools_count;
}

/* Enough for any configuration. With a hard limit a thousand times larger some
 * library may take memory for each descriptor. */
#define DESCRIPTORS_MAX (1u << 20)

/* Raises the soft limit, which protects programs that use select(), to the hard
 * limit. */
static void raise_descriptors(void)
{
    uint64_t need = descriptors_needed();
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) != 0)
        return;
    if (l.rlim_cur < DESCRIPTORS_MAX)
        l.rlim_cur = min_u64(l.rlim_max, DESCRIPTORS_MAX);
    if (setrlimit(RLIMIT_NOFILE, &l) != 0)
        (void)getrlimit(RLIMIT_NOFILE, &l);
    if (l.rlim_cur < need)
        log_warn("descriptors: RLIMIT_NOFILE is %llu, but limits.connections "
                 "%llu, limits.peers %llu and transfer.shards %llu may need "
                 "%llu; connections are refused when descriptors run out",
            (unsigned long long)l.rlim_cur,
            (unsigned long long)conf.limit_connections,
            (unsigned long long)conf.limit_peers,
            (unsigned long long)conf.transfer_shards, (unsigned long long)need);
}

/* A run of host_check(): its options, and the fatal findings so far. */
struct faults {
    const struct options *o;
    uint32_t fatal;
};

/* Reports a finding with the place of its key: to the log, or with
 * --check-config to stderr. */
static void say_fault(void *ud, const struct host_finding *f)
{
    struct faults *faults = ud;
    struct conf_error e = {0};

    snprintf(e.text, sizeof(e.text), "%s; %s", f->text, f->mend);
    load_place(&faults->o->from, &conf, &e);
    faults->fatal += f->fatal;
    if (!faults->o->check)
        log_line(f->fatal ? LOG_ERROR : LOG_WARN, "%s", e.text);
    else
        fprintf(stderr, "%s%s\n", e.text, f->fatal ? "" : " (a warning)");
}

/* Returns the number of reasons for which the daemon cannot start here. */
static uint32_t host_faults(const struct options *o)
{
    struct faults faults = {.o = o};

    host_check(&conf, !o->check, say_fault, &faults);
    return faults.fatal;
}

static int serve(uint8_t role, const struct options *o, struct keys *keys)
{
    struct node_opt opt = {.conf = &conf, .keys = keys, .from = &o->from};
    enum err e;

    start_log(role);
    if (host_faults(o)) {
        log_error("cannot start");
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    raise_descriptors();
    notify_init();
    opt.listen_fd = notify_listen_fd();
    opt.watchdog_ns = notify_watchdog_ns();
    check_set_printer(print_running);
    e = node_new(&running, &opt);
    if (e == ERR_ABORTED) {
        log_info("stopped before it was ready");
        return 0;
    }
    if (e != OK) {
        log_error(
            "cannot start%s", e == ERR_NO_BLOCKS ? ": out of memory" : "");
        return 1;
    }
    crash_watch(node_crash_view(running));
    node_run(running);
    crash_forget();
    end();
    return 0;
}

/* Checks a valid configuration against this host. */
static int check_host(const struct options *o)
{
    if (host_faults(o))
        return EXIT_CONFIG;
    printf("%s: good%s\n", o->from.file,
        conf.insecure ? ", but insecure: true lets any program that reaches a "
                        "port act as a daemon"
                      : "");
    return 0;
}

int daemon_main(uint8_t role, int argc, char **argv)
{
    char file[64];
    struct options o = {.from = {.file = file, .sets = o.sets}};
    struct keys *keys = NULL;
    struct conf_error e = {0};
    int status;

    snprintf(file, sizeof(file), "/etc/mmx/mmx-%s.yaml", role_name(role));
    status = parse(role, argc, argv, &o);
    if (status >= 0)
        return status;
    if (load_conf(&o.from, role, &conf, o.comments ? &given : NULL, &e) != OK) {
        fprintf(stderr, "%s\n", e.text);
        return EXIT_CONFIG;
    }
    if (o.print)
        return print_conf(o.comments);
    /* Other programs of this user must not read the daemon's keys and rows. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (load_keys(&o.from, &conf, geteuid(), getegid(), &keys, &e) != OK) {
        fprintf(stderr, "%s\n", e.text);
        return EXIT_CONFIG;
    }
    if (!o.check)
        return serve(role, &o, keys);
    keys_free(&keys);
    return check_host(&o);
}
