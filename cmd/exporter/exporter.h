/* exporter.h - shared by the files of mmx-exporter: answers.c asks the daemons,
 * metrics.c and page.c print their reports, past.c keeps a minute of them,
 * host.c checks the name in requests. Each request asks the daemons again. One
 * thread. */
#ifndef MMX_CMD_EXPORTER_H
#define MMX_CMD_EXPORTER_H

#include "cmd/ctl/ctl.h"

#include <stdio.h>
#include <sys/socket.h>

/* The reports to ask for; those needed every second come first. */
enum {
    SAID_POOLS,
    SAID_BUCKETS,
    SAID_EACH_SECOND,
    SAID_STATUS = SAID_EACH_SECOND,
    SAID_STATS,
    SAID_ENDS,
    SAID_PEERS,
    SAID_ROOMS,
    SAID_SLOW,
    SAID_HEALTH,
    SAID_COUNT
};

enum { BUCKETS = 20, PAST_S = 60 };
enum { PAST_ROOMS, PAST_BYTES, PAST_USE, PAST_P99, PAST_COUNT };

/* The last minute: a ring with an entry per second, and the last counters. */
struct past {
    uint64_t count;                     /* seconds added since the start */
    double seconds[PAST_S][PAST_COUNT]; /* NAN: unknown; p99: bucket + 1 */
    bool up;                            /* it answered the last time, which was
                                           at: */
    uint64_t at_ns;
    double rooms, bytes, used, upto[BUCKETS]; /* sums over all pools at that
                                                 time */
    double bounds[BUCKETS];                   /* of upto, in us; 0: no bound */
};

/* One daemon and its reports. */
struct daemon {
    const char *label; /* value of the label `daemon` */
    const char *path;  /* path of its socket */
    bool ids;          /* the page shows ids that this user may see */
    struct past past;
    /* Members below belong to one request: daemon_forget. */
    bool up;
    /* Rows, in memory of their own; empty: no answer. */
    struct reader said[SAID_COUNT];
    uint8_t *memory[SAID_COUNT];
};

enum { DAEMONS_MAX = 2 };

/* Asks the daemons for the first `reports` reports, for at most wait_s. */
void daemons_ask(
    struct daemon *d, uint32_t count, unsigned reports, unsigned wait_s);
void daemon_forget(struct daemon *d);

/* Returns the number in a row's column, finite and not negative; 0: none. */
double row_number(struct reader row, const char *column);

/* Adds a daemon's reports as this second. */
void past_take(struct past *p, const struct daemon *d);

/* What is served. False: serve it with a status that means unhealthy. */

/* Prints all metrics in Prometheus' text format. */
bool metrics_print(FILE *out, const struct daemon *daemons, uint32_t count);

/* Prints a page for people. */
bool page_print(FILE *out, const struct daemon *daemons, uint32_t count);

/* True if a server that listens at this address, and has these names too,
 * answers a request with this Host header (NULL: none). */
bool host_served(const char *header, const struct sockaddr_storage *at,
    const char *const *names, uint32_t count);

#endif
