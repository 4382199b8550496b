/* exporter.h - what the files of mmx-exporter share: answers.c asks the
 * daemons, metrics.c and page.c print what they said, host.c says for which
 * names. The daemons are asked
 * anew for each request; nothing is kept. One thread. */
#ifndef MMX_CMD_EXPORTER_H
#define MMX_CMD_EXPORTER_H

#include "cmd/ctl/ctl.h"

#include <stdio.h>
#include <sys/socket.h>

/* The reports that are asked for. */
enum {
    SAID_STATUS,
    SAID_STATS,
    SAID_ENDS,
    SAID_POOLS,
    SAID_PEERS,
    SAID_ROOMS,
    SAID_HISTOGRAMS,
    SAID_BUCKETS,
    SAID_HEALTH,
    SAID_COUNT
};

/* One daemon and what it said. */
struct daemon {
    const char *label; /* value of the label `daemon` */
    const char *path;  /* of its socket */
    bool up;
    /* Rows, in memory of their own; empty: it did not answer, or is older. */
    struct reader said[SAID_COUNT];
    uint8_t *memory[SAID_COUNT];
};

enum { DAEMONS_MAX = 2 };

/* Asks the daemons, for a few seconds at most. */
void daemons_ask(struct daemon *d, uint32_t count);
void daemon_forget(struct daemon *d);

/* Returns the number in a row's column, which is finite and not negative; 0:
 * there is none. */
double row_number(struct reader row, const char *column);

/* Prints all metrics in Prometheus' text format. */
void metrics_print(FILE *out, const struct daemon *daemons, uint32_t count);

/* Prints a page for people. */
void page_print(FILE *out, const struct daemon *daemons, uint32_t count);

/* True if a request with this header Host (NULL: none) is served by a server
 * that listens at the address and has these names, too. */
bool host_served(const char *header, const struct sockaddr_storage *at,
    const char *const *names, uint32_t count);

#endif
