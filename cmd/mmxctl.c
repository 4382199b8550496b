/* mmxctl - shows the state of the daemons of a host: connects to a socket like
 * an engine, sends HELLO and QUERY, prints the REPORTs as a table or as JSON;
 * or, as doctor, checks what an engine needs to use the daemons. Blocking, one
 * thread. The rest is in cmd/ctl. */
#include "ctl/ctl.h"

#include "base/check.h"
#include "base/text.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECONDS_MAX (24 * 3600)

static void usage(FILE *to)
{
    fputs("usage: mmxctl [--socket PATH | --encoded | --langd] [--json] "
          "[WHAT]\n"
          "Without WHAT: health, rates, the slowest rooms and the last that\n"
          "failed. WHAT is one of\n",
        to);
#define SHOW(NAME, word, meaning) fprintf(to, "  %-15s %s\n", word, meaning);
#include "wire/show.def"
    fputs(
        "  top             rooms and bytes a second of pools and peers, the\n"
        "                  busiest first\n"
        "  doctor          check what an engine of this user needs: one line\n"
        "                  per check, ok, warn or fail, and what to do\n"
        "  trace ROOM      what happened to one room\n"
        "  keygen FILE     write a new key, for control.keys; a file that\n"
        "                  exists stays as it is\n"
        "or, for root and the daemon's own user,\n",
        to);
#define COMMAND(name, word, takes, meaning)                                    \
    fprintf(to, "  %-15s %s\n", word, meaning);
#include "wire/command.def"
    fputs(
        "A newer daemon may know more words: ask it with its own mmxctl.\n"
        "options:\n"
        "  --encoded       use /run/mmx/encoded.sock\n"
        "  --langd         use /run/mmx/langd.sock\n"
        "  --socket PATH   use the daemon's socket at PATH, or those of two;\n"
        "                  default: reports are of the daemons that listen at\n"
        "                  the two above, and an order goes to the only one\n"
        "  --config FILE   doctor: the daemon's configuration, to be held\n"
        "                  against its unit, and why it does not start;\n"
        "                  default: those in /etc/mmx\n"
        "  --json          print an array of objects, each with the name of\n"
        "                  its daemon, unless one is chosen\n"
        "  --public        keygen: print the public half of the key in FILE,\n"
        "                  for control.identities\n"
        "  --watch SECONDS  reports, health, top: show them again and again\n"
        "  --live          health: 0 also while it lives and is not ready\n"
        "  --wait SECONDS  health: ask again until it is well, drain: show\n"
        "                  what is left until no room is; at most so long\n"
        "  --version       print the version and exit\n"
        "  --help          print this and exit\n"
        "exit status: 0 success (health: ready), 1 refused by the daemon or a\n"
        "check failed (health: not ready), 2 no daemon, or none that answers\n"
        "in 10 s (health: 1 s), 64 bad command line; conf-diff: 0 nothing\n"
        "would change, 1 something, 2 trouble\n",
        to);
}

/* Prints what is wrong with the command line. */
static int misused(const char *why)
{
    CHECK(why[0], "a command line is wrong for no reason");
    fprintf(stderr, "mmxctl: %s; mmxctl --help says what there is\n", why);
    return CTL_USAGE;
}

enum asking { NEITHER, OWN, REPORT, ORDER, ORDER_WITH_WORDS };

/* Returns what this word asks for: a daemon's report or order, or what mmxctl
 * does itself. */
static enum asking asking_of(const char *word)
{
    static const struct {
        const char *word;
        enum asking is;
    } all[] = {
#define SHOW(NAME, word, meaning) {word, REPORT},
#include "wire/show.def"
#define COMMAND(name, word, takes, meaning)                                    \
    {word, takes ? ORDER_WITH_WORDS : ORDER},
#include "wire/command.def"
        {"top", OWN}, {"doctor", OWN}};

    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (!strcmp(word, all[i].word))
            return all[i].is;
    return NEITHER;
}

/* Prints the daemons' reports, or sends an order to one daemon. what: the word
 * and its arguments. Reports about the configuration come from the sockets for
 * orders, but from both daemons, since they change nothing. */
