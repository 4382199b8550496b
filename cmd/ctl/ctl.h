/* ctl.h - what the files of mmxctl share. One thread; nothing is kept. */
#ifndef MMX_CMD_CTL_H
#define MMX_CMD_CTL_H

#include "wire/rows.h"
#include "wire/wire.h"

#include <sys/types.h>

enum {
    CTL_SHOWN = 0,
    CTL_REFUSED = 1, /* by the daemon, or a check of the doctor failed */
    CTL_NO_DAEMON = 2,
    CTL_DIFFERS = 3, /* conf-diff: mmxctl's exit status is as diff's then */
    CTL_USAGE = 64
};

#define CTL_ENCODED "/run/mmx/encoded.sock"
#define CTL_LANGD   "/run/mmx/langd.sock"

/* What the command line asks for. */
struct asked {
    const char *path; /* of the socket; NULL: not given */
    const char *file; /* of the configuration; NULL: not given */
    bool json, live, waits, bytes, diff, now, public;
    bool once, brief;
    uint64_t watch_s; /* 0: not given */
    uint64_t wait_s;  /* if it waits */
    const char *also; /* a path before the last one; NULL: not given */
    const char *perfetto, *save;
    bool follow;
};

/* The same for a trace. */
struct trace_asked {
    const char *perfetto, *save; /* files to write; NULL: lines instead */
    bool follow, json;
    bool of_room;          /* of this room alone */
    uint64_t room, digits; /* its id; digits: bits of it that are known */
};

/* link.c: the wire, blocking, at most CTL_WAIT_S at a time */

enum { CTL_WAIT_S = 10 };

/* One connection to one daemon. */
struct ctl {
    int s;                  /* -1: not connected */
    uint64_t until_ns;      /* no call waits longer than that; 0: no limit */
    int fd;                 /* came with the last message; -1: none */
    struct reader in;       /* the rest of the packet */
    struct reader got;      /* answer of ctl_ask, in `answer` */
    struct writer gathered; /* of it so far */
    uint8_t packet[LOCAL_PACKET_MAX];
    uint8_t answer[18u << 20];
};

/* Returns a connection whose calls wait for at most wait_s seconds each, or
 * NULL and errno; ctl_close frees it. EAGAIN: the daemon accepts none now. */
struct ctl *ctl_open(const char *path, int wait_s);
void ctl_close(struct ctl *c);
/* Returns where the daemon at `path` takes orders, in `out`, or the path itself
 * where this user sees none: `path` is that one, or the daemon refuses. */
const char *ctl_orders(const char *path, char out[SOCKET_PATH_MAX]);
/* True if a daemon listens there; else errno. */
bool ctl_listens(const char *path);
/* Sends a HELLO of an engine that opens no room. */
bool ctl_greet(struct ctl *c, uint32_t cells);
/* The same, and receives the answer. */
bool ctl_hello(struct ctl *c, uint32_t cells, struct local_msg *m);
bool ctl_send(struct ctl *c, const struct local_msg *m);
/* Receives the next message, whose spans are good until the next call. False:
 * errno, 0 for the end of the connection. */
bool ctl_next(struct ctl *c, struct local_msg *m);
/* Asks for a report and gathers it in c->got. what: its name, or that of a
 * command and its arguments. False: no answer, errno; or refused,
 * m->report.err is set. */
bool ctl_ask(struct ctl *c, const char *what, struct local_msg *m);

/* The same in steps, for those that wait for several daemons: asks, and takes
 * each message that comes. True: it was the last one. */
bool ctl_query(struct ctl *c, const char *what);
bool ctl_take(struct ctl *c, const struct local_msg *m);

/* Prints why a call failed, m being the last message; returns the exit status.
 */
int ctl_failed(const struct local_msg *m);
/* Returns the monotonic clock. */
uint64_t ctl_now_ns(void);

/* health.c: prints how the daemons at these sockets do, at most two, once they
 * do well or a->wait_s have passed; returns the exit status. */
int health(const char *const *paths, uint32_t count, const struct asked *a);

/* drain.c: has the order (drain or undrain) carried out, and shows the drain
 * until a->wait_s have passed; returns the exit status. */
int drain(struct ctl *c, const char *order, const struct asked *a);

/* size.c */

/* Writes a number of bytes with a unit that people read, or the number. */
enum { SIZE_TEXT = 24 };
void size_text(uint64_t bytes, bool exact, char out[SIZE_TEXT]);
/* Writes a length of time with a unit. */
enum { AGE_TEXT = 24 };
void age_text(uint64_t ns, char out[AGE_TEXT]);
/* Writes a moment of the monotonic clock of this host as a time of the local
 * day, or whole, with the date, as ISO 8601 has it, of UTC. */
enum { CLOCK_TEXT = 32 };
void clock_text(uint64_t ns, bool whole, char out[CLOCK_TEXT]);

/* The text of a refusal is a stranger's: a name in it may hold anything. */
enum { REFUSAL_TEXT = 520 };

/* keygen.c: writes a new key; returns the exit status. */
int keygen(const char *path);
/* Prints the public half of the key in the file; returns the exit status. */
int keygen_public(const char *path);

/* rows.c: what a daemon answers in FORM_ROWS */

/* Takes the cells of the next row. False: no more. */
bool rows_next(struct reader *rows, struct reader *row);
/* Copies the text of a row's cell, cut to size and fit for a terminal; empty
 * when there is none. */
