/* show.c - see show.h. Owned by the loop's thread. */
#include "core/show.h"

#include <stdio.h>

const char *state_name(unsigned state)
{
    switch (state) {
#define STATE(NAME, number, name, doc)                                         \
    case number:                                                               \
        return name;
#include "core/room.def"
#undef STATE
    }
    return "unknown";
}

void show_rows(struct shower *s, const char *name, uint32_t rows)
{
    if (rows != ROWS_UNKNOWN)
        s->number(s, name, rows);
}

/* Microseconds from the opening to another moment; left out if it never was. */
static void show_since(
    struct shower *s, const char *name, const struct ended *e, uint64_t at_ns)
{
    if (at_ns)
        s->number(s, name, (at_ns - e->opened_ns) / 1000);
}

void show_history(struct shower *s, const struct ended *history, uint64_t count,
    uint64_t limit)
{
    for (uint64_t i = count > limit ? count - limit : 0; i < count; i++) {
        const struct ended *e = &history[i % limit];

        s->row(s);
        s->number(s, "room", e->room);
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
}

void show_pool(
    struct shower *s, const struct pool_meta *m, const struct pool *p)
{
    s->row(s);
    s->text(s, "pool", m->conf->name);
    s->text(s, "memory", m->conf->memory);
    s->text(s, "state",
        m->ready ? "ready"
                 : (m->lost ? "lost" : (m->broken ? "broken" : "no-layout")));
    s->text(s, "layout", m->layout.text);
    s->number(s, "block_rows", m->conf->block_rows);
    s->number(s, "row_bytes", m->layout.row_bytes);
    s->number(s, "bytes", m->bytes);
    s->number(s, "blocks", p->blocks);
    s->number(s, "free", p->free);
}

void show_peers(struct shower *s, const struct peers *peers)
{
    for (uint32_t i = 0; i < peers->max; i++) {
        const struct peer *p = &peers->peers[i];
        char epoch[32];

        if (!p->used)
            continue;
        snprintf(epoch, sizeof(epoch), "%016llx", (unsigned long long)p->epoch);
        s->row(s);
        s->number(s, "peer", i);
        s->text(s, "name", p->label[0] ? p->label : p->name);
        s->text(s, "says", p->name);
        s->text(s, "address", p->address[0] ? p->address : p->advertise);
        s->text(s, "state", p->up ? "up" : p->name[0] ? "down" : "unknown");
        s->text(s, "refused", p->refused);
        s->text(s, "epoch", epoch);
        s->text(s, "software", p->software);
        s->number(s, "same_host", p->same_host);
        s->text(s, "path", p->mapped ? "copy" : "sent");
        s->number(s, "data_addresses", p->addresses);
    }
}

void show_stats(struct shower *s, const uint64_t *stats)
{
    for (unsigned i = 0; i < STAT_COUNT; i++) {
        s->row(s);
        s->text(s, "name", stat_name((enum counter)i));
        s->number(s, "value", stats[i]);
        s->text(s, "meaning", stat_text((enum counter)i));
    }
}
