/* report.c - the flight recorder's happenings as rows of a report. Owned by the
 * loop's thread; changes nothing. */
#include "core/show.h"
#include "core/trace/trace.h"

/* Joins the parts of a context; n is the number of the first one. False: n is a
 * later part, or not all parts are there yet. */
static bool read_context(
    const struct recorder *r, uint64_t n, char out[TRACEPARENT_LEN + 1])
{
    uint64_t parts[CONTEXT_PARTS];
    uint32_t last = happening_peer(recorder_get(r, n));
    struct traceparent t;

    for (unsigned i = 0; i < CONTEXT_PARTS; i++) {
        const struct happening *h =
            n + i < r->count ? recorder_get(r, n + i) : NULL;

        if (!h || happening_kind(h) != HAPPENED_CONTEXT ||
            happening_of(h) != i + 1)
            return false;
        parts[i] = (uint64_t)h->a << 32 | h->b;
    }
    t = (struct traceparent){
        {parts[0], parts[1]}, parts[2], (uint8_t)(last >> 8), (uint8_t)last};
    traceparent_write(&t, out);
    return true;
}

static void show_context(const struct brain *b, const struct show_at *at,
    struct rows_out *s, uint64_t n)
{
    const struct happening *h = recorder_get(b->c.recorder, n);
    char text[TRACEPARENT_LEN + 1];

    if (!read_context(b->c.recorder, n, text))
        return;
    s->row(s);
    s->number(s, "number", n);
    s->number(s, "ns", h->ns);
    show_room_id(s, at, h->room, h->who);
    s->text(s, "what", happening_words[HAPPENED_CONTEXT].word);
    s->text(s, happening_words[HAPPENED_CONTEXT].a,
        shown_to(at, h->who) ? text : OTHERS);
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
    if (kind == HAPPENED_CONTEXT) {
        show_context(b, at, s, n);
        return;
    }
    s->row(s);
    s->number(s, "number", n);
    s->number(s, "ns", h->ns);
    if (kind < HAPPENED_PEER_UP && of != PEER_ACKED)
        show_room_id(s, at, h->room, h->who);
    s->text(s, "what", happening_words[kind].word);
    if (of)
        s->text(s, "message", peer_name((enum peer_type)of));
    if (p)
        s->text(s, "peer", p->label[0] ? p->label : p->name);
    show_number(s, happening_words[kind].a, h->a);
    show_number(s, happening_words[kind].b, h->b);
}

void show_trace(const struct brain *b, struct show_at *at, struct rows_out *s)
{
    const struct recorder *r = b->c.recorder;

    CHECK(r->count >= recorder_oldest(r), "%llu happenings",
        (unsigned long long)r->count);
    if (at->end == 0)
        at->end = min_u64(
            r->count, max_u64(at->at, recorder_oldest(r)) + TRACE_SLICE);
    /* Happenings overwritten since the last call are skipped. */
    at->at = max_u64(at->at, recorder_oldest(r));
    for (; at->at < at->end && show_place(at); at->at++)
        show_happening(b, at, s, at->at);
    at->over = at->at >= at->end;
}
