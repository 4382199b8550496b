/* log.h - lines on stderr: with a syslog priority if stderr is the journal,
 * else with the UTC time and the level. Lower case, id first, words. Never
 * payload. Any thread; a line is one write; never blocks on memory or on the
 * reader of the lines. */
#ifndef MMX_BASE_LOG_H
#define MMX_BASE_LOG_H

#include "base/base.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Sets the least severe level that is written and the name in every line, and
 * finds out what stderr is. Before this call, and if stderr is a file, a write
 * may block as long as the file's device does. */
void log_init(const char *name, enum log_level level);
/* Changes the level; any thread. */
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);
/* True if each line needs a priority, as "<6>". */
bool log_to_journal(void);
void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Writes a text unchanged, as much as stderr takes at once: for crash reports.
 * Does not allocate. */
void log_text(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* Returns how many lines were lost since the start because stderr was full or
 * closed. The next written line reports them. */
uint64_t log_unwritten(void);

/* A kind of line that engines or strangers can cause. At most per_second of
 * them are written per second; others are counted, and one line reports their
 * number after the second. Static, made with LOG_RATE. Any thread. */
struct log_rate {
    const char *what; /* name of the kind: "refused engines" */
    enum log_level level;
    uint32_t per_second;
    uint32_t said, lost; /* lines in `second`: written, left out */
    uint64_t second;
    bool known;
    struct log_rate *next;
};

/* True if a line of this kind may be written now; otherwise counts it. */
bool log_may(struct log_rate *r);
/* Reports lines left out in past seconds. True if more are pending: call again
 * within a second. */
bool log_report_lost(void);
/* Returns how many lines were left out since the start. */
uint64_t log_lost(void);

#define LOG_RATE(KIND, LEVEL, PER_SECOND)                                      \
    {                                                                          \
        .what = (KIND), .level = (LEVEL), .per_second = (PER_SECOND)           \
    }
#define log_rated(rate, ...)                                                   \
    (log_may(rate) ? log_line((rate)->level, __VA_ARGS__) : (void)0)

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...)                                                         \
    (log_enabled(LOG_DEBUG) ? log_line(LOG_DEBUG, __VA_ARGS__) : (void)0)

#endif
