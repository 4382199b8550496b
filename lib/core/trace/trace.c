/* trace.c - happenings of the flight recorder that are about no room. Owned by
 * the loop's thread.
 *
 * Rejected: a clock read for each happening. The last event's time is known
 * anyway, and happenings of one turn of the loop are in order. */
#include "core/trace/trace.h"

const struct happening_words happening_words[HAPPENED_COUNT] = {
#define HAPPENING(NAME, word, a, b, doc) {word, a, b},
#include "wire/happening.def"
};

_Static_assert(HAPPENED_COUNT <= UINT8_MAX, "a tag has a byte for the kind");

void happened_here(
    struct brain *b, enum happening_kind kind, const struct peer *p)
{
    static const struct room none;
    static const struct history of_none = {.who = NONE};

    if (!p && kind != HAPPENED_DRAINING)
        return; /* a link without a peer */
    happened(
        b, kind, &none, &of_none, p ? peer_index(&b->peers, p) : NONE, 0, 0);
}

void trace_context(struct brain *b, const struct room *r,
    struct history *history, struct span traceparent, bool of_peer)
{
    struct traceparent t;
    uint64_t parts[CONTEXT_PARTS];

    if ((of_peer && history->traceparent[0]) ||
        !traceparent_read(traceparent, &t))
        return;
    CHECK(r->used, "room ..%08x has a context and is none", (uint32_t)r->id);
    traceparent_write(&t, history->traceparent);
    parts[0] = t.trace[0];
    parts[1] = t.trace[1];
    parts[2] = t.parent;
    for (unsigned i = 0; i < CONTEXT_PARTS; i++)
        *recorder_next(b->c.recorder) =
            (struct happening){b->now_ns, r->id, (uint32_t)(parts[i] >> 32),
                (uint32_t)parts[i], (uint32_t)history->who,
                happening_tag(HAPPENED_CONTEXT, i + 1,
                    (uint32_t)t.version << 8 | t.flags)};
}
