/* log.c - one write per line; a target that is full or gone loses lines and
 * never stops a thread. A ring and a writer thread were rejected: failures
 * and state changes are few, and a crash must not swallow the last line. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static const char *log_name = "mmx";
static enum log_level log_max = LOG_INFO;

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
