/* calm.c - a world in which nothing goes wrong. Deadlines are longer than the
 * work of all rooms, so a room that fails by one was forgotten: every room has
 * to succeed, or to end with the one reason that its engines asked for.
 *
 * A room also ends in time. While it waits, something that it waits for goes
 * on: its own encoder, its own messages, or those of rooms beside it. So it
 * takes no longer than the work of all rooms that there are meanwhile. */
#include "test/sim/sim.h"

#include <stdlib.h>

#define US            1000
#define ROUNDS        40 /* messages one after the other, for one room */
#define SEGMENT_USUAL (256u << 10)
#define LAG_US        20000
#define FULL_NS       (CALM_TIMES * 290 * NS_PER_S)

struct span_of_room {
    uint64_t room, from_ns, to_ns, work_ns;
};

static struct span_of_room *spans;
static uint32_t spans_count;

static struct span_of_room *span_of_id(uint64_t room)
{
    for (uint32_t i = 0; i < spans_count; i++)
        if (spans[i].room == room)
            return &spans[i];
    spans[spans_count] = (struct span_of_room){.room = room};
    return &spans[spans_count++];
}

/* The longest that messages and rows of one room may be on their way. */
static uint64_t transport_ns(const struct prod *p)
{
    uint64_t trip = 20 + W.is.net_us + W.is.local_us + W.is.shard_us;
    uint64_t rows = (uint64_t)W.is.data_us * 3 + W.is.copy_us;
    uint64_t blocks = p->max_rows / p->d->conf->pools[p->pool].block_rows + 2;
    uint64_t bytes =
        (uint64_t)brain_layout(p->d->brain, p->pool)->row_bytes * p->max_rows;
    uint64_t messages = 2 * blocks + 8 + bytes / SEGMENT_USUAL;

    if (W.is.ring)
        trip += (blocks + 2) * LAG_US;
    return (ROUNDS * trip + messages * rows) * US;
}

/* What engines do at their pace. */
static uint64_t encode_ns(const struct prod *p)
{
    return (p->pieces + 12) * (2 * p->pace_ns + NS_PER_MS);
}

static uint64_t consume_ns(const struct cons *c, uint32_t rows)
{
    uint64_t releases = c->mode == MODE_STREAM ? rows : 0;
    uint64_t round = 4 * (W.is.net_us + W.is.local_us + W.is.shard_us) +
                     2 * W.is.data_us + W.is.copy_us;

    return c->hold_ns + 30 * (6 * MS + US) + releases * (6 * MS + round * US);
}

static void widen(struct span_of_room *s, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t starts = s->from_ns;

    if (starts)
        s->work_ns += starts > from_ns ? starts - from_ns : from_ns - starts;
    s->from_ns = starts ? min_u64(starts, from_ns) : from_ns;
    s->to_ns = s->to_ns > to_ns ? s->to_ns : to_ns;
}

static void look_at_times(void)
{
    spans = must_alloc(65536, sizeof(*spans));
    for (const struct prod *p = prods_all(); p; p = p->next) {
        struct span_of_room *s;

        if (!p->announced)
            continue;
        s = span_of_id(p->room);
        widen(s, p->start_ns, p->end_ns);
        s->work_ns += transport_ns(p) + encode_ns(p);
    }
    for (const struct cons *c = cons_all(); c; c = c->next) {
        struct span_of_room *s = span_of_id(c->room);

        if (c->thief) /* it waits as for a room that never comes */
            continue;
        widen(s, c->start_ns, c->end_ns);
        s->work_ns += consume_ns(c, c->h[0] ? c->h[0]->shown : 0);
    }
    for (uint32_t i = 0; i < spans_count; i++) {
        const struct span_of_room *s = &spans[i];
        uint64_t work = 20 * MS;

        /* A request waits for its user to be shown, and is repeated then. */
        if (W.is.hosts && W.is.pools > 1)
            work += W.daemons[0]->conf->timeout_hello + 2 * NS_PER_S;

        for (uint32_t k = 0; k < spans_count; k++)
            if (spans[k].to_ns > s->from_ns && spans[k].from_ns < s->to_ns)
                work += spans[k].work_ns;
        HOLDS(s->to_ns - s->from_ns <= work, "a room takes no longer than work",
            "room %llu: %llu ms, all work there was: %llu ms",
            (unsigned long long)s->room,
            (unsigned long long)((s->to_ns - s->from_ns) / MS),
            (unsigned long long)(work / MS));
    }
}

/* Each was answered as it had to be, not only given up. */
static void look_at_ends(void)
{
    for (const struct prod *p = prods_all(); p; p = p->next)
        HOLDS(!p->announced || p->expected || p->again ||
                  (p->flags & FLAG_OPEN) || prod_saw_done(p),
            "a healed world serves", "%s room %llu was not done",
            p->d->conf->name, (unsigned long long)p->room);
    for (const struct cons *c = cons_all(); c; c = c->next)
        HOLDS(c->thief || c->declines || c->again ||
                  (c->h[0] && c->h[0]->seen_ready),
            "a healed world serves", "%s room %llu was not ready",
            c->d->conf->name, (unsigned long long)c->room);
}

/* Nothing is lost and nobody is slow: nothing has to be said twice, but what
 * was said about a grant that is being taken back, or aux that waits. */
static void look_at_messages(void)
{
    uint64_t revokes = 0;

    if (W.is.ring) /* answers wait for shards that lag */
        return;
    if (W.is.hosts && W.is.pools > 1) /* requests wait for users to be shown */
        return;
    for (uint32_t i = 0; i < W.daemons_count; i++)
        revokes += daemon_number(W.daemons[i], "stats", "revokes") +
                   daemon_number(W.daemons[i], "stats", "sources_revoked") +
                   daemon_number(W.daemons[i], "stats", "aux_full");
    for (uint32_t i = 0; i < W.daemons_count; i++) {
        uint64_t n = daemon_number(W.daemons[i], "stats", "retries");

        HOLDS(n <= 8 * revokes, "nothing is said twice without need",
            "%s repeated %llu messages", W.daemons[i]->conf->name,
            (unsigned long long)n);
    }
}

/* Rooms of one destination that come alone wait in no circle: no encode is
 * lost for another room. */
static void look_at_victims(void)
{
    for (const struct cons *c = cons_all(); c; c = c->next)
        if (!c->thief && (c->group || c->required > 1))
            return;
    for (uint32_t i = 0; i < W.daemons_count; i++) {
        uint64_t n = daemon_number(W.daemons[i], "stats", "sources_revoked");

        HOLDS(n == 0, "no encode is lost without need", "%s ended %llu items",
            W.daemons[i]->conf->name, (unsigned long long)n);
    }
}

void calm_finish(void)
{
    uint64_t end = W.now_ns + FULL_NS;

    while (W.now_ns < end && !world_over()) {
        (void)run_until(W.now_ns + 20 * MS);
        waits_look();
    }
    HOLDS(world_over(), "every room ends", "encode%s; language%s", prods_left(),
        cons_left());
    look_at_ends();
    look_at_times();
    look_at_messages();
    look_at_victims();
    W.healing = true;
    reloads_end();
    world_finish(200 * NS_PER_S);
}

void calm_run(void)
{
    draw_calm();
    draw_daemons();
    deliveries_start(at_leisure);
    reloads_start();
    (void)run_until((W.is.faults_ms + 1) * MS);
    calm_finish();
}