void rows_get(struct reader row, const char *name, char *out, size_t size);
/* Returns a number of the row; 0: there is none. */
uint64_t rows_number(struct reader row, const char *name);
/* Copies the value as text. */
void rows_text(const struct cell *c, char *out, size_t size);
/* json.c */

/* True if the number stands for something that has a name on this host, a user
 * or a moment, which is written to out, its column to *name. */
enum { NAMED_TEXT = 64 };
bool cell_named(const struct cell *c, const char **name, char out[NAMED_TEXT]);
void json_text(
    struct writer *w, struct json *json, const char *name, const char *text);
/* Prints rows as JSON. */
void rows_json(struct reader rows);
/* The same as a part of an array, zero at its start: each object begins with
 * the daemon's name; NULL: with none. */
void rows_json_part(struct json *json, struct reader rows, const char *daemon);
void rows_json_end(const struct json *json);

/* table.c: prints rows as a table, or one cell in a line. exact: sizes as
 * numbers of bytes. */
void rows_table(struct reader rows, bool upright, bool exact);

/* screen.c: a terminal that is drawn on, line by line */

struct screen {
    bool live; /* stdout is drawn on, keys are read; false: lines are printed */
    int width, height, line;
};
/* Returns the columns of the terminal at stdout; 0: it is none. */
int screen_width(void);
/* Clears a terminal for the next look of --watch, and names what is shown. */
void screen_again(const struct asked *a, const char *what);
/* Begins to draw; stdout stays as it is where live is false. */
void screen_open(struct screen *s, bool live);
/* Leaves the terminal as it was. */
void screen_close(struct screen *s);
void screen_begin(struct screen *s);
/* Draws one line, cut to the width, if there is place for it. */
void screen_line(struct screen *s, const char *format, ...) PRINTF_LIKE(2, 3);
void screen_end(struct screen *s);
/* Waits for a key; 0: none came in time, one of several bytes (an arrow), or
 * the size changed; -1: a signal asks the program to end. */
#define SCREEN_ESC 27
int screen_key(struct screen *s, int ms);

/* host.c: the daemons that are asked */

enum { HOST_MAX = 2 };

struct host_side {
    struct ctl *c; /* connected, WELCOME has come */
    uint8_t role;
    char name[64]; /* of it, fit for a terminal */
};
struct host {
    struct host_side sides[HOST_MAX];
    uint32_t count;
    bool named; /* the command line names one: its name is no news */
};
/* Fills in the sockets that the command line names, or else those in /run/mmx,
 * and returns their number. Says that there is none. dead: also those without a
 * daemon, which else are named and left out. */
uint32_t host_sockets(
    const struct asked *a, bool dead, const char *here[HOST_MAX]);
/* Connects to all. Returns an exit status; CTL_SHOWN: host_close ends it. */
int host_open(
    struct host *h, const char *const *paths, uint32_t count, bool named);
void host_close(struct host *h);
/* Prints their reports, again and again with a->watch_s; returns the exit
 * status. */
int host_show(struct host *h, const char *what, const struct asked *a);

/* trace.c: what happened; returns the exit status */

/* Reads a room's number, or ".." and the last 8 digits that the log has. */
bool trace_room(const char *word, struct trace_asked *a);

/* Of the daemons, which share a clock. */
int trace_live(const struct host *h, const struct trace_asked *a);
/* Of two recordings, whose clocks are compared. */
int trace_merge(const char *const *files, const struct trace_asked *a);

/* top.c: shows the daemons live, once, or in a few lines; returns the exit
 * status. */
int top(struct host *h, const struct asked *a);

/* findings.c: of the doctor, as lines or as JSON */

enum finding { FINE, WARN, FAIL };
struct findings {
    bool as_json;
    struct json json;
    const char *about; /* the socket's path */
    uint32_t count[3];
};
/* Prints one finding. advice: what to do about it; "" for FINE. */
void findings_say(struct findings *r, enum finding f, const char *check,
    const char *text, const char *advice);
void findings_end(const struct findings *r);

/* doctor.c, where.c, unit.c, start.c, here.c, peer.c */

/* What a daemon has said of itself. */
struct seen {
    uint8_t role;       /* ROLE_ANY: no daemon answered */
    char carriers[256]; /* what its rows can go by */
    char not_by[192];   /* why not by the other carriers */
    bool absent;        /* none is meant to run here, as far as can be seen */
};

/* Checks everything an engine needs to reach one daemon and use it; fills
 * *seen, which is zero before. */
void doctor_daemon(struct findings *r, const char *path, struct seen *seen);
/* Checks the path, its folder and this user. reached: connect worked. */
void doctor_path(struct findings *r, const char *path, bool reached);
/* Says so if an engine could be a daemon: this user, who is not that of the
 * socket at `path`, can read the key. */
#define DEFAULT_KEY "/etc/mmx/fleet.key"
void doctor_key(struct findings *r, const char *path, const char *key);
/* Explains a connect that failed with this errno. */
void doctor_reach(struct findings *r, const char *path, int error);
/* Checks that the daemon's unit lets it use what the configuration file asks
 * for. seen: the daemon whose file it is; of role ROLE_ANY, the file's name
 * says whose it is, or else its keys. */
void doctor_unit(struct findings *r, const char *file, const struct seen *seen);
/* Says why the daemon whose file it is does not start. */
void doctor_start(struct findings *r, const char *file, uint8_t role);
/* Checks limits and environment of this process. pool_bytes: of all pools. */
void doctor_here(struct findings *r, uint64_t pool_bytes);
/* Checks the peers of the daemon, given as the rows of QUERY peers. */
void doctor_peers(struct findings *r, struct reader rows, bool langd);

#endif