static int ask(const char *word, const char *what, const struct asked *a)
{
    char orders[HOST_MAX][SOCKET_PATH_MAX];
    const char *here[HOST_MAX];
    struct host h;
    uint32_t count = host_sockets(a, false, here);
    int status;
    bool order = asking_of(word) >= ORDER;

    if (count == 0)
        return CTL_NO_DAEMON;
    if (count > 1 && order && strncmp(word, "conf", 4) != 0) {
        fprintf(stderr,
            "mmxctl: both daemons run here: use --encoded or --langd with "
            "%s\n",
            what);
        return CTL_USAGE;
    }
    for (uint32_t i = 0; i < count && order; i++)
        here[i] = ctl_orders(here[i], orders[i]);
    status = host_open(&h, here, count, a->path && !a->also);
    if (status != CTL_SHOWN)
        return status;
    status = !strcmp(word, "top")     ? top(&h, a)
             : !strcmp(word, "trace") ? trace_live(&h, a)
             : strstr(word, "drain")  ? drain(h.sides[0].c, word, a)
                                      : host_show(&h, what, a);
    host_close(&h);
    return status;
}

static const char *const files[] = {
    "/etc/mmx/mmx-encoded.yaml", "/etc/mmx/mmx-langd.yaml"};

/* Checks the daemon at the path, or without a path every daemon with a socket
 * here; having no socket is a finding too. Then checks what the units permit,
 * for the file or, without one, for those in /etc/mmx. */
static int doctor(const char *path, const char *file, bool json)
{
    struct findings r = {.as_json = json};
    struct seen seen[3] = {0}; /* as ctl_sockets; last: the one at the path */
    uint32_t visited = 0;

    for (int i = 0; i < 2 && !path; i++) {
        if (access(ctl_sockets[i], F_OK) != 0)
            continue;
        if (visited++ && !json)
            putchar('\n');
        doctor_daemon(&r, ctl_sockets[i], &seen[i]);
    }
    if (!visited)
        doctor_daemon(&r, path ? path : CTL_LANGD, &seen[2]);
    /* A host with one daemon has the other's file too. */
    for (int i = 0; i < 2; i++)
        seen[i].absent = seen[!i].role && access(ctl_sockets[i], F_OK) != 0;
    seen[2].absent = seen[0].role || seen[1].role;
    if (file)
        doctor_unit(&r, file, &seen[2]);
    for (int i = 0; i < 2 && !file && !path; i++)
        if (access(files[i], R_OK) == 0) {
            r.about = ctl_sockets[i];
            doctor_unit(&r, files[i], &seen[i]);
        }
    findings_end(&r);
    return r.count[FAIL] ? CTL_REFUSED : CTL_SHOWN;
}

/* Joins the words with spaces: a report's name, or a command with its
 * arguments; the room of a trace goes into *a. Returns why they are neither, or
 * NULL. The words of a newer daemon are refused, too, so that a wrong word
 * never reaches a daemon. */
static const char *join(char **words, struct asked *a, char *out, size_t size)
{
    enum asking is = asking_of(words[0]);
    size_t n = 0;

    if (is == NEITHER)
        return "there is no such word";
    if (!strcmp(words[0], "trace") && words[1]) {
        if (words[2] || !trace_room(words[1], a))
            return "trace takes the number of a room or ..DIGITS as in the log";
        words[1] = NULL;
    }
    if (words[1] && is != ORDER_WITH_WORDS)
        return "this takes no more words";
    for (uint32_t i = 0; words[i]; i++) {
        int more =
            snprintf(out + n, size - n, "%s%s", i > 0 ? " " : "", words[i]);

        if (more < 0 || (size_t)more >= size - n)
            return "the words are too long";
        n += (size_t)more;
    }
    return NULL;
}

/* Returns which option does not go with the word ("": there is none), or NULL.
 */
