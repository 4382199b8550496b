/* ctl.h - shared by the files of mmxctl. One thread; no state is kept. */
#ifndef MMX_CMD_CTL_H
#define MMX_CMD_CTL_H

#include "wire/rows.h"
#include "wire/wire.h"

#include <sys/types.h>

enum {
    CTL_SHOWN = 0,
    CTL_REFUSED = 1,   /* the daemon refused, or a check of doctor failed */
    CTL_NO_DAEMON = 2, /* there is none, or it does not answer */
    CTL_DIFFERS = 3,   /* conf-diff: mmxctl's exit status follows diff's */
    CTL_USAGE = 64
};

#define CTL_ENCODED "/run/mmx/encoded.sock"
#define CTL_LANGD   "/run/mmx/langd.sock"

/* The options and arguments of the command line. */
struct asked {
    const char *path;       /* path of the socket; NULL: not given */
    const char *file;       /* path of the configuration; NULL: not given */
    const char *also;       /* a path before the last one; NULL: none */
    int json, live, public; /* 1: given */
    bool waits, brief;
    uint64_t watch_s; /* 0: not given */
    uint64_t wait_s;  /* valid if it waits */
    /* Of a trace. */
    bool of_room;          /* only this room */
    uint64_t room, digits; /* its id; digits: mask of the known bits */
};

/* link.c: the wire; calls block for CTL_WAIT_S at most */

enum { CTL_WAIT_S = 10 };

/* One connection to one daemon. */
struct ctl {
    int s;             /* -1: not connected */
    uint64_t until_ns; /* no call waits beyond that; 0: no limit */
    int fd;            /* descriptor of the last message; -1: none */
    struct reader in;  /* the rest of the packet */
    struct reader got; /* answer of ctl_ask, stored in `answer` */
    uint8_t packet[LOCAL_PACKET_MAX];
    uint8_t answer[18u << 20];
};

/* Returns a connection whose calls wait at most wait_s seconds each, or NULL
 * and errno; ctl_close frees it. EAGAIN: the daemon accepts no more connections
 * now. */
struct ctl *ctl_open(const char *path, int wait_s);
void ctl_close(struct ctl *c);
/* Returns, in `out`, the path of the socket for orders of the daemon at `path`.
 * Returns `path` itself if this user cannot see that socket: then it may be the
 * right one already, or the daemon refuses. */
const char *ctl_orders(const char *path, char out[SOCKET_PATH_MAX]);
/* True if a daemon listens at the path; otherwise sets errno. */
bool ctl_listens(const char *path);
/* Sends HELLO as an engine that will open no room, and receives the answer. */
bool ctl_hello(struct ctl *c, uint32_t cells, struct local_msg *m);
bool ctl_send(struct ctl *c, const struct local_msg *m);
/* Receives the next message; its spans are valid until the next call. False:
 * errno, or 0 if the connection ended. */
bool ctl_next(struct ctl *c, struct local_msg *m);
/* Asks for a report and stores it in c->got. what: its name, or a command and
 * its arguments. False: no answer, see errno; or refused, m->report.err is set.
 */
bool ctl_ask(struct ctl *c, const char *what, struct local_msg *m);

/* Returns a descriptor that can be read when SIGTERM or SIGINT has come; -1:
 * errno. */
int ctl_ends(void);

/* Prints why a call of a connection that waits CTL_WAIT_S failed (m: its last
 * message); returns the exit status. */
int ctl_failed(const struct local_msg *m);

/* health.c: prints the health of the daemons at these sockets, at most two,
 * once they are healthy or a->wait_s have passed; returns the exit status. */
int health(const char *const *paths, uint32_t count, const struct asked *a);

/* drain.c: sends the order (drain or undrain), and shows the drain until
 * a->wait_s have passed; returns the exit status. */
int drain(struct ctl *c, const char *order, const struct asked *a);

/* size.c */

/* Writes a number of bytes, rounded with a unit for people. */
enum { SIZE_TEXT = 24 };
void size_text(uint64_t bytes, char out[SIZE_TEXT]);
/* Writes a length of time with a unit. */
enum { AGE_TEXT = 24 };
void age_text(uint64_t ns, char out[AGE_TEXT]);
/* Writes a moment of this host's monotonic clock as local time of day; whole:
 * as ISO 8601 date and time in UTC. */
enum { CLOCK_TEXT = 32 };
void clock_text(uint64_t ns, bool whole, char out[CLOCK_TEXT]);

/* The text of a refusal is untrusted: it may contain any name. */
enum { REFUSAL_TEXT = 520 };

/* keygen.c: writes a new key; returns the exit status. */
int keygen(const char *path);
/* Prints the public half of the key in the file; returns the exit status. */
int keygen_public(const char *path);

/* rows.c: reports */

/* Takes the cells of the next row. False: there is none. */
bool rows_next(struct reader *rows, struct reader *row);
/* Copies the text of a row's cell, cut to size and safe for a terminal; empty
 * if the cell is missing. */
void rows_get(struct reader row, const char *name, char *out, size_t size);
/* Returns a number of the row; 0 if it is missing. */
uint64_t rows_number(struct reader row, const char *name);
/* Copies the value as text. */
void rows_text(const struct cell *c, char *out, size_t size);
/* Begin a row, and append cells to it. */
void rows_put(struct writer *w);
void rows_put_text(struct writer *w, const char *name, const char *text);
void rows_put_number(struct writer *w, const char *name, uint64_t number);

