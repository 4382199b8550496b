/* decline.c - rooms that language engines will not fetch (RULES 7.4). Their
 * encoder gets DECLINE at once, or at its next HELLO if it is not up (RULES
 * 9.4). Until then entries wait in a bounded list. When it is full the oldest
 * is evicted: of a user that has more than half of the list, else of all. No
 * timer is needed: expired entries are skipped. Owned by the loop's thread.
 *
 * Rejected: a room that starts as failed and sends ABORT. It would use a room's
 * slot, and ABORT has no key. */
#include "core/lang/lang.h"

void declines_carve(struct langd *l, struct slab *s)
{
    l->declines = slab_take(s, WAITING_DECLINES, sizeof(*l->declines));
    list_init(&l->declines_free);
    list_init(&l->declines_waiting);
    for (uint32_t i = 0; l->declines && i < WAITING_DECLINES; i++)
        list_push_tail(&l->declines_free, &l->declines[i].node);
}

static void drop(struct langd *l, struct ldecline *d)
{
    list_remove(&d->node);
    list_push_tail(&l->declines_free, &d->node);
}

static void say(
    struct langd *l, struct out *out, struct peer *p, struct ldecline *d)
{
    struct peer_msg msg = {.type = PEER_DECLINE, .room = d->room};

    CHECK(p->up, "%s is not up, and hears a decline", p->label);
    msg.decline.key = d->key;
    msg.decline.who = p->same_host ? d->uid + 1 : 0;
    msg.decline.secret = d->secret;
    if (p->same_host)
        msg.decline.gids = span_of(d->gids, d->gids_len);
    peer_send(&l->b.peers, out, p, &msg);
    happened_message(&l->b, HAPPENED_SENT, &msg, d->uid,
        peer_index(&l->b.peers, p), ROWS_UNKNOWN);
}

/* Returns the entry to evict: the oldest of the user that has more than half of
 * all entries, else the oldest of all. */
static struct ldecline *oldest(const struct langd *l)
{
    struct ldecline *all = NULL, *most = NULL;
    uint32_t uid = 0, n = 0;

    /* Majority vote: a user with more than half ends with n above 0. */
    LIST_FOREACH (at, &l->declines_waiting) {
        struct ldecline *d = LIST_ENTRY(at, struct ldecline, node);

        uid = n ? uid : d->uid;
        n = d->uid == uid ? n + 1 : n - 1;
    }
    n = 0;
    LIST_FOREACH (at, &l->declines_waiting) {
        struct ldecline *d = LIST_ENTRY(at, struct ldecline, node);

        all = all ? all : d;
        if (d->uid == uid && n++ == 0)
            most = d;
    }
    CHECK(all, "no decline waits, and there is no place for one");
    return n > WAITING_DECLINES / 2 ? most : all;
}

/* Returns an entry that is on no list, evicting one if none is free. */
static struct ldecline *vacant(struct langd *l)
{
    struct list *free = list_pop(&l->declines_free);
    struct ldecline *d = free ? LIST_ENTRY(free, struct ldecline, node) : NULL;

    if (d)
        return d;
    d = oldest(l);
    l->b.stats[STAT_declines_forgotten]++;
    list_remove(&d->node);
    return d;
}

void decline_room(struct langd *l, struct out *out, struct peer *p,
    const struct conn *c, const struct local_decline *n)
{
    struct ldecline now, *d = &now;
    struct span gids;

    if (!p->up)
        d = vacant(l);
    gids = say_groups(c, d->gids);
    d->peer = p->serial;
    d->until_ns = l->b.now_ns + FORGET_NS;
    d->room = n->room;
    d->key = n->key;
    d->secret = n->secret;
    d->uid = c->uid;
    d->gids_len = gids.len;
    if (p->up) {
        say(l, out, p, d);
        return;
    }
    list_init(&d->node);
    list_push_tail(&l->declines_waiting, &d->node);
    if (p->link == NONE && !p->leaving)
        say_connect(l, out, p);
}

void declines_say(struct langd *l, struct out *out, struct peer *p)
{
    LIST_FOREACH_SAFE (n, &l->declines_waiting) {
        struct ldecline *d = LIST_ENTRY(n, struct ldecline, node);

        if (d->peer != p->serial)
            continue;
        if (d->until_ns > l->b.now_ns)
            say(l, out, p, d);
        drop(l, d);
    }
}

void declines_take_back(
    struct langd *l, const struct peer *p, const struct local_request *n)
{
    LIST_FOREACH_SAFE (at, &l->declines_waiting) {
        struct ldecline *d = LIST_ENTRY(at, struct ldecline, node);

        if (d->peer == p->serial && d->room == n->room &&
            secret_eq(&d->secret, &n->secret))
            drop(l, d);
    }
}
