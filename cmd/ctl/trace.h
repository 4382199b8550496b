/* trace.h - shared by the files of mmxctl trace: the happenings of up to
 * SIDES_MAX daemons, in one order. One thread. */
#ifndef MMX_CMD_TRACE_H
#define MMX_CMD_TRACE_H

#include "ctl.h"

#define SIDES_MAX 8

enum happening_kind {
#define HAPPENING(NAME, word, a, b, phase, doc) HAPPENED_##NAME,
#include "wire/happening.def"
    HAPPENED_COUNT
};

/* A row of happening.def. */
struct happening_row {
    const char *word, *a, *b, *phase;
};
extern const struct happening_row happening_rows[HAPPENED_COUNT];

struct happening {
    uint64_t number, room;
    int64_t ns;      /* by the side's clock; later by the first side's */
    bool of_room;    /* false: of the daemon, or of a room that is hidden */
    uint8_t kind;    /* enum happening_kind */
    uint8_t message; /* enum peer_type; 0: none */
    uint8_t side;
    uint32_t seq;  /* of the message */
    uint32_t a, b; /* ROWS_UNKNOWN: not given */
    char text[64]; /* of `reason` */
    char peer[64];
    struct happening *cause; /* what caused it: the send of the same message */
    uint32_t flow;           /* number shared with its cause; 0: none */
};

struct side {
    char name[64];
    uint8_t role;
    struct happening *all; /* in recorded order */
    size_t count, cap;
    uint64_t next; /* number of the next one to ask for */
};

struct trace {
    struct side sides[SIDES_MAX];
    uint32_t sides_count;
    struct happening **all; /* of all sides, in one order; set by trace_join */
    size_t count;
    struct json json; /* state of the output so far */
    int64_t from_ns;  /* time of the first printed; INT64_MIN: none yet */
    int name_width, room_width; /* of lines so far; 0: no room in them */
};

/* trace_read.c */

/* Adds the rows of a report. False: malformed, or no memory. */
bool trace_take(struct side *s, uint32_t number, struct reader rows);
/* Appends the happening as a row; seq: also its message's number. */
void trace_put(struct writer *w, const struct happening *h, bool seq);
/* Writes a side to a file; reads it back, for trace merge. */
bool trace_save(const struct side *s, const char *path);
bool trace_load(struct side *s, uint32_t number, const char *path);

/* trace_join.c */

/* Finds the cause of each happening: for a received message its send at another
 * side, for landed rows their send. */
bool trace_pair(struct trace *t);
/* The difference of two recordings' clocks: the second is ahead by offset_ns,
 * give or take within_ns. */
struct clocks {
    int64_t offset_ns, within_ns;
    uint32_t there, back; /* messages that confirm it, by direction */
    bool drifted;         /* no single offset fits all messages */
};
/* Compares the clocks of sides 0 and 1. False: messages do not connect them in
 * both directions. Call after trace_pair. */
bool trace_clocks(const struct trace *t, struct clocks *out);
/* Puts all happenings into one order in which each comes after its cause. A
 * happening's time can be slightly early; it is raised if needed. */
bool trace_join(struct trace *t);
void trace_free(struct trace *t);

/* trace_print.c */

/* Makes the columns wide enough for h. */
void trace_widen(struct trace *t, const struct happening *h);
/* Prints a line. from_ns: zero point of its time. */
void trace_line(
    const struct trace *t, const struct happening *h, int64_t from_ns);
/* Prints the next object of an array, which rows_json_end ends. */
void trace_json(struct trace *t, const struct happening *h);
/* Writes Perfetto's JSON. room: only this one; NULL: all. */
bool trace_perfetto(
    const struct trace *t, const uint64_t *room, const char *path);

#endif
