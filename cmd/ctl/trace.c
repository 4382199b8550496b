/* trace.c - mmxctl trace: reads the flight recorders of the local daemons, and
 * prints the happenings in the order of their times. Blocking, one thread.
 *
 * Rejected: showing recordings of other hosts, too, with a guess of how far the
 * clocks are apart. mmx-otel sends spans of both hosts, which a collector joins
 * by their trace. */
#include "trace.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Asks a daemon for its happenings, up to now: a busy one always has more.
 * Returns an exit status. */
static int ask(struct ctl *c, struct happenings *g, uint32_t side)
{
    int64_t now_ns = (int64_t)clock_ns();
    size_t before;

    g->next = 0;
    do {
        struct local_msg m;

        before = g->count;
        if (!trace_ask(c, g, side, &m))
            return ctl_failed(&m);
    } while (g->count > before && g->all[g->count - 1].ns < now_ns);
    return CTL_SHOWN;
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

/* Orders by time; happenings of one daemon stay in recorded order. */
static int by_time(const void *pa, const void *pb)
{
    const struct happening *a = pa, *b = pb;

    if (a->ns != b->ns)
        return a->ns < b->ns ? -1 : 1;
    if (a->side != b->side)
        return a->side < b->side ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Keeps those of the room that was asked for, and puts them into order. */
static void arrange(struct happenings *g, const struct asked *a)
{
    size_t kept = 0;

    for (size_t i = 0; i < g->count; i++)
        if (!a->of_room ||
            (g->all[i].of_room && (g->all[i].room & a->digits) == a->room))
            g->all[kept++] = g->all[i];
    CHECK(kept <= g->count, "%zu happenings of %zu", kept, g->count);
    g->count = kept;
    if (kept > 0)
        qsort(g->all, kept, sizeof(*g->all), by_time);
}

/* Prints the happenings. Returns an exit status. */
static int print(struct trace *t, const struct asked *a)
{
    const struct happenings *g = &t->got;

    for (size_t i = 0; i < g->count; i++)
        trace_widen(t, &g->all[i]);
    if (a->of_room) /* the same in all lines */
        t->room_width = 0;
    for (size_t i = 0; i < g->count; i++)
        if (a->json)
            trace_json(t, &g->all[i]);
        else
            trace_line(t, &g->all[i]);
    if (a->json)
        rows_json_end(&t->json);
    if (fflush(stdout) != 0)
        return CTL_REFUSED;
    if (!a->of_room || g->count > 0)
        return CTL_SHOWN;
    fputs("mmxctl: trace: no happening of this room is remembered here, or it "
          "is another user's\n",
        stderr);
    return CTL_REFUSED;
}

int trace_live(const struct host *h, const struct asked *a)
{
    struct trace t = {.of = h};
    int status = CTL_SHOWN;

    for (uint32_t i = 0; i < h->count && status == CTL_SHOWN; i++)
        status = ask(h->sides[i].c, &t.got, i);
    if (status == CTL_SHOWN) {
        arrange(&t.got, a);
        status = print(&t, a);
    }
    free(t.got.all);
    return status;
}
