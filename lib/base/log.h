/* log.h - lines on stderr with a syslog priority prefix that journald reads.
 * Lower case, id first, words. Never payload. Any thread; never blocks on
 * memory; a line is one write. */
#ifndef MMX_BASE_LOG_H
#define MMX_BASE_LOG_H

#include "base/base.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Lines above the level are dropped. The name stands before every line. */
void log_init(const char *name, enum log_level level);
bool log_enabled(enum log_level level);
void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...)                                                         \
    (log_enabled(LOG_DEBUG) ? log_line(LOG_DEBUG, __VA_ARGS__) : (void)0)

#endif
