/* log.c - one write per line; a target that is full or gone loses lines and
 * never stops a thread. A ring and a writer thread were rejected: failures
 * and state changes are few, and a crash must not swallow the last line. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const char *log_name = "mmx";
static enum log_level log_max = LOG_INFO;

/* Kinds of rated lines that were asked for at least once. */
static pthread_mutex_t rates_lock = PTHREAD_MUTEX_INITIALIZER;
static struct log_rate *rates;
static _Atomic uint64_t lost_lines;
static _Atomic uint32_t lost_kinds; /* with lines that were not told of */

void log_init(const char *name, enum log_level level)
{
    log_name = name;
    log_max = level;
}

bool log_enabled(enum log_level level)
{
    return level <= log_max;
}

void log_line(enum log_level level, const char *fmt, ...)
{
    static const char prefix[] = {'3', '4', '6', '7'};
    char line[1024];
    int n, m;
    va_list ap;
    ssize_t r;

    if (!log_enabled(level))
        return;
    n = snprintf(line, sizeof(line), "<%c>%s: ", prefix[level], log_name);
    va_start(ap, fmt);
    m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
    va_end(ap);
    m = n + (m < (int)sizeof(line) - n - 2 ? m : (int)sizeof(line) - n - 2);
    for (; n < m; n++) /* texts of others: a line stays one line */
        if ((unsigned char)line[n] < 0x20 || line[n] == 0x7f)
            line[n] = '?';
    line[n++] = '\n';
    r = write(STDERR_FILENO, line, (size_t)n);
    (void)r;
}

/* lines that others cause */

static uint64_t this_second(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec;
}

/* Begins another second of the kind; returns what the last ones left out. */
static uint32_t next_second(struct log_rate *r, uint64_t now)
{
    uint32_t lost = r->lost;

    if (r->second == now)
        return 0;
    r->second = now;
    r->said = r->lost = 0;
    if (lost)
        atomic_fetch_sub(&lost_kinds, 1);
    return lost;
}

static void tell(const struct log_rate *r, uint32_t lost)
{
    if (lost)
        log_line(r->level, "%s: %u more lines were left out", r->what, lost);
}

bool log_may(struct log_rate *r)
{
    uint32_t lost;
    bool may;

    if (!log_enabled(r->level))
        return false;
    pthread_mutex_lock(&rates_lock);
    if (!r->known) {
        r->known = true;
        r->next = rates;
        rates = r;
    }
    lost = next_second(r, this_second());
    may = r->said < r->per_second;
    if (may)
        r->said++;
    else if (r->lost++ == 0)
        atomic_fetch_add(&lost_kinds, 1);
    pthread_mutex_unlock(&rates_lock);
    if (!may)
        atomic_fetch_add(&lost_lines, 1);
    tell(r, lost);
    return may;
}

/* Returns a kind that left lines out in a second that is over, and how many;
 * NULL: none has. */
static const struct log_rate *one_lost(uint64_t now, uint32_t *lost)
{
    const struct log_rate *found = NULL;

    pthread_mutex_lock(&rates_lock);
    for (struct log_rate *r = rates; r && !found; r = r->next)
        if (r->lost && (*lost = next_second(r, now)) > 0)
            found = r;
    pthread_mutex_unlock(&rates_lock);
    return found;
}

bool log_tell_lost(void)
{
    uint64_t now = this_second();
    const struct log_rate *r;
    uint32_t lost;

    if (atomic_load(&lost_kinds) == 0)
        return false;
    while ((r = one_lost(now, &lost)))
        tell(r, lost);
    return atomic_load(&lost_kinds) != 0;
}

uint64_t log_lost(void)
{
    return atomic_load(&lost_lines);
}
