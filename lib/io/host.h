/* host.h - what only this host can tell of a configuration that is good: one
 * set of checks for the start of a daemon, --check-config and mmxctl doctor, so
 * that none is content with a file that another refuses. */
#ifndef MMX_IO_HOST_H
#define MMX_IO_HOST_H

#include "core/conf/conf.h"

struct host_finding {
    bool fatal; /* the daemon does not start; else not all is as asked for */
    char text[320]; /* begins with the key: "pools[0].numa: no NUMA node 7" */
    char mend[160]; /* what to do about it */
};

/* Calls say(ud, ...) for each finding. c is finished. now: with what is free at
 * this moment, as a start finds it; false: a daemon may be running that has
 * this memory and these ports. Any thread. */
void host_check(const struct conf *c, bool now,
    void (*say)(void *ud, const struct host_finding *f), void *ud);

#endif
