/* decline.c - rooms that language engines will not fetch (RULES 7.4). Their
 * encoder gets DECLINE at once, or at its next HELLO if it is not up (RULES
 * 9.4). Until then it is remembered for its user (core/memory.h). Owned by the
 * loop's thread.
 *
 * Rejected: a room that starts as failed and sends ABORT. It would use a room's
 * slot, and ABORT has no key. */
#include "core/lang/lang.h"

static void say(
    struct langd *l, struct out *out, struct peer *p, struct ldecline *d)
{
    struct peer_msg msg = {.type = PEER_DECLINE, .room = d->memo.id};

    CHECK(peer_up(p), "%s is not up, and hears a decline", p->label);
    msg.decline.key = d->key;
    msg.decline.who = p->same_host ? d->uid + 1 : 0;
    msg.decline.secret = d->secret;
    if (p->same_host)
        msg.decline.gids = span_of(d->gids, d->gids_len);
    peer_send(&l->b.peers, out, p, &msg);
    happened_message(&l->b, HAPPENED_SENT, &msg, d->uid,
        peer_index(&l->b.peers, p), ROWS_UNKNOWN);
}

void declines_serve(struct langd *l, struct out *out, struct peer *p)
{
    LIST_FOREACH_SAFE (n, &l->declines.by_age) {
        struct ldecline *d = LIST_ENTRY(n, struct ldecline, memo.by_age);

        if (d->memo.scope != p->who || d->memo.until_ns <= l->b.now_ns)
            continue;
        if (peer_up(p)) {
            say(l, out, p, d);
            memory_drop(&l->declines, d);
        } else if (p->life == PEER_NAMED && !p->l.leaving) {
            say_connect(l, out, p);
        }
    }
}

void decline_room(struct langd *l, struct out *out, struct peer *p,
    const struct conn *c, const struct local_decline *n)
{
    struct ldecline d = {.memo = {.id = n->room, .scope = p->who},
        .key = n->key,
        .secret = n->secret,
        .uid = c->uid};

    d.gids_len = say_groups(c, d.gids).len;
    if (peer_up(p)) {
        say(l, out, p, &d);
        return;
    }
    (void)memory_put(&l->declines, l->b.now_ns, &d, c->uid);
    l->b.stats[STAT_declines_forgotten] = l->declines.forgotten;
    declines_serve(l, out, p);
}

void declines_take_back(
    struct langd *l, const struct peer *p, const struct local_request *n)
{
    struct ldecline *d, *next;

    d = memory_get(&l->declines, l->b.now_ns, n->room, p->who);
    for (; d; d = next) {
        next = memory_next(&l->declines, l->b.now_ns, d);
        if (secret_eq(&d->secret, &n->secret))
            memory_drop(&l->declines, d);
    }
}
