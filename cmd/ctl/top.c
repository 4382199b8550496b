/* top.c - mmxctl top: rooms and bytes per second of each pool and peer, and
 * what waits, from the difference of two samples of the counters. All figures
 * are the daemon's own: QUERY status, stats, pools and peers. One thread. */
#include "ctl.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EVERY_MS  1000
#define WIDE      78 /* enough columns for everything */
#define LINES_MIN 64 /* pools, and peers, to allocate at first */

/* A pool or a peer. */
struct line {
    char name[64], state[16], path[16], carrier[16];
    uint64_t number, blocks, free, rooms, bytes;
    double waiting, rooms_s, bytes_s, nothing; /* what sorts; nothing: 0 */
};

/* Their memory is reused for each sample. */
struct lines {
    uint32_t count, max;
    struct line *of;
};

struct look {
    uint64_t at_ns;
    char name[64], role[16], text[224];
    uint64_t up_s, open, succeeded, failed, bytes;
    struct lines pools, peers;
};

/* A daemon's present and previous samples, swapped each time. */
struct watched {
    struct ctl *c;
    struct look looks[2];
};

/* looking */

static void take_head(struct reader row, struct look *l)
{
    rows_get(row, "name", l->name, sizeof(l->name));
    rows_get(row, "role", l->role, sizeof(l->role));
    rows_get(row, "text", l->text, sizeof(l->text));
    l->open = rows_number(row, "rooms_open");
}

static void take_status(struct reader row, struct look *l)
{
    l->up_s = rows_number(row, "uptime_s");
}

static void take_stat(struct reader row, struct look *l)
{
    char name[32];

    rows_get(row, "name", name, sizeof(name));
    if (!strcmp(name, "rooms_succeeded"))
        l->succeeded = rows_number(row, "value");
    else if (!strcmp(name, "rooms_failed"))
        l->failed = rows_number(row, "value");
    else if (!strcmp(name, "bytes_moved"))
        l->bytes = rows_number(row, "value");
}

/* Makes space for one more line. */
static bool grow(struct lines *l)
{
    uint32_t max = l->max ? 2 * l->max : LINES_MIN;
    struct line *of;

    if (l->count < l->max)
        return true;
    of = realloc(l->of, max * sizeof(*of));
    if (!of)
        return false;
    l->of = of;
    l->max = max;
    return true;
}

/* Returns the next line, with the columns that pools and peers share; NULL: no
 * memory. */
static struct line *take_line(
    struct lines *to, struct reader row, const char *id, const char *name)
{
    struct line *l;

    if (!grow(to))
        return NULL;
    CHECK(to->count < to->max, "%u lines in %u places", to->count, to->max);
    l = &to->of[to->count++];
    memset(l, 0, sizeof(*l));
    rows_get(row, name, l->name, sizeof(l->name));
    rows_get(row, "state", l->state, sizeof(l->state));
    l->number = rows_number(row, id);
    l->rooms = rows_number(row, "rooms_moved");
    l->bytes = rows_number(row, "bytes_moved");
    return l;
}

static void take_pool(struct reader row, struct look *at)
{
    struct line *l = take_line(&at->pools, row, "number", "pool");

    if (!l)
        return;
    l->blocks = rows_number(row, "blocks");
    l->free = rows_number(row, "free");
    l->waiting = (double)(rows_number(row, "waiting_rooms") +
                          rows_number(row, "waiting_items"));
}

static void take_peer(struct reader row, struct look *at)
{
    struct line *l = take_line(&at->peers, row, "peer", "name");

    if (!l)
        return;
    rows_get(row, "path", l->path, sizeof(l->path));
    rows_get(row, "carrier", l->carrier, sizeof(l->carrier));
}

/* Asks for all reports. False: m says why one was not answered. */
static bool look(struct ctl *c, struct look *l, struct local_msg *m)
{
    static const struct {
        const char *what;
        void (*take)(struct reader row, struct look *l);
    } parts[] = {{"health", take_head}, {"status", take_status},
        {"stats", take_stat}, {"pools", take_pool}, {"peers", take_peer}};
    struct lines pools = {.max = l->pools.max, .of = l->pools.of};
    struct lines peers = {.max = l->peers.max, .of = l->peers.of};
    struct reader row;

    *l = (struct look){.pools = pools, .peers = peers};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (!ctl_ask(c, parts[i].what, m))
            return false;
        while (rows_next(&c->got, &row))
            parts[i].take(row, l);
    }
    l->at_ns = clock_ns();
    return true;
}

