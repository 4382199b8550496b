/* trace.c - mmxctl trace: reads the flight recorders of the local daemons, or
 * recordings of other hosts, and prints the happenings in one order. Blocking,
 * one thread.
 *
 * Rejected: a report that the daemon pushes. Asking five times a second costs
 * the daemon less than state for a connection. */
#include "trace.h"

#include "base/check.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FOLLOW_MS 200

static int complain(const char *about, const char *why)
{
    fprintf(stderr, "mmxctl: %s: %s\n", about, why);
    return CTL_REFUSED;
}

/* Asks for the happenings that the side lacks, up to now: a busy daemon always
 * has more. Returns an exit status. */
static int ask(struct ctl *c, struct side *s, uint32_t number)
{
    int64_t now_ns = (int64_t)clock_ns();
    size_t before;

    do {
        struct local_msg m;
        char what[48];

        snprintf(what, sizeof(what), "trace %llu", (unsigned long long)s->next);
        before = s->count;
        if (!ctl_ask(c, what, &m)) {
            char why[REFUSAL_TEXT] = "";

            if (m.type == LOCAL_REPORT)
                text_copy(m.report.text, why, sizeof(why));
            fprintf(stderr, "mmxctl: %s: %s: %s\n", s->name,
                err_name((enum err)(
                    m.type == LOCAL_REPORT ? m.report.err : ERR_DAEMON_LOST)),
                why);
            return CTL_REFUSED;
        }
        if (!trace_take(s, number, c->got))
            return complain(s->name, "a report that cannot be read");
    } while (s->count > before && s->all[s->count - 1].ns < now_ns);
    return CTL_SHOWN;
}

/* showing */

static bool shown(const struct asked *a, const struct happening *h)
{
    return !a->of_room || (h->of_room && (h->room & a->digits) == a->room);
}

bool trace_room(const char *word, struct asked *a)
{
    char *end;

    a->of_room = true;
    a->digits = UINT64_MAX;
    if (strncmp(word, "..", 2) != 0)
        return text_number(span_str(word), UINT64_MAX, &a->room);
    a->digits = UINT32_MAX;
    a->room = strtoull(word + 2, &end, 16);
    return strspn(word + 2, "0123456789abcdef") == 8 && !*end;
}

static int write_file(const struct trace *t, const struct asked *a)
{
    uint64_t room = a->room;

    for (size_t i = 0; i < t->count && a->of_room; i++)
        if (shown(a, t->all[i]))
            room = t->all[i]->room;
    if (a->perfetto &&
        !trace_perfetto(t, a->of_room ? &room : NULL, a->perfetto))
        return complain(a->perfetto, strerror(errno));
    if (a->save && t->sides_count != 1)
        return complain(a->save, "holds one daemon: use --encoded, --langd or "
                                 "--socket");
    if (a->save && !trace_save(&t->sides[0], a->save))
        return complain(a->save, strerror(errno));
    return CTL_SHOWN;
}

/* Prints the selected happenings in order. Returns an exit status. */
static int print(struct trace *t, const struct asked *a)
{
    size_t printed = 0;

    for (size_t i = 0; i < t->count && !a->json; i++)
        if (shown(a, t->all[i]))
            trace_widen(t, t->all[i]);
    if (a->of_room) /* the same in all lines */
        t->room_width = 0;
    for (size_t i = 0; i < t->count; i++) {
        const struct happening *h = t->all[i];

        if (!shown(a, h))
            continue;
        printed++;
        if (t->from_ns == INT64_MIN)
            t->from_ns = h->ns;
        if (a->json)
            trace_json(t, h);
        else
            trace_line(t, h, t->from_ns);
    }
    if (a->json && !a->follow)
        rows_json_end(&t->json);
    if (fflush(stdout) != 0)
        return CTL_REFUSED;
    if (a->of_room && !printed && !a->follow)
        return complain("trace", "no happening of this room is remembered "
                                 "here, or it is another user's");
    return CTL_SHOWN;
}

/* Prints, or writes files if requested. */
static int show(struct trace *t, const struct asked *a)
{
    if (!trace_join(t))
        return complain("trace", strerror(ENOMEM));
    if (a->perfetto || a->save)
        return write_file(t, a);
    return print(t, a);
}

/* Forgets the printed happenings. */
static void clear(struct trace *t)
{
    for (uint32_t s = 0; s < t->sides_count; s++)
        t->sides[s].count = 0;
}

static int read_all(struct trace *t, const struct host *h)
{
    int status = CTL_SHOWN;

    for (uint32_t s = 0; s < h->count && status == CTL_SHOWN; s++)
        status = ask(h->sides[s].c, &t->sides[s], s);
    if (status == CTL_SHOWN && !trace_pair(t))
        status = complain("trace", strerror(ENOMEM));
    return status;
}

int trace_live(const struct host *h, const struct asked *a)
{
    const struct timespec pause = {0, FOLLOW_MS * (long)NS_PER_MS};
    struct trace t = {.from_ns = INT64_MIN, .sides_count = h->count};
    int status;

    CHECK(h->count > 0 && h->count <= SIDES_MAX, "%u daemons", h->count);
    for (uint32_t i = 0; i < h->count; i++) {
        t.sides[i].role = h->sides[i].role;
        snprintf(
            t.sides[i].name, sizeof(t.sides[i].name), "%s", h->sides[i].name);
    }
    status = read_all(&t, h);
    if (status == CTL_SHOWN)
        status = show(&t, a);
    while (status == CTL_SHOWN && a->follow) {
        nanosleep(&pause, NULL);
        clear(&t);
        status = read_all(&t, h);
        if (status == CTL_SHOWN)
            status = show(&t, a);
    }
    trace_free(&t);
    return status;
}

static void say_clocks(const struct trace *t, const struct clocks *c)
{
    bool ahead = c->offset_ns >= 0;
    int64_t by = ahead ? c->offset_ns : -c->offset_ns;

    fprintf(stderr,
        "mmxctl: the clock of %s is %lld.%06lld ms %s that of %s, within "
        "%lld.%03lld us (messages: %u there, %u back)%s\n",
        t->sides[1].name, (long long)(by / 1000000), (long long)(by % 1000000),
        ahead ? "ahead of" : "behind", t->sides[0].name,
        (long long)(c->within_ns / 1000), (long long)(c->within_ns % 1000),
        c->there, c->back,
        c->drifted ? "; they drift, no one figure fits all messages" : "");
}

int trace_merge(const char *const *files, const struct asked *a)
{
    struct trace t = {.sides_count = 2, .from_ns = INT64_MIN};
    struct clocks clocks;
    int status = CTL_SHOWN;

    for (uint32_t i = 0; i < 2 && status == CTL_SHOWN; i++)
        if (!trace_load(&t.sides[i], i, files[i]))
            status = complain(files[i], "no recording of mmxctl trace --save");
    if (status == CTL_SHOWN && !trace_pair(&t))
        status = complain("trace", strerror(ENOMEM));
    if (status == CTL_SHOWN && !trace_clocks(&t, &clocks))
        status = complain(
            files[1], "no messages of both directions are in both recordings");
    if (status == CTL_SHOWN) {
        say_clocks(&t, &clocks);
        for (size_t i = 0; i < t.sides[1].count; i++)
            t.sides[1].all[i].ns -= clocks.offset_ns;
        status = show(&t, a);
    }
    trace_free(&t);
    return status;
}
