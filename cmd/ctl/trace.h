/* trace.h - what the files of mmxctl trace share: the happenings of up to
 * SIDES_MAX daemons, in one order. One thread. */
#ifndef MMX_CMD_TRACE_H
#define MMX_CMD_TRACE_H

#include "ctl.h"

#define SIDES_MAX 8

enum happening_kind {
#define HAPPENING(NAME, word, a, b, phase, doc) HAPPENED_##NAME,
#include "wire/happening.def"
#undef HAPPENING
    HAPPENED_COUNT
};

/* A row of happening.def. */
struct happening_row {
    const char *word, *a, *b, *phase;
};
extern const struct happening_row happening_rows[HAPPENED_COUNT];

struct happening {
    uint64_t number, room;
    int64_t ns;      /* of the side's clock; then of the first side's */
    bool of_room;    /* else the daemon's own, or a room that is not shown */
    uint8_t kind;    /* enum happening_kind */
    uint8_t message; /* enum peer_type; 0: none */
    uint8_t side;
    uint32_t seq;  /* of the message */
    uint32_t a, b; /* ROWS_UNKNOWN: not said */
    char text[64]; /* of `reason` */
    char peer[64];
    struct happening *cause; /* what came before it: the same message, sent */
    uint32_t flow;           /* number that it has with its cause; 0: none */
};

struct side {
    char name[64];
    uint8_t role;
    struct happening *all; /* in their order */
    size_t count, cap;
    uint64_t next; /* number to ask from */
};

struct trace {
    struct side sides[SIDES_MAX];
    uint32_t sides_count;
    struct happening **all; /* of all sides, in one order; after trace_join */
    size_t count;
    struct json json; /* printed so far */
    int64_t from_ns;  /* of the first that was printed; INT64_MIN: none */
    int name_width, room_width; /* of lines so far; 0: without a room */
};

/* trace_read.c */

/* Takes the rows of a report. False: they are malformed, or no memory. */
bool trace_take(struct side *s, uint32_t number, struct reader rows);
/* Writes what a side has to a file, and reads it back: for trace merge. */
bool trace_save(const struct side *s, const char *path);
bool trace_load(struct side *s, uint32_t number, const char *path);

/* trace_join.c */

/* Finds for each message that one side got what another side sent, and for
 * rows that landed when they were sent. */
bool trace_pair(struct trace *t);
/* What two recordings say of their clocks: the second one's is ahead by
 * offset_ns, within `within_ns`. */
struct clocks {
    int64_t offset_ns, within_ns;
    uint32_t there, back; /* messages that say so, by direction */
    bool drifted;         /* no one offset fits all messages */
};
/* Compares the clocks of sides 0 and 1. False: not both have sent messages that
 * the other got. After trace_pair. */
bool trace_clocks(const struct trace *t, struct clocks *out);
/* Brings side 1 to the clock of side 0. */
void trace_shift(struct trace *t, const struct clocks *c);
/* Puts all happenings into one order, in which nothing comes before its cause:
 * a happening's time is a little older than it at most, and is raised. */
bool trace_join(struct trace *t);
void trace_free(struct trace *t);

/* trace_print.c */

/* Makes the columns wide enough. */
void trace_widen(struct trace *t, const struct happening *h);
/* Prints a line. from_ns: what its time counts from. */
void trace_line(
    const struct trace *t, const struct happening *h, int64_t from_ns);
/* Prints the next object of an array; h NULL: its end. */
void trace_json(
    const struct trace *t, const struct happening *h, struct json *j);
/* Writes Perfetto's JSON. room: of this room alone; NULL: all. */
bool trace_perfetto(
    const struct trace *t, const uint64_t *room, const char *path);

#endif
