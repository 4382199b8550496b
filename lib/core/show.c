/* show.c - see show.h. Owned by the loop's thread. */
#include "core/show.h"

#include <stdio.h>

_Static_assert(SHOW_POOLS_MAX >= CONF_POOLS_MAX, "a report of all pools");

const char *state_name(unsigned state)
{
    switch (state) {
#define STATE(NAME, number, name, doc)                                         \
    case number:                                                               \
        return name;
#include "wire/room.def"
#undef STATE
    }
    return "unknown";
}

void show_rows(struct rows_out *s, const char *name, uint32_t rows)
{
    if (rows != ROWS_UNKNOWN)
        s->number(s, name, rows);
}

/* Microseconds from the opening to another moment; left out if it never was. */
static void show_since(
    struct rows_out *s, const char *name, const struct ended *e, uint64_t at_ns)
{
    if (at_ns)
        s->number(s, name, (at_ns - e->opened_ns) / 1000);
}

void show_room_id(
    struct rows_out *s, const struct show_at *at, uint64_t id, uint64_t who)
{
    char end[16];

    if (at->uid == 0 || at->uid == who) {
        s->number(s, "room", id);
        return;
    }
    snprintf(end, sizeof(end), "..%04x", (unsigned)(id & 0xffff));
    s->text(s, "room", end);
}

static void show_ended(
    struct rows_out *s, const struct show_at *at, const struct ended *e)
{
    s->row(s);
    show_room_id(s, at, e->room, e->who);
    s->text(s, "peer", e->peer);
    s->text(s, "state", state_name(e->state));
    s->text(s, "reason", err_name((enum err)e->reason));
    s->number(s, "ended", 1);
    s->number(s, "opened_ns", e->opened_ns);
    show_rows(s, "total", e->total);
    s->number(s, "bytes", e->bytes);
    s->number(s, "blocks", e->blocks);
    s->number(s, "attempts", e->attempts);
    s->number(s, "resumes", e->resumes);
    s->number(s, "served", e->served);
    s->number(s, "failed", e->failed);
    show_since(s, "init_us", e, e->init_ns);
    show_since(s, "length_us", e, e->length_ns);
    show_since(s, "first_us", e, e->first_ns);
    show_since(s, "resumed_us", e, e->resumed_ns);
    show_since(s, "done_us", e, e->done_ns);
    if (e->text[0])
        s->text(s, "text", e->text);
}

void show_history(struct rows_out *s, struct show_at *at, uint64_t base,
    const struct ended *history, uint64_t count, uint64_t limit)
{
    /* Rows that were overwritten since the last call are gone. */
    at->at = max_u64(at->at, base + (count > limit ? count - limit : 0));
    for (; at->at < base + count && show_place(at); at->at++)
        show_ended(s, at, &history[(at->at - base) % limit]);
    at->over = at->at >= base + count;
}

void show_pool(struct rows_out *s, uint32_t number, const struct pool_meta *m,
    const struct pool *p)
{
    s->row(s);
    s->number(s, "number", number);
    s->text(s, "pool", m->conf->name);
    s->text(s, "memory", m->conf->memory);
    s->text(s, "state",
        m->ready    ? "ready"
        : m->lost   ? "lost"
        : m->fixing ? "populating"
        : m->broken ? "broken"
                    : "no-layout");
    s->text(s, "layout", m->layout.text);
    s->number(s, "block_rows", m->conf->block_rows);
    s->number(s, "row_bytes", m->layout.row_bytes);
    s->number(s, "bytes", m->bytes);
    s->number(s, "blocks", p->blocks);
    s->number(s, "free", p->free);
}

static void show_peer(struct rows_out *s, uint32_t number, const struct peer *p)
{
    char epoch[32];

    snprintf(epoch, sizeof(epoch), "%016llx", (unsigned long long)p->epoch);
    s->row(s);
    s->number(s, "peer", number);
    s->text(s, "name", p->label[0] ? p->label : p->name);
    s->text(s, "says", p->name);
    s->text(s, "address", p->address[0] ? p->address : p->advertise);
    s->text(s, "state", p->up ? "up" : p->name[0] ? "down" : "unknown");
    s->text(s, "refused", p->refused.text);
    s->text(s, "epoch", epoch);
    s->text(s, "software", p->software);
    s->number(s, "same_host", p->same_host);
    s->text(s, "path", p->mapped ? "copy" : "sent");
    s->number(s, "data_addresses", p->addresses);
}

void show_peers(
    struct rows_out *s, struct show_at *at, const struct peers *peers)
{
    for (; at->at < peers->max && show_place(at); at->at++)
        if (peers->peers[at->at].used)
            show_peer(s, (uint32_t)at->at, &peers->peers[at->at]);
    at->over = at->at >= peers->max;
}

void show_stats(struct rows_out *s, const uint64_t *stats)
{
    for (unsigned i = 0; i < STAT_COUNT; i++) {
        s->row(s);
        s->text(s, "name", stat_name((enum counter)i));
        s->number(s, "value", stats[i]);
        s->text(s, "meaning", stat_text((enum counter)i));
    }
}