/* Returns a counter's rise per second; 0 if the counter restarted. */
static double rate(uint64_t from, uint64_t to, double seconds)
{
    return to > from && seconds > 0 ? (double)(to - from) / seconds : 0;
}

typedef int order_fn(const void *a, const void *b, void *by);
struct sorting;

static void sort(struct lines *l, order_fn *order, const struct sorting *by)
{
    if (l->count > 0)
        qsort_r(l->of, l->count, sizeof(l->of[0]), order, (void *)by);
}

static int by_number(const void *a, const void *b, void *none)
{
    const struct line *x = a, *y = b;

    (void)none;
    return (x->number > y->number) - (x->number < y->number);
}

/* Computes the rates since the previous sample; sorts both by number. */
static void rates(struct lines *now, struct lines *was, double seconds)
{
    uint32_t k = 0;

    sort(now, by_number, NULL);
    sort(was, by_number, NULL);
    for (uint32_t i = 0; i < now->count; i++) {
        struct line *l = &now->of[i];

        while (k < was->count && was->of[k].number < l->number)
            k++;
        if (k == was->count || strcmp(l->name, was->of[k].name) != 0)
            continue;
        l->rooms_s = rate(was->of[k].rooms, l->rooms, seconds);
        l->bytes_s = rate(was->of[k].bytes, l->bytes, seconds);
    }
}

/* sorting: largest first, then by name */

static const struct sorting {
    char key;
    const char *name;
    size_t at; /* of the value in struct line */
} sortings[] = {{'n', "name", offsetof(struct line, nothing)},
    {'r', "rooms", offsetof(struct line, rooms_s)},
    {'b', "bytes", offsetof(struct line, bytes_s)},
    {'w', "waits", offsetof(struct line, waiting)}};

static double value_of(const struct line *l, const struct sorting *by)
{
    return *(const double *)(const void *)((const char *)l + by->at);
}

static int by_value(const void *a, const void *b, void *by)
{
    double x = value_of(a, by), y = value_of(b, by);

    if (x != y)
        return x < y ? 1 : -1;
    return strcmp(
        ((const struct line *)a)->name, ((const struct line *)b)->name);
}

/* drawing */

static void draw_pool(struct screen *s, const struct line *l, const char *bytes)
{
    uint64_t used = l->blocks > l->free ? l->blocks - l->free : 0;
    unsigned percent = l->blocks ? (unsigned)(used * 100 / l->blocks) : 0;

    CHECK(used <= l->blocks, "%llu used of %llu", (unsigned long long)used,
        (unsigned long long)l->blocks);
    if (s->width < WIDE)
        screen_line(s, "%-12.12s %3u%% %4.0f %7.1f %9s", l->name, percent,
            l->waiting, l->rooms_s, bytes);
    else
        screen_line(s, "%-16.16s %-10.10s %7llu %7llu %4u%% %5.0f %9.1f %11s",
            l->name, l->state, (unsigned long long)l->blocks,
            (unsigned long long)used, percent, l->waiting, l->rooms_s, bytes);
}

static void draw_peer(struct screen *s, const struct line *l, const char *bytes)
{
    if (s->width < WIDE)
        screen_line(s, "%-12.12s %-9.9s %7.1f %9s", l->name, l->state,
            l->rooms_s, bytes);
    else
        screen_line(s, "%-30.30s %-8.8s %-6.6s %-9.9s %9.1f %11s", l->name,
            l->state, l->path, l->carrier, l->rooms_s, bytes);
}

/* Returns how many lines of the screen pools may use: half of the rest, or what
 * the peers and their header leave. */
static int lines_for_pools(const struct screen *s, const struct look *l)
{
    int left = s->height - s->line, peers = (int)l->peers.count + 2;

    return left - peers > left / 2 ? left - peers : left / 2;
}