static const char *astray(const char *word, const struct asked *a)
{
    bool healthy = !strcmp(word, "health"), tops = !strcmp(word, "top");
    bool again = asking_of(word) == REPORT && strcmp(word, "trace") != 0;

    return a->public && strcmp(word, "keygen")
               ? "--public goes with keygen FILE"
           : a->live && !healthy ? "--live goes with health"
           : a->waits && !healthy && strcmp(word, "drain")
               ? "--wait goes with health and drain"
           : a->file && strcmp(word, "doctor") ? "--config goes with doctor"
           : a->watch_s && !tops && !again
               ? "--watch goes with reports, health and top"
           : a->json && (!word[0] || tops)
               ? "--json goes with reports: pools, peers, stats"
               : NULL;
}

/* Checks the daemons that the command line names, or without one each with a
 * socket here. */
static int healthy(const struct asked *a)
{
    const char *here[HOST_MAX];
    uint32_t count = host_sockets(a, true, here);

    return count > 0 ? health(here, count, a) : CTL_NO_DAEMON;
}

/* Takes the seconds of --wait, or of --watch. */
static bool take_seconds(int c, const char *text, struct asked *a)
{
    a->waits |= c == 'w';
    return text_number(span_str(text), SECONDS_MAX,
               c == 'w' ? &a->wait_s : &a->watch_s) &&
           (c == 'w' || a->watch_s > 0);
}

/* Reads the options, up to the first word. Returns an exit status, or -1 to
 * continue. */
static int parse(int argc, char **argv, struct asked *a)
{
    const struct option longs[] = {{"socket", required_argument, NULL, 's'},
        {"config", required_argument, NULL, 'c'},
        {"encoded", no_argument, NULL, 'e'}, {"langd", no_argument, NULL, 'l'},
        {"json", no_argument, &a->json, 1},
        {"public", no_argument, &a->public, 1},
        {"live", no_argument, &a->live, 1},
        {"watch", required_argument, NULL, 'W'},
        {"wait", required_argument, NULL, 'w'},
        {"version", no_argument, NULL, 'v'}, {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    int c;

    while ((c = getopt_long(argc, argv, "s:jh", longs, NULL)) != -1) {
        if (c == 0) /* getopt has set it */
            continue;
        if (c == 's')
            a->also = a->path, a->path = optarg;
        else if (c == 'c')
            a->file = optarg;
        else if (c == 'e' || c == 'l')
            a->path = c == 'e' ? CTL_ENCODED : CTL_LANGD;
        else if (c == 'j')
            a->json = 1;
        else if (c == 'v')
            return printf("mmxctl %s\n", MMX_VERSION) < 0;
        else if (c == 'h')
            return usage(stdout), 0;
        else if (c == '?') /* getopt has printed it */
            return misused("that is no option");
        else if (!take_seconds(c, optarg, a))
            return misused(
                "--watch and --wait take whole seconds, a day at most");
    }
    return -1;
}

/* Returns the exit status as diff does: 0 same, 1 different, 2 trouble. */
static int as_diff(int status)
{
    return status == CTL_SHOWN ? 0 : status == CTL_DIFFERS ? 1 : 2;
}

int main(int argc, char **argv)
{
    struct asked a = {0};
    char what[256];
    const char *word, *why;
    int status = parse(argc, argv, &a);

    if (status >= 0)
        return status;
    a.brief = optind == argc;
    word = a.brief ? "" : argv[optind];
    why = astray(word, &a);
    if (why)
        return misused(why);
    if (a.brief)
        return ask("top", "top", &a);
    if (!strcmp(word, "keygen"))
        return argc - optind != 2 ? misused("keygen takes one FILE")
               : a.public         ? keygen_public(argv[optind + 1])
                                  : keygen(argv[optind + 1]);
    why = join(argv + optind, &a, what, sizeof(what));
    if (why)
        return misused(why);
    if (!strcmp(what, "doctor"))
        return doctor(a.path, a.file, a.json);
    if (!strcmp(what, "health"))
        return healthy(&a);
    status = ask(word, what, &a);
    return strcmp(word, "conf-diff") ? status : as_diff(status);
}
