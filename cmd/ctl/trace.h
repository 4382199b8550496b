/* trace.h - shared by the files of mmxctl trace, and the reading also by
 * mmx-otel: the happenings of the daemons of a host. One thread. */
#ifndef MMX_CMD_TRACE_H
#define MMX_CMD_TRACE_H

#include "ctl.h"

enum happening_kind {
#define HAPPENING(NAME, word, a, b, doc) HAPPENED_##NAME,
#include "wire/happening.def"
    HAPPENED_COUNT
};

/* A row of happening.def. */
struct happening_row {
    const char *word, *a, *b;
};
extern const struct happening_row happening_rows[HAPPENED_COUNT];

struct happening {
    uint64_t number, room;
    int64_t ns;      /* by the host's clock */
    bool of_room;    /* false: about the daemon, or about a hidden room */
    uint8_t kind;    /* enum happening_kind */
    uint8_t message; /* enum peer_type; 0: none */
    uint8_t side;
    uint32_t a, b; /* ROWS_UNKNOWN: not given */
    char text[64]; /* text of `reason` */
    char peer[64];
};

struct happenings {
    struct happening *all; /* freed with free() */
    size_t count, cap;
    uint64_t next; /* number of the daemon's next happening to ask for */
};

struct trace {
    const struct host *of;
    struct happenings got;      /* of all daemons, in one order */
    struct json json;           /* state of the output so far */
    int name_width, room_width; /* widths so far; 0: no line with a room yet */
};

/* trace_read.c */

/* Adds the daemon's happenings from number g->next on, as many as one report
 * holds. side: its number in them. m: its answer. False: for ctl_failed. */
bool trace_ask(
    struct ctl *c, struct happenings *g, uint32_t side, struct local_msg *m);

/* trace_print.c */

/* Makes the columns wide enough for h. */
void trace_widen(struct trace *t, const struct happening *h);
/* Prints a line. */
void trace_line(const struct trace *t, const struct happening *h);
/* Prints the next object of an array, which rows_json_end ends. */
void trace_json(struct trace *t, const struct happening *h);

#endif