/* Draws them on at most this number of lines. */
static void draw_lines(struct screen *s, struct lines *all, int lines,
    const struct sorting *by, const struct asked *a,
    void (*draw)(struct screen *s, const struct line *l, const char *bytes))
{
    int end = s->line + lines;
    char bytes[SIZE_TEXT];

    sort(all, by_value, by);
    for (uint32_t i = 0; i < all->count; i++) {
        if (s->line + 1 >= end && i + 1 < all->count) {
            screen_line(s, "(%u more)", all->count - i);
            return;
        }
        size_text((uint64_t)(all->of[i].bytes_s + 0.5), a->bytes, bytes);
        draw(s, &all->of[i], bytes);
    }
}

static void draw_head(struct screen *s, const struct look *l,
    const struct look *was, const struct asked *a)
{
    double seconds = (double)(l->at_ns - was->at_ns) / 1e9;
    char up[AGE_TEXT], bytes[SIZE_TEXT];

    age_text(l->up_s * NS_PER_S, up);
    size_text(
        (uint64_t)(rate(was->bytes, l->bytes, seconds) + 0.5), a->bytes, bytes);
    screen_line(s, "%s (%s), up %s", l->name, l->role, up);
    screen_line(s, "%s", l->text);
    screen_line(s, "rooms %llu open, %.1f/s done, %.1f/s failed, %s/s",
        (unsigned long long)l->open,
        rate(was->succeeded, l->succeeded, seconds),
        rate(was->failed, l->failed, seconds), bytes);
}

static void draw_one(struct screen *s, struct look *l, const struct look *was,
    const struct sorting *by, const struct asked *a)
{
    bool wide = s->width >= WIDE, first = s->line == 0;

    draw_head(s, l, was, a);
    if (s->live && first)
        screen_line(s,
            wide ? "keys: q quit; sort by n name, r rooms, "
                   "b bytes, w waits; now: %s"
                 : "keys: q, sort n r b w; now: %s",
            by->name);
    screen_line(s, "%s", "");
    if (wide)
        screen_line(s, "%-16s %-10s %7s %7s %5s %5s %9s %11s", "POOL", "STATE",
            "BLOCKS", "USED", "", "WAITS", "ROOMS/S", "BYTES/S");
    else
        screen_line(s, "%-12s %4s %4s %7s %9s", "POOL", "USED", "WAIT",
            "ROOMS/S", "BYTES/S");
    draw_lines(s, &l->pools, lines_for_pools(s, l), by, a, draw_pool);
    screen_line(s, "%s", "");
    if (wide)
        screen_line(s, "%-30s %-8s %-6s %-9s %9s %11s", "PEER", "STATE", "PATH",
            "CARRIER", "ROOMS/S", "BYTES/S");
    else
        screen_line(
            s, "%-12s %-9s %7s %9s", "PEER", "STATE", "ROOMS/S", "BYTES/S");
    draw_lines(s, &l->peers, s->height - s->line, by, a, draw_peer);
}

/* Draws the daemons one below the other. The first has half of the screen, or
 * what the others leave. n: the newest sample. */
static void draw(struct screen *s, struct watched *all, uint32_t count, int n,
    const struct sorting *by, const struct asked *a)
{
    int height = s->height;

    screen_begin(s);
    for (uint32_t i = 0; i < count; i++) {
        s->height = (int)(i + 1) * height / (int)count;
        if (i > 0)
            screen_line(s, "%s", "");
        draw_one(s, &all[i].looks[n], &all[i].looks[1 - n], by, a);
    }
    s->height = height;
    screen_end(s);
}

/* Changes the sorting. False: the key ends the program. */
static bool obey(int key, const struct sorting **by)
{
    if (key < 0 || key == 'q' || key == 'Q' || key == SCREEN_ESC)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(sortings); i++)
        if (key == sortings[i].key)
            *by = &sortings[i];
    return true;
}

/* Takes a new sample of every daemon; n: index of the sample. */
static bool look_again(
    struct watched *all, uint32_t count, int n, struct local_msg *m)
{
    for (uint32_t i = 0; i < count; i++) {
        struct look *l = &all[i].looks[n], *was = &all[i].looks[1 - n];
        double seconds;

        if (!look(all[i].c, l, m))
            return false;
        seconds = (double)(l->at_ns - was->at_ns) / 1e9;
        rates(&l->pools, &was->pools, seconds);
        rates(&l->peers, &was->peers, seconds);
    }
    return true;
}

