/* ctl.h - what the files of mmxctl share. One thread; nothing is kept. */
#ifndef MMX_CMD_CTL_H
#define MMX_CMD_CTL_H

#include "wire/wire.h"

#include <sys/types.h>

enum {
    CTL_SHOWN = 0,
    CTL_REFUSED = 1, /* by the daemon, or a check of the doctor failed */
    CTL_NO_DAEMON = 2,
    CTL_USAGE = 64
};

#define CTL_ENCODED "/run/mmx/encoded.sock"
#define CTL_LANGD   "/run/mmx/langd.sock"

/* link.c: the wire, blocking, at most 10 s at a time */

/* Returns a connected socket, or -1 and errno. */
int ctl_connect(const char *path);
/* Fills in the HELLO of an engine that opens no room. */
void ctl_hello(struct local_msg *m);
/* Sends the messages as one packet, numbered from 1. */
bool ctl_send(int s, struct local_msg *msgs, uint32_t count);
/* Receives the next packet, and in *fd the descriptor that came with it, which
 * the caller closes; -1: none. Returns what recv returns. */
ssize_t ctl_recv(int s, uint8_t packet[LOCAL_PACKET_MAX], int *fd);

/* rows.c: what QUERY gives as JSON, an array of flat objects */

/* Returns the row after `row`, or the first one in `row`; NULL: no more. */
const char *rows_next(const char *row);
/* Copies a member's value as text, cut to size. False: none, out is empty. */
bool rows_get(const char *row, const char *name, char *out, size_t size);

/* report.c: findings, as lines or as JSON */

enum finding { FINE, WARN, FAIL };
struct report {
    bool json;
    const char *about; /* the socket's path */
    uint32_t count[3];
};
/* Prints one finding. advice: what to do about it; "" for FINE. */
void report_say(struct report *r, enum finding f, const char *check,
    const char *text, const char *advice);
void report_end(const struct report *r);

/* doctor.c, where.c, here.c, peer.c */

/* Checks everything an engine needs to reach one daemon and use it. */
void doctor_daemon(struct report *r, const char *path);
/* Checks the path, its folder and this user. reached: connect worked. */
void doctor_path(struct report *r, const char *path, bool reached);
/* Explains a connect that failed with this errno. */
void doctor_reach(struct report *r, const char *path, int error);
/* Checks limits and environment of this process. pool_bytes: of all pools. */
void doctor_here(struct report *r, uint64_t pool_bytes);
/* Checks the peers of the daemon, given as the rows of QUERY peers. */
void doctor_peers(struct report *r, const char *rows, bool langd);

#endif
