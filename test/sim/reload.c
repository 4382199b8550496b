/* reload.c - configurations that change while rooms are open: deadlines,
 * limits, which peers there are and their names, and addresses that are
 * allowed. Values that need a restart are drawn, too, and must not change
 * (core/conf). In a calm world a reload does not affect rooms.
 *
 * A reload is one step. It ends no room, except those of an encoder that was
 * removed at once, and moves no deadline. Afterwards each encoder is what the
 * configuration says: named, allowed, or leaving without new rooms. */
#include "test/sim/sim.h"

#include "base/check.h"
#include "core/lang/lang.h"

#define ALLOWED "tcp://10.0."

/* A room before the step. */
struct open_room {
    uint64_t generation, total_ns, bootstrap_ns;
    bool alive;
};

/* An encoder that leaves, by its place. */
struct left {
    uint32_t life, serial;
    uint64_t since_ns;
};

static struct conf *first[DAEMONS_MAX]; /* the configuration as it was drawn */
static struct left lefts[DAEMONS_MAX][LINKS_MAX];

/* other configurations */

static void longer(struct conf *c)
{
    c->timeout_total *= between(1, 2);
    c->timeout_bootstrap *= between(1, 2);
    c->timeout_progress *= between(1, 2);
    c->timeout_consumer *= between(1, 2);
}

/* Names some of the encoders, in any order, and some of them by another
 * name. */
static void name_some(struct conf *c, const struct conf *was)
{
    uint32_t shift = (uint32_t)between(0, 7);

    c->peers_count = 0;
    for (uint32_t i = 0; i < was->peers_count; i++) {
        struct conf_peer *p = &c->peers[c->peers_count];

        if (!W.is.calm && chance(350))
            continue;
        *p = was->peers[(i + shift) % was->peers_count];
        if (!W.is.calm && chance(150))
            p->name[0] = 'x';
        c->peers_count++;
    }
    c->control_allow.count = chance(400);
    snprintf(c->control_allow.items[0], sizeof(c->control_allow.items[0]),
        ALLOWED "0.0/16:*");
}

static void change(const struct daemon *d, struct conf *next)
{
    const struct conf *was = first[d->index];

    *next = *was;
    if (W.is.calm)
        longer(next);
    else
        draw_times(next);
    next->transfer_shards++; /* needs a restart */
    next->limit_inbox = between(1, 64) << 20;
    if (d->role == ROLE_LANGD)
        name_some(next, was);
}

/* a reload */

static struct open_room *look(const struct langd *l)
{
    struct open_room *r = must_alloc(l->rooms_max, sizeof(*r));

    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *m = &l->rooms[i];

        r[i] = (struct open_room){m->generation, m->total_ns, m->bootstrap_ns,
            m->r.used && lroom_alive(m)};
    }
    return r;
}

static bool in_conf(const struct conf *c, const struct peer *p)
{
    for (uint32_t i = 0; i < c->peers_count; i++)
        if (strcmp(c->peers[i].address, p->address) == 0 &&
            strcmp(c->peers[i].name, p->label) == 0)
            return true;
    return false;
}

static void see_rooms(const struct daemon *d, const struct open_room *before)
{
    const struct langd *l = d->brain;

    for (uint32_t i = 0; i < l->rooms_max; i++) {
        const struct lroom *m = &l->rooms[i];

        if (!before[i].alive)
            continue;
        HOLDS(lroom_alive(m) && m->generation == before[i].generation,
            "a reload ends no room", "%s room %llu, reason %u", d->conf->name,
            (unsigned long long)m->r.id, m->r.reason);
        HOLDS(m->total_ns == before[i].total_ns &&
                  m->bootstrap_ns == before[i].bootstrap_ns,
            "open rooms keep their deadlines", "%s room %llu", d->conf->name,
            (unsigned long long)m->r.id);
    }
}

static void put_in_force(struct daemon *d, struct conf *next)
{
    bool langd = d->role == ROLE_LANGD;
    struct event ev = {.type = EV_CONF};
    struct open_room *before;
    uint64_t shards = d->conf->transfer_shards;
    uint32_t open;

    conf_keep(next, d->conf);
    conf_take(d->conf, next);
    HOLDS(d->conf->transfer_shards == shards, "what takes a restart stays",
        "%s", d->conf->name);
    if (!d->alive)
        return;
    trace("%s reloads: %u peers%s", d->conf->name, d->conf->peers_count,
        d->conf->control_allow.count ? ", addresses" : "");
    open = brain_open_rooms(d->brain);
    before = langd ? look(d->brain) : NULL;
    daemon_step(d, &ev);
    if (langd)
        see_rooms(d, before);
    else
        HOLDS(brain_open_rooms(d->brain) == open, "a reload ends no room",
            "%s had %u rooms, and %u", d->conf->name, open,
            brain_open_rooms(d->brain));
    free(before);
}

