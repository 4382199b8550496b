/* log.c - one write per line. A full or closed target loses lines, which are
 * counted, and never stops a thread. Rejected: a ring and a writer thread.
 * Failures and state changes are few, and a crash must not lose the last line.
 * Rejected: O_NONBLOCK on stderr itself. Other processes share the open file
 * description and do not expect it. */
#include "base/log.h"

#include "base/check.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* How to write without blocking. A pipe or terminal is opened again, to get an
 * open file description of our own. If that is not allowed it is polled:
 * POLLOUT on a pipe means space for PIPE_BUF, more than a line, and each thread
 * polls before it writes. */
enum way { WAY_WRITE, WAY_SEND, WAY_POLL };

enum { PRIORITY = 3 }; /* bytes of a priority, as "<2>" */

static const char *log_name = "mmx";
static _Atomic int log_max = LOG_INFO;
static int log_fd = STDERR_FILENO;
static enum way log_way = WAY_WRITE;
static bool log_journal; /* stderr is the journal, which adds the time */
static _Atomic uint64_t unwritten, unreported; /* lines; those of them that were
                                                  not reported */

/* Kinds of rated lines that were used at least once. */
static pthread_mutex_t rates_lock = PTHREAD_MUTEX_INITIALIZER;
static struct log_rate *rates;
static _Atomic uint64_t lost_lines;
static _Atomic uint32_t lost_kinds; /* kinds with lines that were not reported
                                       yet */

/* True if systemd opened this stream to the journal for us. */
static bool is_journal(const struct stat *st)
{
    const char *given = getenv("JOURNAL_STREAM");
    char stream[48];

    snprintf(stream, sizeof(stream), "%llu:%llu",
        (unsigned long long)st->st_dev, (unsigned long long)st->st_ino);
    return given && !strcmp(given, stream);
}

/* Writes the start of a line; returns its length. For the journal: the
 * priority, which it removes; else the UTC time and the level. */
static int put_head(char *out, size_t size, enum log_level level)
{
    static const char priorities[] = {'3', '4', '6', '7'};
    static const char words[][8] = {"error", "warning", "info", "debug"};
    struct timespec t;
    struct tm day;
    size_t n;

    CHECK(level < ARRAY_LEN(priorities), "level %u", level);
    if (log_journal)
        return snprintf(out, size, "<%c>%s: ", priorities[level], log_name);
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &day);
    n = strftime(out, size, "%FT%T", &day);
    CHECK(n > 0, "no text for %lld s", (long long)t.tv_sec);
    return (int)n + snprintf(out + n, size - n,
                        ".%03uZ %s %s: ", (unsigned)(t.tv_nsec / 1000000),
                        words[level], log_name);
}

static void target_open(void)
{
    struct stat st;
    int fd;

    if (log_fd != STDERR_FILENO)
        close(log_fd);
    log_fd = STDERR_FILENO;
    log_way = WAY_WRITE;
    log_journal = false;
    if (fstat(STDERR_FILENO, &st) != 0)
        return;
    log_journal = is_journal(&st);
    if (S_ISSOCK(st.st_mode))
        log_way = WAY_SEND;
    if (!S_ISFIFO(st.st_mode) && !S_ISCHR(st.st_mode))
        return;
    fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd >= 0)
        log_fd = fd;
    else
        log_way = WAY_POLL;
}

void log_init(const char *name, enum log_level level)
{
    CHECK(name[0], "a log without a name");
    log_name = name;
    log_set_level(level);
    target_open();
}

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&log_max, (int)level, memory_order_relaxed);
}

bool log_to_journal(void)
{
    return log_journal;
}

bool log_enabled(enum log_level level)
{
    return (int)level <= atomic_load_explicit(&log_max, memory_order_relaxed);
}

/* Returns false if the target does not take it now. */
static bool put(const char *text, size_t n)
{
    struct pollfd p = {.fd = log_fd, .events = POLLOUT};
    ssize_t r;

    if (log_way == WAY_POLL && poll(&p, 1, 0) != 1)
        return false;
    do {
        r = log_way == WAY_SEND
                ? send(log_fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL)
                : write(log_fd, text, n);
    } while (r < 0 && errno == EINTR);
    return r == (ssize_t)n;
}

static void put_counted(const char *text, size_t n)
{
    char said[160];
    uint64_t before = atomic_exchange(&unreported, 0);
    int m;

    if (before > 0) {
        m = put_head(said, sizeof(said) / 2, LOG_WARN);
        m += snprintf(said + m, sizeof(said) - (size_t)m,
            "%llu lines were lost: standard error was full\n",
            (unsigned long long)before);
        if (m >= (int)sizeof(said) || !put(said, (size_t)m)) {
            atomic_fetch_add(&unreported, before + 1);
            atomic_fetch_add(&unwritten, 1);
            return;
        }
    }
    if (put(text, n))
        return;
    atomic_fetch_add(&unreported, 1);
    atomic_fetch_add(&unwritten, 1);
}

void log_line(enum log_level level, const char *fmt, ...)
{
    char line[1024];
    int n, m;
    va_list ap;

    if (!log_enabled(level))
        return;
    n = put_head(line, sizeof(line) / 2, level);
    va_start(ap, fmt);
    m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
    va_end(ap);
    m = n + (m < (int)sizeof(line) - n - 2 ? m : (int)sizeof(line) - n - 2);
    text_clean(line + n, (size_t)(m - n)); /* a line stays one line */
    n = m;
    line[n++] = '\n';
    put_counted(line, (size_t)n);
}

void log_text(const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    n = n < (int)sizeof(text) ? n : (int)sizeof(text) - 1;
    /* The priority is only for the journal. */
    if (n >= PRIORITY && text[0] == '<' && !log_journal)
        (void)put(text + PRIORITY, (size_t)(n - PRIORITY));
    else if (n > 0)
        (void)put(text, (size_t)n);
}

uint64_t log_unwritten(void)
{
    return atomic_load_explicit(&unwritten, memory_order_relaxed);
}

/* lines that others can cause */

static uint64_t this_second(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec;
}

/* Starts a new second of the kind; returns the lines left out in past ones. */
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

static void report(const struct log_rate *r, uint32_t lost)
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
    CHECK(r->what && r->per_second > 0, "a kind of lines without a rate");
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
    report(r, lost);
    return may;
}

/* Returns a kind that left lines out in a past second, and their number; NULL:
 * none. */
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

bool log_report_lost(void)
{
    uint64_t now = this_second();
    const struct log_rate *r;
    uint32_t lost;

    if (atomic_load(&lost_kinds) == 0)
        return false;
    while ((r = one_lost(now, &lost)))
        report(r, lost);
    return atomic_load(&lost_kinds) != 0;
}

uint64_t log_lost(void)
{
    return atomic_load(&lost_lines);
}