/* Shows the daemons until a key or signal ends it. */
static int show(struct watched *all, uint32_t count, const struct asked *a)
{
    const struct sorting *by = &sortings[1];
    uint64_t every = a->watch_s ? a->watch_s * 1000 : EVERY_MS, due;
    struct local_msg m = {0};
    struct screen s;
    int key = 0, n = 0;
    bool ok;

    if (!look_again(all, count, 0, &m))
        return ctl_failed(&m);
    screen_open(&s, !a->once);
    ok = true;
    /* The first rates come early, over a fifth of a second. */
    due = clock_ns() + (s.live ? 200 : every) * NS_PER_MS;
    while (ok) {
        uint64_t now = clock_ns();

        key =
            screen_key(&s, now < due ? (int)((due - now) / NS_PER_MS) + 1 : 0);
        if (!obey(key, &by))
            break;
        if (clock_ns() >= due) {
            n = 1 - n;
            ok = look_again(all, count, n, &m);
            due = clock_ns() + every * NS_PER_MS;
        } else if (!s.live) {
            continue;
        }
        if (ok)
            draw(&s, all, count, n, by, a);
        if (!s.live)
            break;
    }
    screen_close(&s);
    return ok ? CTL_SHOWN : ctl_failed(&m);
}

/* a summary of the host */

enum { BRIEF_ROOMS = 3, BRIEF_MS = 200 };

/* Draws the first rooms of `slow` that are in this state. */
static void draw_rooms(struct screen *s, struct reader rows, const char *state)
{
    bool failed = !strcmp(state, "Failed");
    char is[16], room[24], opened[CLOCK_TEXT], why[64], text[128];
    struct reader row;

    for (uint32_t n = 0; n < BRIEF_ROOMS && rows_next(&rows, &row);) {
        rows_get(row, "state", is, sizeof(is));
        if (strcmp(is, state) != 0)
            continue;
        rows_get(row, "room", room, sizeof(room));
        rows_get(row, failed ? "reason" : "longest", why, sizeof(why));
        rows_get(row, "text", text, sizeof(text));
        clock_text(rows_number(row, "opened_ns"), false, opened);
        if (!failed)
            age_text(rows_number(row, "done_us") * 1000, text);
        screen_line(s, "%-8s %s  %s  %s%s%s",
            n++      ? ""
            : failed ? "failed"
                     : "slowest",
            room, opened, failed ? why : text, !failed || text[0] ? ", " : "",
            failed ? text : why);
    }
}

static int show_brief(
    struct watched *all, uint32_t count, const struct asked *a)
{
    const struct timespec rest = {.tv_nsec = BRIEF_MS * (long)NS_PER_MS};
    struct local_msg m = {0};
    struct screen s;

    if (!look_again(all, count, 0, &m))
        return ctl_failed(&m);
    nanosleep(&rest, NULL);
    if (!look_again(all, count, 1, &m))
        return ctl_failed(&m);
    screen_open(&s, false);
    screen_begin(&s);
    for (uint32_t i = 0; i < count; i++) {
        if (!ctl_ask(all[i].c, "slow", &m))
            return ctl_failed(&m);
        draw_head(&s, &all[i].looks[1], &all[i].looks[0], a);
        draw_rooms(&s, all[i].c->got, "Success");
        draw_rooms(&s, all[i].c->got, "Failed");
        screen_line(&s, "%s", "");
    }
    screen_line(
        &s, "mmxctl trace ROOM: a room's life; --help: what else there is");
    screen_end(&s);
    return CTL_SHOWN;
}

int top(struct host *h, const struct asked *a)
{
    struct watched all[HOST_MAX] = {0};
    int status;

    for (uint32_t i = 0; i < h->count; i++)
        all[i].c = h->sides[i].c;
    status = a->brief ? show_brief(all, h->count, a) : show(all, h->count, a);
    for (uint32_t i = 0; i < 2 * h->count; i++) {
        free(all[i / 2].looks[i % 2].pools.of);
        free(all[i / 2].looks[i % 2].peers.of);
    }
    return status;
}
