/* exporter.h - shared by the files of mmx-exporter: answers.c asks the daemons,
 * metrics.c and page.c print their reports, host.c checks the name in requests.
 * Each request asks the daemons again. One thread. */
#ifndef MMX_CMD_EXPORTER_H
#define MMX_CMD_EXPORTER_H

#include "cmd/ctl/ctl.h"

#include <stdio.h>
#include <sys/socket.h>

/* The reports to ask for. */
enum {
    SAID_POOLS,
    SAID_BUCKETS,
    SAID_STATUS,
    SAID_STATS,
    SAID_ENDS,
    SAID_PEERS,
    SAID_ROOMS,
    SAID_SLOW,
    SAID_HEALTH,
    SAID_COUNT
};

/* One daemon and its reports. */
struct daemon {
    const char *label; /* value of the label `daemon` */
    const char *path;  /* path of its socket */
    bool ids;          /* the page shows ids that this user may see */
    bool here;         /* it was named, or its socket has been seen */
    /* Members below belong to one request: daemon_forget. */
    bool up;
    /* Rows, in memory of their own; NULL: no answer, or it was refused. */
    struct reader said[SAID_COUNT];
    uint8_t *memory[SAID_COUNT];
};

/* Asks the daemons for their reports. */
void daemons_ask(struct daemon *d, uint32_t count);
void daemon_forget(struct daemon *d);

/* Returns the number in a row's column, finite and not negative; 0: none. */
double row_number(struct reader row, const char *column);

/* The pages. False: serve the page with a status that means unhealthy. */

/* Prints all metrics in Prometheus' text format. */
bool metrics_print(FILE *out, const struct daemon *daemons, uint32_t count);

/* Prints a page for people. */
bool page_print(FILE *out, const struct daemon *daemons, uint32_t count);

/* True if a server that listens at this address, and has these names too,
 * answers a request with this Host header (NULL: none). */
bool host_served(const char *header, const struct sockaddr_storage *at,
    const char *const *names, uint32_t count);

#endif
