/* node_health.c - checks once a second whether a room could complete now (RULES
 * 9.6), so that the service manager's status line and the log say what has
 * changed, and shards that the loop owns have their ticks while nothing moves.
 * Also has drains. Owned by the loop's thread.
 *
 * Rejected: a check whenever something has changed. It would be part of each
 * path that rooms take, and the manager would get far too many messages. */
#include "node/loop/node_in.h"

#include "base/check.h"
#include "base/log.h"
#include "io/notify.h"

#define LOOK_MS 1000

static void tell(struct node *n, const struct health *h)
{
    CHECK(h->state && h->text[0], "health without a text");
    if (strcmp(h->text, n->health.text) == 0)
        return;
    notify_send("STATUS=%s", h->text);
    if (!n->health.state || strcmp(h->state, n->health.state) != 0)
        log_info("%s: %s", n->conf->name, h->text);
    n->health = *h;
}

void node_health_look(uv_timer_t *t)
{
    struct node *n = t->data;
    struct health h;

    /* On the full second, like the idle ticks of the links: one wake-up serves
     * both. */
    uv_timer_start(
        t, node_health_look, LOOK_MS - uv_now(&n->loop) % LOOK_MS, 0);
    if (!node_congested(n))
        node_event(n, &(struct event){.type = EV_SEEK});
    for (uint32_t k = 0; k < n->shards_count; k++)
        n->polls[k].ready = true;
    node_health(n, &h);
    tell(n, &h);
    notify_retry();
}

/* commands: both answer with the health after the order */

static void order(struct node *n, struct query *q, enum event_type type)
{
    CHECK(type == EV_DRAIN || type == EV_UNDRAIN, "order of event %u", type);
    node_event(n, &(struct event){.type = type});
    node_health_row(n, admin_rows(q));
    admin_answer(n, q);
}

void command_drain(struct node *n, struct query *q, const char *args)
{
    (void)args;
    order(n, q, EV_DRAIN);
}

void command_undrain(struct node *n, struct query *q, const char *args)
{
    (void)args;
    if (n->ending)
        admin_refuse(n, q, ERR_DRAINING, "the daemon was told to end");
    else
        order(n, q, EV_UNDRAIN);
}
