/* calm.c - a world in which nothing goes wrong. Deadlines have their defaults,
 * except TOTAL_CALM, and all work is done before they pass: a room that fails
 * by a deadline was forgotten. So every room has to succeed, or to end with the
 * one reason that its engines asked for.
 *
 * A room also ends in time: it waits for what an engine does, or for messages,
 * rows and copies that are under way, and never for a timer (waits.c). */
#include "test/sim/sim.h"

/* The world has ended before rooms would end by their total time. */
#define FULL_NS (TOTAL_CALM - 20 * NS_PER_S)

/* Checks that each room ended as its engines asked for. */
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

/* Nothing is lost or slow, so no message is repeated, except those about a
 * grant that is taken back, and about aux that waits. */
static void look_at_messages(void)
{
    uint64_t revokes = 0;

    if (W.is.ring) /* answers wait for shards that lag */
        return;
    /* requests wait until langds have shown their users */
    if (W.is.hosts && W.is.pools > 1)
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

/* Single rooms of one destination cannot wait in a circle: no encode is lost
 * for another room. */
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
    while (W.now_ns <= W.is.faults_ms * MS) {
        (void)run_until(W.now_ns + 20 * MS);
        waits_look();
    }
    calm_finish();
}
