/* notify.h - what a service manager of systemd's kind wants to hear and has
 * to give, without its library: state messages, the watchdog's interval, a
 * listening socket. The environment belongs to the process, and so does this
 * module: one per process, main thread. */
#ifndef MMX_IO_NOTIFY_H
#define MMX_IO_NOTIFY_H

#include "base/base.h"

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID, LISTEN_PID and LISTEN_FDS
 * and takes them out of the environment, so that children do not speak for
 * us. Call it before the first thread starts. */
void notify_init(void);

/* Sends "READY=1", "STATUS=...", several lines if need be. Nothing happens
 * without a manager; a manager that does not listen is logged once. Never
 * blocks. */
void notify_send(const char *state);

/* How often "WATCHDOG=1" is wanted at the least; 0: not at all. Send it at
 * half of that. */
uint64_t notify_watchdog_ns(void);

/* The first descriptor handed to this process that is a listening Unix
 * SOCK_SEQPACKET socket, now close-on-exec and the caller's; -1: none. A
 * second call gives -1. */
int notify_listen_fd(void);

#endif
