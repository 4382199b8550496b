/* host.h - checks of a valid configuration that only this host can make. The
 * start of a daemon, --check-config and mmxctl doctor share them, so that none
 * accepts a file that another refuses. */
#ifndef MMX_IO_HOST_H
#define MMX_IO_HOST_H

#include "core/conf/conf.h"

struct host_finding {
    bool fatal;     /* the daemon will not start; false: only a warning */
    char text[320]; /* begins with the key: "pools[0].numa: no NUMA node 7" */
    char mend[160]; /* how to correct it */
};

/* Calls say(ud, ...) for each finding. c is finished. now: checks what is free
 * at this moment, as a start would; false: a running daemon may have this
 * memory and these ports. Any thread. */
void host_check(const struct conf *c, bool now,
    void (*say)(void *ud, const struct host_finding *f), void *ud);

#endif
