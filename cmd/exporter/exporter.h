/* exporter.h - what the files of mmx-exporter share: answers.c asks the
 * daemons, metrics.c and page.c print what they said, past.c keeps a minute of
 * it, host.c says for which names. The daemons are asked anew for each request.
 * One thread. */
#ifndef MMX_CMD_EXPORTER_H
#define MMX_CMD_EXPORTER_H

#include "cmd/ctl/ctl.h"

#include <stdio.h>
#include <sys/socket.h>

/* The reports that are asked for, those of each second first. */
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

/* The last minute: a ring of its seconds, and what they were taken from. */
struct past {
    uint64_t count; /* of seconds that were ever put there */
    double seconds[PAST_S][PAST_COUNT]; /* NAN: not known; p99: bucket + 1 */
    bool up;                            /* it answered last, at: */
    uint64_t at_ns;
    double rooms, bytes, used, upto[BUCKETS]; /* of all pools by then */
    double bounds[BUCKETS];                   /* of upto, in us; 0: none */
};

/* One daemon and what it said. */
struct daemon {
    const char *label; /* value of the label `daemon` */
    const char *path;  /* of its socket */
    bool ids;          /* the page shows those that this user may know */
    struct past past;
    /* What follows is of one request: daemon_forget. */
    bool up;
    /* Rows, in memory of their own; empty: it did not answer. */
    struct reader said[SAID_COUNT];
    uint8_t *memory[SAID_COUNT];
};

enum { DAEMONS_MAX = 2 };

/* Asks the daemons for the first `reports`, for wait_s seconds at most. */
void daemons_ask(
    struct daemon *d, uint32_t count, unsigned reports, unsigned wait_s);
void daemon_forget(struct daemon *d);

/* Returns the number in a row's column, which is finite and not negative; 0:
 * there is none. */
double row_number(struct reader row, const char *column);

/* Notes what a daemon has said of this second. */
void past_take(struct past *p, const struct daemon *d);

/* What is served. False: with a status that says that it is not well. */

/* Prints all metrics in Prometheus' text format. */
bool metrics_print(FILE *out, const struct daemon *daemons, uint32_t count);

/* Prints a page for people. */
bool page_print(FILE *out, const struct daemon *daemons, uint32_t count);

/* True if a request with this header Host (NULL: none) is served by a server
 * that listens at the address and has these names, too. */
bool host_served(const char *header, const struct sockaddr_storage *at,
    const char *const *names, uint32_t count);

#endif
