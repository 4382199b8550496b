/* trace.h - how a brain writes to the flight recorder: the happenings of
 * happening.def. For lib/core only. Pure; one thread. */
#ifndef MMX_CORE_TRACE_TRACE_H
#define MMX_CORE_TRACE_TRACE_H

#include "core/trace/recorder.h"
#include "core/head.h"

enum happening_kind {
#define HAPPENING(NAME, word, a, b, doc) HAPPENED_##NAME,
#include "wire/happening.def"
    HAPPENED_COUNT
};

/* The columns of a row of happening.def. */
struct happening_words {
    const char *word, *a, *b;
};
extern const struct happening_words happening_words[HAPPENED_COUNT];

/* A room's engine and its rows change often, so only one change per this number
 * of rows is recorded. */
#define HAPPENING_ROWS 1024u

/* True if the change is recorded: rows were 0, or pass a multiple of
 * HAPPENING_ROWS. */
static inline bool happening_due(uint32_t before, uint32_t after)
{
    return before == 0 || before / HAPPENING_ROWS != after / HAPPENING_ROWS;
}

/* Records what happened to the room with this history, at the time of the last
 * event. peer: NONE: no peer. */
static inline void happened(struct brain *b, enum happening_kind kind,
    const struct room *r, const struct history *history, uint32_t peer,
    uint32_t x, uint32_t y)
{
    *recorder_next(b->c.recorder) = (struct happening){b->now_ns, r->id, x, y,
        (uint32_t)history->who, happening_tag(kind, 0, peer)};
}

/* Records a message about the room, SENT or GOT. who: the room's user; NONE:
 * not known here. */
static inline void happened_message(struct brain *b, enum happening_kind kind,
    const struct peer_msg *m, uint32_t who, uint32_t peer, uint32_t rows)
{
    *recorder_next(b->c.recorder) = (struct happening){b->now_ns, m->room,
        m->seq, rows, who, happening_tag(kind, m->type, peer)};
}

/* Records what happened to a peer; p NULL: to the daemon. */
void happened_here(
    struct brain *b, enum happening_kind kind, const struct peer *p);

/* True if an engine's trace context is well-formed, or empty. */
static inline bool trace_good(struct span traceparent)
{
    struct traceparent t;

    return traceparent.len == 0 || traceparent_read(traceparent, &t);
}

/* Three happenings hold a context: first half of the trace, second half,
 * parent. Their peer field has version and flags. */
#define CONTEXT_PARTS 3

/* Stores the trace context that came with a room: from an engine, or from a
 * peer if no engine here gave one. Ignores one that is malformed. */
void trace_context(struct brain *b, const struct room *r,
    struct history *history, struct span traceparent, bool of_peer);

/* report.c: shows at most TRACE_SLICE happenings, from number at->at on. */
#define TRACE_SLICE 4096u
void show_trace(const struct brain *b, struct show_at *at, struct rows_out *s);

#endif
