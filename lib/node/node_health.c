/* node_health.c - whether a room could complete now (RULES 9.6): asked once a
 * second, so that the service manager's status line and the log say what has
 * changed, and by QUERY health; and drains. The loop's thread.
 *
 * Rejected: a look whenever something has changed. It would be part of each
 * path that rooms take, and the manager would have to be spared most of it. */
#include "node/node_impl.h"

#include "base/check.h"
#include "base/log.h"
#include "io/notify.h"

#include <stdio.h>

#define LOOK_MS 1000
/* A shard that has not turned for this long moves no rows. With the interval of
 * looks it shows within 2 s; a thread that waits for a core is not meant. */
#define SILENT_NS (SHARD_SLEEP_NS + SHARD_SLEEP_NS / 2)

void node_health(struct node *n, struct health *h)
{
    uint64_t now = uv_hrtime();

    brain_health(n->brain, h);
    for (uint32_t k = 0; k < n->shards_count; k++) {
        uint64_t silent = shard_silent_ns(n->shards[k], now);

        if (silent > SILENT_NS)
            health_say(h, false, "shard %u has done nothing for %llu s", k,
                (unsigned long long)(silent / NS_PER_S));
    }
}

static void tell(struct node *n, const struct health *h)
{
    bool changed = !n->health.state || strcmp(h->state, n->health.state) != 0;
    char line[sizeof(h->text) + 16];

    CHECK(h->state && h->text[0], "health without a text");
    if (strcmp(h->text, n->health.text) == 0)
        return;
    snprintf(line, sizeof(line), "STATUS=%s", h->text);
    notify_send(line);
    if (changed)
        log_info("%s: %s", n->conf->name, h->text);
    n->health = *h;
}

static void on_look(uv_timer_t *t)
{
    struct event ev = {.type = EV_SEEK};
    struct node *n = t->data;
    struct health h;

    /* On the second, as the calm ticks of the links are: one wake-up for both.
     */
    uv_timer_start(t, on_look, LOOK_MS - uv_now(&n->loop) % LOOK_MS, 0);
    if (!node_congested(n))
        node_event(n, &ev);
    node_health(n, &h);
    tell(n, &h);
}

void node_health_row(struct node *n, struct rows_out *to)
{
    struct health h;

    node_health(n, &h);
    to->row(to);
    to->text(to, "name", n->conf->name);
    to->text(to, "role", role_name(n->conf->role));
    to->number(to, "ready", h.ready);
    to->text(to, "state", h.state);
    to->text(to, "text", h.text);
    to->number(to, "rooms_open", brain_open_rooms(n->brain));
}

void node_health_start(struct node *n)
{
    on_look(&n->look);
}

/* commands: both answer with how it is then */

static void order(struct node *n, struct query *q, enum event_type type)
{
    struct event ev = {.type = type};

    CHECK(type == EV_DRAIN || type == EV_UNDRAIN, "order of event %u", type);
    node_event(n, &ev);
    node_health_row(n, admin_rows(q));
    admin_answer(n, q);
}

void command_drain(struct node *n, struct query *q, const char *args)
{
    if (args[0])
        admin_refuse(n, q, ERR_MALFORMED, "drain has no arguments");
    else
        order(n, q, EV_DRAIN);
}

void command_undrain(struct node *n, struct query *q, const char *args)
{
    if (args[0])
        admin_refuse(n, q, ERR_MALFORMED, "undrain has no arguments");
    else if (n->ending)
        admin_refuse(n, q, ERR_DRAINING, "the daemon was told to end");
    else
        order(n, q, EV_UNDRAIN);
}