static void reload_comes(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = W.daemons[between(0, W.daemons_count - 1)];
    struct conf *next;

    if (W.healing)
        return;
    next = must_alloc(1, sizeof(*next));
    change(d, next);
    put_in_force(d, next);
    free(next);
    at(W.now_ns + between(1, 2 * (uint64_t)W.is.reload_ms) * MS, reload_comes,
        p, a, b);
}

/* Looks for encoders that have left, as the body does. */
static void seek_comes(void *p, uint64_t a, uint64_t b)
{
    struct daemon *d = p;
    struct event ev = {.type = EV_SEEK};

    if (d->alive && !stands_still(d, LOOP, seek_comes, p, a, b))
        daemon_step(d, &ev);
    else if (d->alive)
        return;
    at(W.now_ns + NS_PER_S, seek_comes, p, a, b);
}

void reloads_start(void)
{
    if (!W.is.reload_ms)
        return;
    for (uint32_t i = 0; i < W.daemons_count; i++) {
        first[i] = must_alloc(1, sizeof(**first));
        *first[i] = *W.daemons[i]->conf;
        if (W.daemons[i]->role == ROLE_LANGD)
            at(W.now_ns + NS_PER_S, seek_comes, W.daemons[i], 0, 0);
    }
    draw_from(PART_RELOAD, 0);
    at(W.now_ns + between(1, W.is.reload_ms) * MS, reload_comes, NULL, 0, 0);
}

void reloads_end(void)
{
    for (uint32_t i = 0; W.is.reload_ms && i < W.daemons_count; i++) {
        struct conf *next = must_alloc(1, sizeof(*next));

        *next = *first[i];
        put_in_force(W.daemons[i], next);
        free(next);
    }
}

/* what holds after each step */

/* An encoder that is leaving has no room that was requested afterwards. */
static void see_left(const struct daemon *d, const struct langd *l, uint32_t i)
{
    const struct peer *p = &l->b.peers.peers[i];
    struct left *s = &lefts[d->index][i];

    if (!p->l.leaving) {
        s->serial = 0;
        return;
    }
    if (s->life != d->life || s->serial != p->serial)
        *s = (struct left){d->life, p->serial, d->now_ns};
    LIST_FOREACH (n, &p->rooms) {
        const struct lroom *m = LIST_ENTRY(n, struct lroom, in_peer);

        HOLDS(m->history.opened_ns <= s->since_ns,
            "one that leaves takes no new rooms", "%s room %llu of %s",
            d->conf->name, (unsigned long long)m->r.id, p->label);
    }
    HOLDS(d->last != EV_SEEK || !list_empty(&p->rooms) ||
              engines_wait_for(&l->b.engines, i),
        "one that has left is forgotten", "%s: %s", d->conf->name, p->label);
}

static void see_peer(const struct daemon *d, const struct langd *l, uint32_t i)
{
    const struct peer *p = &l->b.peers.peers[i];
    const struct conf *c = d->conf;
    bool named = in_conf(c, p);
    bool may = c->control_allow.count && strncmp(p->address, ALLOWED, 10) == 0;

    HOLDS(p->l.configured == named && p->l.leaving == (!named && !may),
        "encoders are what the configuration says",
        "%s: %s at %s is %sconfigured, %sleaving", c->name, p->label,
        p->address, p->l.configured ? "" : "not ", p->l.leaving ? "" : "not ");
    for (uint32_t k = 0; k < i; k++)
        HOLDS(l->b.peers.peers[k].life == PEER_FREE ||
                  strcmp(l->b.peers.peers[k].address, p->address) != 0,
            "one address is one entry", "%s: %s", c->name, p->address);
}

void reloads_watch(const struct daemon *d)
{
    const struct langd *l = d->brain;
    uint32_t configured = 0, leaving = 0;

    if (!W.is.reload_ms || d->role != ROLE_LANGD)
        return;
    PEERS_FOREACH (p, &l->b.peers) {
        uint32_t i = peer_index(&l->b.peers, p);

        configured += p->l.configured;
        leaving += p->l.leaving;
        see_peer(d, l, i);
        see_left(d, l, i);
    }
    HOLDS(configured == d->conf->peers_count && leaving == l->leaving,
        "encoders are what the configuration says",
        "%s: %u of %u are configured, %u of %u leave", d->conf->name,
        configured, d->conf->peers_count, leaving, l->leaving);
}
