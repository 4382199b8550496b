/* crash.h - what a daemon says when it dies of a signal that is its own fault:
 * a failed CHECK (SIGABRT), a bad access. */
#ifndef MMX_NODE_CRASH_H
#define MMX_NODE_CRASH_H

#include "core/flow.h"
#include "core/trace/recorder.h"

#define CRASH_HAPPENINGS 256u

/* What the report reads; stays valid until crash_forget. */
struct crash_view {
    const struct recorder *recorder;
    const struct event *const *event; /* that is taken in; *event NULL: none */
};

/* Writes a report of what `view` shows to fd, for the signal (its number). */
void crash_report(int fd, int signal, const struct crash_view *view);
/* Reports to stderr when such a signal comes; then it does what it would have
 * done. One view in a process. */
void crash_watch(const struct crash_view *view);
void crash_forget(void);

#endif
