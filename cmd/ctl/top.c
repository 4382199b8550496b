/* top.c - mmxctl top: rooms and bytes per second of each pool and peer, and
 * what waits, from the difference of two samples of the counters. All figures
 * are the daemon's own: QUERY status, stats, pools and peers. One thread. */
#include "ctl.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EVERY_S   1
#define LINES_MIN 64 /* pools, and peers, to allocate at first */

/* A pool or a peer. */
struct line {
    char name[64], state[16], path[16], carrier[16];
    uint64_t number, blocks, free, rooms, bytes;
    uint64_t waiting;
    double rooms_s, bytes_s;
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
    l->waiting =
        rows_number(row, "waiting_rooms") + rows_number(row, "waiting_items");
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

typedef int order_fn(const void *a, const void *b);

static void sort(struct lines *l, order_fn *order)
{
    if (l->count > 0)
        qsort(l->of, l->count, sizeof(l->of[0]), order);
}

static int by_number(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    return (x->number > y->number) - (x->number < y->number);
}

/* Computes the rates since the previous sample; sorts both by number. */
static void rates(struct lines *now, struct lines *was, double seconds)
{
    uint32_t k = 0;

    sort(now, by_number);
    sort(was, by_number);
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

/* printing: the busiest first */

static int by_rooms(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    if (x->rooms_s != y->rooms_s)
        return x->rooms_s < y->rooms_s ? 1 : -1;
    return strcmp(x->name, y->name);
}

/* Says how many rows of a table were left out. */
static void print_rest(const struct lines *all, uint32_t most)
{
    if (all->count > most)
        printf("(%u more)\n", all->count - most);
}

static void print_pools(struct lines *all, uint32_t most)
{
    char bytes[SIZE_TEXT];

    printf("\n%-16s %-10s %7s %7s %5s %5s %9s %11s\n", "POOL", "STATE",
        "BLOCKS", "USED", "", "WAITS", "ROOMS/S", "BYTES/S");
    sort(all, by_rooms);
    for (uint32_t i = 0; i < min_u32(all->count, most); i++) {
        const struct line *l = &all->of[i];
        uint64_t used = l->blocks > l->free ? l->blocks - l->free : 0;
        unsigned percent = l->blocks ? (unsigned)(used * 100 / l->blocks) : 0;

        CHECK(used <= l->blocks, "%llu used of %llu", (unsigned long long)used,
            (unsigned long long)l->blocks);
        size_text((uint64_t)(l->bytes_s + 0.5), bytes);
        printf("%-16.16s %-10.10s %7llu %7llu %4u%% %5llu %9.1f %11s\n",
            l->name, l->state, (unsigned long long)l->blocks,
            (unsigned long long)used, percent, (unsigned long long)l->waiting,
            l->rooms_s, bytes);
    }
    print_rest(all, most);
}

static void print_peers(struct lines *all, uint32_t most)
{
    char bytes[SIZE_TEXT];

    printf("\n%-30s %-8s %-6s %-9s %9s %11s\n", "PEER", "STATE", "PATH",
        "CARRIER", "ROOMS/S", "BYTES/S");
    sort(all, by_rooms);
    for (uint32_t i = 0; i < min_u32(all->count, most); i++) {
        const struct line *l = &all->of[i];

        size_text((uint64_t)(l->bytes_s + 0.5), bytes);
        printf("%-30.30s %-8.8s %-6.6s %-9.9s %9.1f %11s\n", l->name, l->state,
            l->path, l->carrier, l->rooms_s, bytes);
    }
    print_rest(all, most);
}

static void print_head(const struct look *l, const struct look *was)
{
    double seconds = (double)(l->at_ns - was->at_ns) / 1e9;
    char up[AGE_TEXT], bytes[SIZE_TEXT];

    age_text(l->up_s * NS_PER_S, up);
    size_text((uint64_t)(rate(was->bytes, l->bytes, seconds) + 0.5), bytes);
    printf("%s (%s), up %s\n%s\n", l->name, l->role, up, l->text);
    printf("rooms %llu open, %.1f/s done, %.1f/s failed, %s/s\n",
        (unsigned long long)l->open,
        rate(was->succeeded, l->succeeded, seconds),
        rate(was->failed, l->failed, seconds), bytes);
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

/* Lines of a daemon, and of the title, that are not rows of its two tables. */
enum { HEADS = 10, TITLE = 2 };

/* Returns how many rows of each table fit the screen. */
static uint32_t rows_most(const struct asked *a, uint32_t daemons)
{
    uint32_t lines = a->watch_s ? screen_lines() : 0;
    uint32_t heads = TITLE + HEADS * daemons;

    if (lines == 0)
        return UINT32_MAX;
    return lines > heads ? max_u32((lines - heads) / (2 * daemons), 1) : 1;
}

/* Prints the daemons one below the other, with a->watch_s again and again. */
static int show(struct watched *all, uint32_t count, const struct asked *a)
{
    struct local_msg m = {0};
    bool ok = look_again(all, count, 0, &m);
    uint64_t pause_s = EVERY_S;

    for (int n = 1; ok; n = 1 - n) {
        uint32_t most = rows_most(a, count);

        sleep((unsigned)pause_s);
        pause_s = a->watch_s;
        ok = look_again(all, count, n, &m);
        if (ok)
            rows_again(a, "top");
        for (uint32_t i = 0; i < count && ok; i++) {
            fputs(i > 0 ? "\n" : "", stdout);
            print_head(&all[i].looks[n], &all[i].looks[1 - n]);
            print_pools(&all[i].looks[n].pools, most);
            print_peers(&all[i].looks[n].peers, most);
        }
        if (fflush(stdout) != 0 || !a->watch_s)
            break;
    }
    return ok ? CTL_SHOWN : ctl_failed(&m);
}

/* a summary of the host */

enum { BRIEF_ROOMS = 3, BRIEF_MS = 200 };

/* Prints the first rooms of `slow` that are in this state. */
static void print_rooms(struct reader rows, const char *state)
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
        printf("%-8s %s  %s  %s%s%s\n",
            n++      ? ""
            : failed ? "failed"
                     : "slowest",
            room, opened, failed ? why : text, !failed || text[0] ? ", " : "",
            failed ? text : why);
    }
}

static int show_brief(struct watched *all, uint32_t count)
{
    const struct timespec rest = {.tv_nsec = BRIEF_MS * (long)NS_PER_MS};
    struct local_msg m = {0};

    if (!look_again(all, count, 0, &m))
        return ctl_failed(&m);
    nanosleep(&rest, NULL);
    if (!look_again(all, count, 1, &m))
        return ctl_failed(&m);
    for (uint32_t i = 0; i < count; i++) {
        if (!ctl_ask(all[i].c, "slow", &m))
            return ctl_failed(&m);
        print_head(&all[i].looks[1], &all[i].looks[0]);
        print_rooms(all[i].c->got, "Success");
        print_rooms(all[i].c->got, "Failed");
        putchar('\n');
    }
    puts("mmxctl trace ROOM: a room's life; --help: what else there is");
    return CTL_SHOWN;
}

int top(struct host *h, const struct asked *a)
{
    struct watched all[HOST_MAX] = {0};
    int status;

    for (uint32_t i = 0; i < h->count; i++)
        all[i].c = h->sides[i].c;
    status = a->brief ? show_brief(all, h->count) : show(all, h->count, a);
    for (uint32_t i = 0; i < 2 * h->count; i++) {
        free(all[i / 2].looks[i % 2].pools.of);
        free(all[i / 2].looks[i % 2].peers.of);
    }
    return status;
}
