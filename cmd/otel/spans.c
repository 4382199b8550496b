/* spans.c - makes spans of the happenings of a daemon's flight recorder. Pure;
 * one thread.
 *
 * A span is made when its room's end is known, since a trace context may come
 * after the first happenings: at encoded with the INIT of a langd, at langd
 * with the LENGTH. Ids are hashes of what is in the recorder, so that a program
 * that reads it again sends equal spans, which collectors take for one.
 *
 * Rejected: spans of rooms without a context. They could not be joined with
 * others; mmxctl trace shows these rooms. */
#include "otel.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>

/* Returns the room's place; NULL: it has none. */
static struct life *find(struct lives *l, uint64_t room)
{
    uint64_t set = span_hash(span_of(&room, sizeof(room))) % LIVES_SETS;

    for (uint32_t i = 0; i < LIVES_WAYS; i++)
        if (l->at[set][i].used && l->at[set][i].room == room)
            return &l->at[set][i];
    return NULL;
}

/* Gives the room a place, which may be that of the room that has had no
 * happening for longest. */
static struct life *begin(struct lives *l, uint64_t room)
{
    uint64_t set = span_hash(span_of(&room, sizeof(room))) % LIVES_SETS;
    struct life *best = &l->at[set][0];

    for (uint32_t i = 1; i < LIVES_WAYS; i++)
        if (l->at[set][i].used < best->used)
            best = &l->at[set][i];
    l->forgotten += best->used != 0;
    *best = (struct life){.room = room, .used = l->turn, .rows = ROWS_UNKNOWN};
    return best;
}

static uint64_t id_of(const struct lives *l, const struct life *r,
    enum span_name name, int64_t from_ns)
{
    char text[200];

    snprintf(text, sizeof(text), "%016llx%016llx %016llx %s %llx %lld %d",
        (unsigned long long)r->of.trace[0], (unsigned long long)r->of.trace[1],
        (unsigned long long)r->of.parent, l->name, (unsigned long long)r->room,
        (long long)from_ns, name);
    return max_u64(span_hash(span_str(text)), 1); /* zero is no id */
}

/* Appends a span; the times are of the daemon's clock. */
static void emit(struct lives *l, const struct life *r, enum span_name name,
    int64_t from_ns, int64_t to_ns)
{
    struct otel_span *s = &l->spans[l->count % SPANS_MAX];

    if (!r->traced || !(r->of.flags & 1) || from_ns > to_ns)
        return; /* no context, one that is not sampled, or impossible times */
    CHECK(l->count - l->first <= SPANS_MAX, "%llu spans wait",
        (unsigned long long)(l->count - l->first));
    if (l->count - l->first == SPANS_MAX) {
        l->dropped++;
        return;
    }
    l->count++;
    *s = (struct otel_span){.of = r->of,
        .id = id_of(l, r, name, from_ns),
        .room = r->room,
        .from_ns = from_ns + l->unix_ns,
        .to_ns = to_ns + l->unix_ns,
        .rows = r->rows,
        .name = name};
    text_copy(span_str(r->peer), s->peer, sizeof(s->peer));
}

/* Appends the last wait for blocks, if it took time. */
static void settle(struct lives *l, struct life *r)
{
    if (r->waited_ns && r->had_ns > r->waited_ns)
        emit(l, r, SPAN_WAIT_BLOCKS, r->waited_ns, r->had_ns);
    r->waited_ns = 0;
}

/* Ends the room's wait for blocks, if it waits. */
static void had(struct lives *l, struct life *r, int64_t ns)
{
    if (!r->waits_ns)
        return;
    settle(l, r);
    r->waited_ns = r->waits_ns;
    r->had_ns = ns;
    r->waits_ns = 0;
}

