/* peer_tick.c - when connections are checked: ten times a second while data
 * moves or one is new, once a second while all are idle, never if there are
 * none. The loop's thread.
 *
 * Rejected: a timer per connection. Hundreds of strangers would make hundreds
 * of timers, while a check only reads one number of each. */
#include "io/peer/peer_impl.h"

static void on_tick(uv_timer_t *t);

/* Ticks are at whole multiples of their interval, so that other checks once a
 * second (node_health.c) share the wake-up. */
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

void tick_every(struct links *p, uint64_t ns)
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
