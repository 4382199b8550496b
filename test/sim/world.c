/* world.c - virtual time, seeded chance, the queue of what will happen, and the
 * trace of what has happened. One thread. A wheel of timers was rejected: a
 * binary heap orders by time and by a seeded tie-break in one comparison. */
#include "test/sim/sim.h"

#include "base/check.h"

#include <stdarg.h>
#include <sys/mman.h>

#define TRACE_LINES 200
#define TRACE_WIDTH 200
#define STILL_MAX   200000 /* more entries at one time mean a busy loop */

struct entry {
    uint64_t when_ns, order;
    happening fn;
    void *p;
    uint64_t a, b;
    /* a step at leisure: no message or call is under way because of it */
    bool leisure;
    uint64_t *from; /* the stream from which it draws */
};

struct world W;
static struct entry *queue;
static uint32_t queue_len, queue_cap, pressing;
static uint64_t entries;
static char lines[TRACE_LINES][TRACE_WIDTH];
static uint64_t lines_count;

void *must_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);

    CHECK(p, "no memory for %zu x %zu bytes", n, size);
    return p;
}

void *shared_alloc(size_t size)
{
    void *p = mmap(
        NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(p != MAP_FAILED, "no memory for %zu bytes", size);
    return p;
}

bool canary(const char *name)
{
    return W.canary && strcmp(W.canary, name) == 0;
}

/* chance */

static uint64_t mixed(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t next(uint64_t *stream)
{
    return mixed(*stream += UINT64_C(0x9e3779b97f4a7c15));
}

void draw_from(enum part part, uint64_t number)
{
    uint64_t *stream = must_alloc(1, sizeof(*stream));

    *stream = mixed(mixed(W.seed) + ((uint64_t)part << 32) + number + 1);
    W.from = stream;
}

uint64_t draw(void)
{
    return next(W.from);
}

uint64_t between(uint64_t lo, uint64_t hi)
{
    uint64_t x = draw();

    return lo >= hi ? lo : lo + x % (hi - lo + 1);
}

bool chance(uint32_t per_thousand)
{
    return draw() % 1000 < per_thousand;
}

uint64_t delay_us(uint32_t us)
{
    uint64_t ns = 1000 + next(&W.moves) % ((uint64_t)us * 1000 + 1);
    bool seldom = next(&W.moves) % 100 == 0;

    return seldom && !W.healing && !W.is.calm ? ns * 20 : ns;
}

/* the queue */

static bool before(const struct entry *x, const struct entry *y)
{
    return x->when_ns != y->when_ns ? x->when_ns < y->when_ns
                                    : x->order < y->order;
}

static void swap(uint32_t i, uint32_t j)
{
    struct entry e = queue[i];

    queue[i] = queue[j];
    queue[j] = e;
}

static void put(struct entry e)
{
    uint32_t i = queue_len++;

    if (queue_len > queue_cap) {
        queue_cap = queue_cap ? 2 * queue_cap : 1024;
        queue = realloc(queue, queue_cap * sizeof(*queue));
        CHECK(queue, "no memory for %u entries", queue_cap);
    }
    e.when_ns = max_u64(e.when_ns, W.now_ns);
    e.order = next(&W.moves) << 32 | ++entries;
    e.from = W.from;
    pressing += !e.leisure;
    queue[i] = e;
    for (; i > 0 && before(&queue[i], &queue[(i - 1) / 2]); i = (i - 1) / 2)
        swap(i, (i - 1) / 2);
}

void at(uint64_t when_ns, happening fn, void *p, uint64_t a, uint64_t b)
{
    put((struct entry){when_ns, 0, fn, p, a, b, false, NULL});
}

void at_leisure(uint64_t when_ns, happening fn, void *p, uint64_t a, uint64_t b)
{
    put((struct entry){when_ns, 0, fn, p, a, b, true, NULL});
}

bool world_quiet(void)
{
    return pressing == 0;
}

static struct entry take(void)
{
    struct entry first = queue[0];
    uint32_t i = 0, child;

    pressing -= !first.leisure;
    queue[0] = queue[--queue_len];
    while ((child = 2 * i + 1) < queue_len) {
        if (child + 1 < queue_len && before(&queue[child + 1], &queue[child]))
            child++;
        if (!before(&queue[child], &queue[i]))
            break;
        swap(i, child);
        i = child;
    }
    return first;
}

bool run_until(uint64_t when_ns)
{
    while (queue_len > 0 && queue[0].when_ns <= when_ns) {
        struct entry e = take();

        if (e.when_ns > W.now_ns) {
            W.now_ns = e.when_ns;
            W.still = 0;
        }
        HOLDS(++W.still < STILL_MAX, "no busy loop",
            "%u happenings while time stood still", STILL_MAX);
        W.from = e.from;
        e.fn(e.p, e.a, e.b);
    }
    if (W.now_ns < when_ns) {
        W.now_ns = when_ns;
        W.still = 0;
    }
    return queue_len > 0;
}

/* the trace */

void trace(const char *fmt, ...)
{
    char *line = lines[lines_count % TRACE_LINES];
    va_list ap;
    int n;

    if (W.sparse && !W.loud)
        return;
    lines_count++;
    n = snprintf(line, TRACE_WIDTH, "%9llu.%03llu ",
        (unsigned long long)(W.now_ns / 1000000),
        (unsigned long long)(W.now_ns / 1000 % 1000));
    va_start(ap, fmt);
    vsnprintf(line + n, TRACE_WIDTH - (size_t)n, fmt, ap);
    va_end(ap);
    if (W.loud)
        puts(line);
}

void trace_print(void)
{
    uint64_t first = lines_count > TRACE_LINES ? lines_count - TRACE_LINES : 0;

    fflush(stdout);
    for (uint64_t i = first; !W.quiet && !W.loud && i < lines_count; i++)
        fprintf(stderr, "  %s\n", lines[i % TRACE_LINES]);
    if (!W.quiet)
        daemons_print();
    fprintf(stderr, "seed %llu failed; replay: sim --seed %llu%s\n",
        (unsigned long long)W.seed, (unsigned long long)W.seed, W.replay);
}

void broken(const char *property, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    fprintf(stderr, "seed %llu: BROKEN: %s: %s (at %llu us, step %llu)\n",
        (unsigned long long)W.seed, property, text,
        (unsigned long long)(W.now_ns / 1000), (unsigned long long)W.steps);
    trace_print();
    _Exit(1);
}