/* json.c */

/* The state of printing an array of objects; zero at its start. */
struct json {
    bool rows, cells;
};

/* True if this host can translate the number: a user's name, or a time of day.
 * Writes that to out, and its column's name to *name. */
enum { NAMED_TEXT = 64 };
bool cell_named(const struct cell *c, const char **name, char out[NAMED_TEXT]);
/* Prints rows as JSON. */
void rows_json(struct reader rows);
/* The same as a part of an array (json: zero at its start). Each object begins
 * with the daemon's name, unless that is NULL. */
void rows_json_part(struct json *json, struct reader rows, const char *daemon);
void rows_json_end(const struct json *json);

/* table.c: prints rows as a table, or a cell per line. */
void rows_table(struct reader rows, bool upright);
/* Clears a terminal before each repetition of --watch, and prints a title. */
void rows_again(const struct asked *a, const char *what);
/* Returns the lines of the terminal at stdout; 0: it is not a terminal. */
uint32_t screen_lines(void);

/* host.c: the daemons that are queried */

enum { HOST_MAX = 2 };
/* The sockets of a host's daemons in /run/mmx, mmx-encoded's first. */
extern const char *const ctl_sockets[HOST_MAX];

struct host_side {
    struct ctl *c; /* connected and greeted by WELCOME */
    uint8_t role;
    char name[64]; /* from WELCOME, safe for a terminal */
};
struct host {
    struct host_side sides[HOST_MAX];
    uint32_t count;
    bool named; /* named on the command line: need not be printed */
};
/* Fills in the sockets that the command line names, or those in /run/mmx, and
 * returns their number; prints a message if there are none. dead: includes
 * sockets without a daemon, which otherwise are reported and skipped. */
uint32_t host_sockets(
    const struct asked *a, bool dead, const char *here[HOST_MAX]);
/* Connects to all sockets of `paths`. Returns an exit status. CTL_SHOWN means
 * success: the caller then calls host_close. */
int host_open(
    struct host *h, const char *const *paths, uint32_t count, bool named);
void host_close(struct host *h);
/* Prints the report `what` of each daemon of h, again and again if a->watch_s
 * is set. Returns the exit status. */
int host_show(struct host *h, const char *what, const struct asked *a);

/* trace.c: prints happenings; each returns the exit status */

/* Reads a room's number, or ".." and its last 8 digits as in the log. */
bool trace_room(const char *word, struct asked *a);

/* Prints the happenings of running daemons, which share a clock. */
int trace_live(const struct host *h, const struct asked *a);

/* top.c: shows what the daemons do, or a summary; returns the exit status. */
int top(struct host *h, const struct asked *a);

/* findings.c: of doctor, as lines or JSON */

enum finding { FINE, WARN, FAIL };
struct findings {
    bool as_json;
    struct json json;
    const char *about; /* path of the socket */
    uint32_t count[3];
};
/* Prints one finding. advice: how to correct it; "" for FINE. */
void findings_say(struct findings *r, enum finding f, const char *check,
    const char *text, const char *advice);
/* Prints a finding that is FINE, without the advice, or else `bad`. */
void findings_hold(struct findings *r, bool fine, enum finding bad,
    const char *check, const char *text, const char *advice);
void findings_end(const struct findings *r);

/* doctor.c, where.c, unit.c, start.c, here.c, peer.c */

/* What a daemon has reported about itself. */
struct seen {
    uint8_t role;       /* ROLE_ANY: it did not answer */
    char carriers[256]; /* the carriers that it has */
    char not_by[192];   /* why it lacks the others */
    bool absent;        /* apparently none is meant to run here */
};

/* Checks everything an engine needs to reach and use one daemon; fills *seen,
 * which must be zero. */
void doctor_daemon(struct findings *r, const char *path, struct seen *seen);
/* Checks the path, its folder and this user. reached: connect worked. */
void doctor_path(struct findings *r, const char *path, bool reached);
/* Reports if an engine could pose as a daemon: this user can read the key, but
 * does not own the socket at `path`. */
#define DEFAULT_KEY "/etc/mmx/fleet.key"
void doctor_key(struct findings *r, const char *path, const char *key);
/* Explains a connect that failed with this errno. */
void doctor_reach(struct findings *r, const char *path, int error);
/* Checks that the daemon's unit permits what the configuration file needs.
 * seen: the report of the file's daemon; if its role is ROLE_ANY, the role is
 * taken from the file's name, or else from its keys. */
void doctor_unit(struct findings *r, const char *file, const struct seen *seen);
/* What the daemon's unit, or its last drop-in, names, and their numbers. */
struct runs_as {
    char user[64], group[64];
    uid_t uid; /* -1: unknown */
    gid_t gid;
};
struct runs_as unit_runs_as(const char *role);
/* Reports why the daemon with this file does not start. */
void doctor_start(struct findings *r, const char *file, uint8_t role);
/* Checks this process's limits and environment. pool_bytes: of all pools. */
void doctor_here(struct findings *r, uint64_t pool_bytes);
/* Checks the peers of the daemon, given as the rows of QUERY peers. */
void doctor_peers(struct findings *r, struct reader rows, bool langd);

#endif