static void ended(struct lives *l, struct life *r, const struct happening *h)
{
    bool good = !strcmp(h->text, "ok");
    uint64_t count = l->count;

    if (h->b != ROWS_UNKNOWN)
        r->rows = h->b;
    if (!good) /* a room may have ended for lack of blocks */
        had(l, r, h->ns);
    if (r->asked_ns)
        emit(l, r, SPAN_REQUEST, r->asked_ns, h->ns);
    if (!good && l->count > count)
        text_copy(span_str(h->text), l->spans[count % SPANS_MAX].reason,
            sizeof(l->spans[0].reason));
    settle(l, r);
    if (r->wrote_ns)
        emit(l, r, SPAN_ENCODE, r->encode_ns, r->wrote_ns);
    if (r->moves_ns)
        emit(l, r, SPAN_TRANSFER, r->moves_ns, h->ns);
    r->ready_ns = h->ns;
    if (!r->lang || !good)
        r->used = 0;
}

/* Takes a message about a room of langd, which tells whether the room waits for
 * blocks: from the start, if its first INIT grants none. */
static void message(struct life *r, const struct happening *h)
{
    bool lacks = h->kind == HAPPENED_GOT && h->message == PEER_WANT;
    int64_t since_ns = h->ns;

    if (h->kind == HAPPENED_SENT && h->message == PEER_INIT &&
        h->b != ROWS_UNKNOWN) {
        r->granted = max_u32(r->granted, h->b);
        lacks = r->granted == 0;
        since_ns = r->asked_ns;
    }
    if (h->kind == HAPPENED_LENGTH && h->b != ROWS_UNKNOWN) {
        r->rows = h->b;
        lacks = h->b > r->granted;
    }
    if (lacks && !r->waits_ns)
        r->waits_ns = since_ns;
}

/* Begins a life at the announce or request. A life that has only a context,
 * which came with a langd's INIT before the announce, goes on. */
static void asked(struct lives *l, struct life *r, const struct happening *h)
{
    if (r && r->asked_ns)
        r->used = 0;
    if (!r || r->asked_ns)
        r = begin(l, h->room);
    r->asked_ns = h->ns;
    r->lang = h->kind == HAPPENED_REQUESTED;
    if (!r->lang)
        *(h->b > 0 ? &r->encode_ns : &r->waits_ns) = h->ns;
}

static void context(struct lives *l, struct life *r, const struct happening *h)
{
    struct traceparent t;

    if (!traceparent_read(span_str(h->text), &t))
        return;
    if (!r)
        r = begin(l, h->room);
    r->of = t;
    r->traced = true;
}

void spans_take(struct lives *l, const struct happening *h)
{
    struct life *r = h->of_room ? find(l, h->room) : NULL;

    l->turn++;
    l->hidden += h->kind == HAPPENED_CONTEXT && !h->of_room;
    if (!h->of_room)
        return;
    if (h->kind == HAPPENED_REQUESTED || h->kind == HAPPENED_ANNOUNCED)
        asked(l, r, h);
    else if (h->kind == HAPPENED_CONTEXT)
        context(l, r, h);
    r = find(l, h->room);
    if (!r)
        return;
    r->used = l->turn;
    if (h->peer[0])
        text_copy(span_str(h->peer), r->peer, sizeof(r->peer));
    if (h->kind == HAPPENED_GRANTED || h->kind == HAPPENED_SOURCE)
        had(l, r, h->ns);
    if (h->kind == HAPPENED_GRANTED)
        r->granted = h->a;
    if (h->kind == HAPPENED_SOURCE)
        r->encode_ns = h->ns;
    if (h->kind == HAPPENED_COMMITTED && r->encode_ns)
        r->wrote_ns = h->ns;
    if ((h->kind == HAPPENED_SENDING || h->kind == HAPPENED_LANDED) &&
        !r->moves_ns)
        r->moves_ns = h->ns;
    if (r->lang)
        message(r, h);
    if (h->kind == HAPPENED_ENDED)
        ended(l, r, h);
    if (h->kind == HAPPENED_FREED && r->ready_ns) {
        emit(l, r, SPAN_READY, r->ready_ns, h->ns);
        r->used = 0;
    }
}
