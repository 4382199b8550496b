/* crash.h - the report of a daemon that dies of a signal by its own fault: a
 * failed CHECK (SIGABRT), a bad access. */
#ifndef MMX_NODE_CRASH_H
#define MMX_NODE_CRASH_H

#include "core/flow.h"
#include "core/trace/recorder.h"

#define CRASH_HAPPENINGS 256u

/* What the report shows; stays valid until crash_forget. */
struct crash_view {
    const struct recorder *recorder;
    /* the event that the loop handles; *event NULL: none */
    const struct event *const *event;
};

/* Writes a report of what `view` shows to fd, for the signal (its number). */
void crash_report(int fd, int signal, const struct crash_view *view);
/* Writes a report to stderr when such a signal comes; then the signal has the
 * effect it had before. One view per process. */
void crash_watch(const struct crash_view *view);
void crash_forget(void);

#endif
