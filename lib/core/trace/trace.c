/* trace.c - the flight recorder's happenings that are no room's, and its
 * report. Owned by the loop's thread.
 *
 * Rejected: a clock read for each happening. The time of the last event is
 * there, and what happens in one turn of the loop has its order. */
#include "core/trace/trace.h"

#include "core/show.h"

/* What a row of happening.def says. */
struct kind {
    const char *word, *a, *b;
};

static const struct kind kinds[] = {
#define HAPPENING(NAME, word, a, b, phase, doc) {word, a, b},
#include "wire/happening.def"
#undef HAPPENING
};

void happened_here(
    struct brain *b, enum happening_kind kind, const struct peer *p)
{
    static const struct room none;
    static const struct ended of_none = {.who = NONE};

    if (!p && kind != HAPPENED_DRAINING)
        return; /* a link that no peer has */
    happened(
        b, kind, &none, &of_none, p ? peer_index(&b->peers, p) : NONE, 0, 0);
}

static void show_number(struct rows_out *s, const char *name, uint32_t value)
{
    if (!strcmp(name, "reason"))
        s->text(s, name, err_name((enum err)value));
    else if (name[0])
        show_rows(s, name, value);
}

static void show_happening(const struct brain *b, const struct show_at *at,
    struct rows_out *s, uint64_t n)
{
    const struct happening *h = recorder_get(b->c.recorder, n);
    unsigned kind = happening_kind(h), of = happening_of(h);
    uint32_t peer = happening_peer(h);
    const struct peer *p = peer < b->peers.max ? &b->peers.peers[peer] : NULL;

    CHECK(kind < HAPPENED_COUNT, "happening %llu of kind %u",
        (unsigned long long)n, kind);
    s->row(s);
    s->number(s, "number", n);
    s->number(s, "ns", h->ns);
    if (kind < HAPPENED_PEER_UP && of != PEER_ACKED)
        show_room_id(s, at, h->room, h->who);
    s->text(s, "what", kinds[kind].word);
    if (of)
        s->text(s, "message", peer_name((enum peer_type)of));
    if (p)
        s->text(s, "peer", p->label[0] ? p->label : p->name);
    show_number(s, kinds[kind].a, h->a);
    show_number(s, kinds[kind].b, h->b);
}

void show_trace(const struct brain *b, struct show_at *at, struct rows_out *s)
{
    const struct recorder *r = b->c.recorder;

    if (!r)
        return;
    if (at->end == 0)
        at->end = min_u64(
            r->count, max_u64(at->at, recorder_oldest(r)) + TRACE_SLICE);
    /* What was overwritten since the last call is gone. */
    at->at = max_u64(at->at, recorder_oldest(r));
    for (; at->at < at->end && show_place(at); at->at++)
        show_happening(b, at, s, at->at);
    at->over = at->at >= at->end;
}
