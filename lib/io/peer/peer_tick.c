/* peer_tick.c - when connections are looked at: ten times a second while data
 * moves or one of them is new, once a second while all are idle, and never
 * while there are none. The loop's thread.
 *
 * Rejected: a timer per connection. Hundreds of strangers would make hundreds
 * of them, and what is looked for is found by reading one number each. */
#include "io/peer/peer_impl.h"

/* With more bytes than this waiting the next tick is soon. */
#define BEHIND_BYTES 65536

static void on_tick(uv_timer_t *t);

/* Ticks are on whole multiples of their interval, so that what else looks once
 * a second (node_health.c) does so in the same wake-up. */
static void arm(struct links *p)
{
    uint64_t ms = p->every_ns / NS_PER_MS;

    CHECK(ms > 0, "ticks without an interval");
    uv_timer_start(&p->timer, on_tick, ms - uv_now(p->timer.loop) % ms, 0);
}

static void on_tick(uv_timer_t *t)
{
    struct links *p = t->data;

    p->tick = true;
    arm(p);
}

static void tick_every(struct links *p, uint64_t ns)
{
    if (p->every_ns == ns)
        return;
    p->every_ns = ns;
    p->ticked_ns = 0;
    if (ns)
        arm(p);
    else
        uv_timer_stop(&p->timer);
}

void links_watch(struct links *p)
{
    if (!p->stopped)
        tick_every(p, TICK_NS);
}

static bool anything(const struct links *p)
{
    bool any = !list_empty(&p->silent) || !list_empty(&p->heard) ||
               !list_empty(&p->greeted);

    for (uint32_t i = 0; i < p->opt.links && !any; i++)
        any = p->links[i].dial.used;
    return any;
}

/* True if a tick is needed sooner than a calm one. */
static bool ticks_fast(struct links *p, uint64_t now_ns)
{
    uint64_t packets = p->stats.packets_in + p->stats.dropped_packets;
    bool moved = packets != p->ticked_packets;

    p->ticked_packets = packets;
    return moved || p->behind > BEHIND_BYTES || !list_empty(&p->silent) ||
           !list_empty(&p->heard) || dial_due(p, now_ns + CALM_NS);
}

void links_tick(struct links *p)
{
    uint64_t now;

    p->tick = false;
    p->behind = 0;
    /* First the connections that have ended, so that none is looked at. */
    if (p->router)
        sock_news(p->router);
    now = uv_hrtime(); /* not earlier than the last accept's */
    conns_tick(p, now);
    dial_tick(p, now);
    if (!anything(p))
        tick_every(p, 0);
    else
        tick_every(p, ticks_fast(p, now) ? TICK_NS : CALM_NS);
}
