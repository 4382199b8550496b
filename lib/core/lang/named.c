/* named.c - which encoders requests may name: those of the configuration, which
 * a reload changes, and addresses that control.allow matches. Owned by the
 * loop's thread.
 *
 * Invariants: a removed encoder takes no new room; its entry and number stay
 * until its rooms have ended and no engine waits for one. One address is one
 * entry, reused when the address is named again under any name. An encoder
 * whose address changed has two entries until then.
 *
 * Rejected: ending the rooms of an encoder that is removed from the file. It is
 * removed so that it can stop after them. */
#include "core/lang/lang.h"

#include "core/conf/address.h"

#include <stdio.h>

static bool named(const struct peer *p, struct span name)
{
    return span_eq(span_str(p->label), name) ||
           span_eq(span_str(p->address), name);
}

static bool allowed(const struct langd *l, struct span name)
{
    const struct conf_list *allow = &l->b.c.conf->control_allow;
    struct address_pattern p;
    struct address a;

    for (uint32_t i = 0; i < allow->count; i++) {
        if (strcmp(allow->items[i], CONF_ALLOW_KEY) == 0) {
            /* before a key is proven nothing is sent there */
            if (name.len < sizeof(p.plain) && address_split(name, &a) &&
                address_port(a.port) && !address_wildcard(&a))
                return true;
        } else if (address_pattern(&p, allow->items[i]) &&
                   address_fits(&p, name)) {
            return true;
        }
    }
    return false;
}

/* Returns the encoder behind `after` that is leaving, or the first; NULL. */
static struct peer *leaving_next(const struct langd *l, struct peer *after)
{
    do
        after = l->leaving ? peers_next(&l->b.peers, after) : NULL;
    while (after && !after->l.leaving);
    return after;
}

/* places */

bool named_spare(const void *brain, const struct peer *p)
{
    const struct langd *l = brain;

    return !p->l.configured && !p->l.leaving &&
           !engines_wait_for(&l->b.engines, peer_index(&l->b.peers, p));
}

void named_gives_way(void *brain, struct peer *p)
{
    struct langd *l = brain;

    LIST_FOREACH_SAFE (n, &p->rooms)
        lroom_unplaced(l, LIST_ENTRY(n, struct lroom, in_peer));
    engines_give_up(&l->b.engines, peer_index(&l->b.peers, p), l->b.now_ns);
}

/* Gives an encoder the name that requests use. With control.identities the name
 * that the configuration gives selects the key. So a connection that was made
 * under another one is made again, unless the daemon there has this name. */
static void rename_peer(struct langd *l, struct out *out, struct peer *p,
    const char *label, bool in_file)
{
    const char *was = p->l.configured ? p->label : "";
    const char *name = in_file ? label : "";
    bool again = p->life != PEER_NAMED && strcmp(was, name) != 0 &&
                 l->b.c.conf->control_identities[0] &&
                 !(peer_up(p) && strcmp(p->name, name) == 0);

    if (again) {
        peer_down(&l->b.peers, p, l->b.now_ns);
        peer_disconnect(&l->b.peers, out, p);
    }
    snprintf(p->label, sizeof(p->label), "%.127s", label);
    p->l.configured = in_file;
    if (again && !list_empty(&p->rooms))
        say_connect(l, out, p);
}

/* Returns the entry of a configured encoder, and makes it if needed; NULL:
 * limits.peers is reached, a later request tries again. */
static struct peer *configured(
    struct langd *l, struct out *out, const struct conf_peer *c)
{
    struct peer *p = peers_next(&l->b.peers, NULL);

    while (p && strcmp(p->address, c->address) != 0)
        p = peers_next(&l->b.peers, p);
    if (!p)
        p = peer_place(&l->b.peers, out, span_str(c->address), HOLDER_OF_CONF,
            NONE, l->b.now_ns);
    if (!p)
        return NULL;
    CHECK(l->leaving >= p->l.leaving, "an encoder leaves and is not counted");
    l->leaving -= p->l.leaving;
    snprintf(p->address, sizeof(p->address), "%.127s", c->address);
    rename_peer(l, out, p, c->name, true);
    p->holder = HOLDER_OF_CONF;
    p->l.leaving = false;
    if (out)
        declines_serve(l, out, p);
    return p;
}

/* leaving */

