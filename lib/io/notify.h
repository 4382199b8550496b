/* notify.h - the protocol of systemd and other service managers, without its
 * library: state messages, the watchdog's interval, a listening socket. The
 * environment belongs to the process, and so does this module: one per process,
 * main thread. */
#ifndef MMX_IO_NOTIFY_H
#define MMX_IO_NOTIFY_H

#include "base/base.h"

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID, LISTEN_PID and LISTEN_FDS
 * and removes them from the environment, so that child processes do not notify
 * in our name. Call it before the first thread starts. */
void notify_init(void);

/* Sends "READY=1", "STATUS=...", or several such lines, in the order of the
 * calls. A text for which the manager's queue has no place waits for the next
 * call of either function; beyond 4 KiB a text is dropped. No effect without a
 * manager; any other failure is logged once. Never blocks. */
void notify_send(const char *format, ...) PRINTF_LIKE(1, 2);
/* Sends what waits. Call it once a second. */
void notify_retry(void);

/* Returns the longest allowed time between two "WATCHDOG=1"; 0: no watchdog.
 * Send it twice in that time. */
uint64_t notify_watchdog_ns(void);

/* Returns the first passed descriptor that is a listening Unix SOCK_SEQPACKET
 * socket; it is close-on-exec, and the caller owns it. -1: none; also at every
 * later call. */
int notify_listen_fd(void);

#endif
