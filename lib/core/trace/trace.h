/* trace.h - what a brain tells the flight recorder: the happenings of
 * happening.def. For lib/core only. Pure; one thread. */
#ifndef MMX_CORE_TRACE_TRACE_H
#define MMX_CORE_TRACE_TRACE_H

#include "core/trace/recorder.h"
#include "core/head.h"

enum happening_kind {
#define HAPPENING(NAME, word, a, b, phase, doc) HAPPENED_##NAME,
#include "wire/happening.def"
#undef HAPPENING
    HAPPENED_COUNT
};

/* What a row of happening.def says, by kind. */
struct happening_words {
    const char *word, *a, *b;
};
extern const struct happening_words happening_words[HAPPENED_COUNT];

/* A room's engine and rows change often: of these every change by this many
 * rows is recorded. */
#define HAPPENING_ROWS 1024u

/* True if the change is to be recorded: rows were 0, or pass a multiple of
 * HAPPENING_ROWS. */
static inline bool happening_due(uint32_t before, uint32_t after)
{
    return before == 0 || before / HAPPENING_ROWS != after / HAPPENING_ROWS;
}

/* Records what happened to the room with this history, at the time of the last
 * event. peer: NONE for none. */
static inline void happened(struct brain *b, enum happening_kind kind,
    const struct room *r, const struct ended *history, uint32_t peer,
    uint32_t x, uint32_t y)
{
    *recorder_next(b->c.recorder) = (struct happening){b->now_ns, r->id, x, y,
        (uint32_t)history->who, happening_tag(kind, 0, peer)};
}

/* Records a message about the room, SENT or GOT. who: its user; NONE: it is not
 * known here. */
static inline void happened_message(struct brain *b, enum happening_kind kind,
    const struct peer_msg *m, uint32_t who, uint32_t peer, uint32_t rows)
{
    *recorder_next(b->c.recorder) = (struct happening){b->now_ns, m->room,
        m->seq, rows, who, happening_tag(kind, m->type, peer)};
}

/* Records what happened to a peer, or to the daemon: p NULL. */
void happened_here(
    struct brain *b, enum happening_kind kind, const struct peer *p);

/* True if an engine's trace context is of good form, or empty. */
static inline bool trace_good(struct span traceparent)
{
    struct traceparent t;

    return traceparent.len == 0 || traceparent_read(traceparent, &t);
}

/* Three happenings hold a context: of 1 the trace's first half, 2 its second
 * half, 3 the parent; the peer's place has version and flags. */
#define CONTEXT_PARTS 3

/* Takes the trace context that came with a room: an engine's, or a peer's
 * where no engine here gave one. One that is of no good form is left. */
void trace_context(struct brain *b, const struct room *r, struct ended *history,
    struct span traceparent, bool of_peer);

/* report.c: shows happenings from number at->at on, TRACE_SLICE at most. */
#define TRACE_SLICE 4096u
void show_trace(const struct brain *b, struct show_at *at, struct rows_out *s);

#endif