static bool in_conf(const struct langd *l, const struct peer *p)
{
    const struct conf *c = l->b.c.conf;

    for (uint32_t i = 0; i < c->peers_count; i++)
        if (strcmp(c->peers[i].address, p->address) == 0)
            return true;
    return false;
}

void named_serve(struct langd *l, struct out *out)
{
    l->leave_due = false;
    for (struct peer *p = NULL; (p = leaving_next(l, p));) {
        if (!out_has_room(out)) {
            l->leave_due = true;
            return;
        }
        if (!list_empty(&p->rooms) ||
            engines_wait_for(&l->b.engines, peer_index(&l->b.peers, p)))
            continue;
        peer_forget(&l->b.peers, out, p);
        p->l.leaving = false;
        l->leaving--;
    }
}

/* the configuration */

void named_init(struct langd *l)
{
    const struct conf *c = l->b.c.conf;

    for (uint32_t i = 0; i < c->peers_count; i++)
        CHECK(configured(l, NULL, &c->peers[i]),
            "limits.peers is below the %u peers of the config", c->peers_count);
}

/* Recomputes `leaving`. An encoder removed from the file can still be named by
 * its address if control.allow matches it. */
static void look_again(struct langd *l, struct out *out, struct peer *p)
{
    bool may = allowed(l, span_str(p->address));

    if (p->l.configured && in_conf(l, p))
        return;
    if (may)
        rename_peer(l, out, p, p->address, false);
    p->l.configured = false;
    l->leaving -= p->l.leaving;
    p->l.leaving = !may;
    l->leaving += p->l.leaving;
}

void named_conf(struct langd *l, struct out *out)
{
    const struct conf *c = l->b.c.conf;

    PEERS_FOREACH (p, &l->b.peers)
        look_again(l, out, p);
    named_serve(l, out);
    for (uint32_t i = 0; i < c->peers_count; i++)
        if (!configured(l, out, &c->peers[i]))
            out_warn(out, "peer %s waits: limits.peers is reached",
                c->peers[i].name);
}

/* finding */

struct peer *named_find(struct langd *l, struct out *out, uint32_t uid,
    struct span name, const char **text)
{
    const struct conf *c = l->b.c.conf;
    /* Where this name was found last. */
    uint16_t *at = &l->named_at[span_hash(name) % ARRAY_LEN(l->named_at)];
    struct peer *p;

    *text = "no peer of that name, and control.allow has no such address";
    for (uint32_t n = 0; n < l->b.peers.max; n++) {
        uint32_t i = (*at + n) % l->b.peers.max;

        p = &l->b.peers.peers[i];
        if (p->life == PEER_FREE || !named(p, name))
            continue;
        if (!p->l.leaving) {
            *at = (uint16_t)i;
            p->asked_ns = l->b.now_ns;
            return p; /* one daemon has one link, whether named by name or
                         address */
        }
        *text = "the encoder was removed, it takes no new rooms";
    }
    for (uint32_t i = 0; i < c->peers_count; i++)
        if (span_eq(span_str(c->peers[i].name), name) ||
            span_eq(span_str(c->peers[i].address), name)) {
            *text = l->b.peers.why;
            return configured(l, out, &c->peers[i]);
        }
    if (!allowed(l, name))
        return NULL;
    *text = l->b.peers.why;
    p = peer_place(&l->b.peers, out, name, uid, NONE, l->b.now_ns);
    if (p) {
        span_copy_str(name, p->label, sizeof(p->label));
        span_copy_str(name, p->address, sizeof(p->address));
    }
    return p;
}

struct peer *named_leaving(
    const struct langd *l, struct span name, const struct local_attach *with)
{
    for (struct peer *p = NULL; (p = leaving_next(l, p));) {
        uint32_t slot, i = peer_index(&l->b.peers, p);

        if (!named(p, name))
            continue;
        if (!with)
            return p;
        slot =
            table_get(&l->keys, with->room, lroom_scope(l, i, &with->secret));
        if (slot != NONE && l->rooms[slot].peer == i)
            return p;
    }
    return NULL;
}

/* seeking */

bool named_takes(const struct peer *p)
{
    return p->life == PEER_UP && !p->l.leaving;
}

void named_seek(struct langd *l, struct out *out)
{
    struct peer *next = NULL;

    PEERS_FOREACH (p, &l->b.peers) {
        if (named_takes(p) && peer_open(p))
            return;
        if (!next && p->l.configured && p->life == PEER_NAMED)
            next = p;
    }
    if (next)
        say_connect(l, out, next);
}
