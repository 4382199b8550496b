/* net.c - control frames between daemons: connections that are made, cut and
 * made again, and frames that are lost, doubled or late. A frame whose
 * connection has ended never arrives. */
#include "test/sim/sim.h"

#include "base/check.h"
#include "core/share.h"

#define HEARTBEAT_LOST (300 * MS)

struct ctl {
    struct daemon *l, *e;
    uint32_t l_life, e_life, l_link, e_link;
    bool over;
    uint64_t last_ns[2]; /* keeps frames in order, while nothing is wrong */
    struct ctl *next;
};

struct wire {
    struct ctl *c;
    bool up; /* from langd to encoded */
    uint32_t len;
    uint8_t bytes[];
};

static struct ctl *ctls;

static bool lives(const struct daemon *d, uint32_t life)
{
    return d->alive && d->life == life;
}

/* connections */

static void try_again(void *p, uint64_t life, uint64_t link);

static void link_down(void *p, uint64_t life, uint64_t link)
{
    struct daemon *d = p;
    struct event ev = {.type = EV_LINK_DOWN, .link = (uint32_t)link};

    if (stands_still(d, LOOP, link_down, p, life, link))
        return;
    if (!lives(d, (uint32_t)life) || !d->links[link])
        return;
    d->links[link] = NULL;
    trace("%s: link %u down", d->conf->name, (uint32_t)link);
    daemon_step(d, &ev);
    if (d->role == ROLE_LANGD && d->alive && d->wants[link] != NONE)
        at(W.now_ns + between(1, 50) * MS, try_again, d, life, link);
}

static void cut(struct ctl *c, uint64_t slow_ns)
{
    if (c->over)
        return;
    c->over = true;
    if (lives(c->l, c->l_life))
        at(W.now_ns + between(0, slow_ns), link_down, c->l, c->l_life,
            c->l_link);
    if (lives(c->e, c->e_life) && c->e_link != NONE)
        at(W.now_ns + between(0, slow_ns), link_down, c->e, c->e_life,
            c->e_link);
}

static void try_again(void *p, uint64_t life, uint64_t link)
{
    struct daemon *l = p, *e;
    struct event ev = {.type = EV_LINK_UP, .link = (uint32_t)link};
    struct ctl *c;

    if (!lives(l, (uint32_t)life) || l->wants[link] == NONE || l->links[link])
        return;
    e = W.daemons[l->wants[link]];
    if (!e->alive || W.cut[l->index][e->index] || W.cut[e->index][l->index]) {
        at(W.now_ns + between(5, 100) * MS, try_again, l, life, link);
        return;
    }
    c = must_alloc(1, sizeof(*c));
    *c = (struct ctl){.l = l,
        .e = e,
        .l_life = l->life,
        .e_life = e->life,
        .l_link = (uint32_t)link,
        .e_link = NONE,
        .next = ctls};
    ctls = c;
    l->links[link] = c;
    trace("%s: link %u to %s stands", l->conf->name, (uint32_t)link,
        e->conf->name);
    daemon_step(l, &ev);
}

void net_connect(struct daemon *l, uint32_t link, struct span address)
{
    char text[128];

    CHECK(l->role == ROLE_LANGD && link < LINKS_MAX, "link %u", link);
    HOLDS(!l->links[link] && l->wants[link] == NONE, "links are used once",
        "%s connects link %u twice", l->conf->name, link);
    span_copy_str(address, text, sizeof(text));
    if (ghost_connects(l, link, text))
        return;
    for (uint32_t i = 0; i < W.daemons_count; i++)
        if (strcmp(W.daemons[i]->conf->control_listen, text) == 0)
            l->wants[link] = i;
    HOLDS(l->wants[link] != NONE, "addresses are told right", "%s", text);
    at(W.now_ns + delay_us(W.is.net_us), try_again, l, l->life, link);
}

void net_disconnect(struct daemon *d, uint32_t link)
{
    struct ctl *c = d->links[link];

    if (d->role == ROLE_LANGD)
        ghost_disconnects(d, link);
    d->links[link] = NULL;
    d->wants[link] = NONE;
    if (c)
        cut(c, MS);
}

void net_daemon_gone(struct daemon *d)
{
    for (struct ctl *c = ctls; c; c = c->next)
        if ((c->l == d && c->l_life == d->life) ||
            (c->e == d && c->e_life == d->life))
            cut(c, 20 * MS);
}

/* frames */

/* True if the accepting side has a link for the connection, or a free one. */
static bool accepted(struct ctl *c)
{
    struct event ev = {.type = EV_LINK_UP};
    uint32_t links = 2 * share_peers(c->e->conf);

    if (c->e_link != NONE)
        return true;
    for (uint32_t i = 0; i < links; i++) {
        if (c->e->links[i])
            continue;
        c->e_link = ev.link = i;
        c->e->links[i] = c;
        daemon_step(c->e, &ev);
        return true;
    }
    return false;
}

static void tell(
    const char *how, const struct wire *f, const struct peer_msg *m)
{
    const struct ctl *c = f->c;
    const char *from = f->up ? c->l->conf->name : c->e->conf->name;
    const char *to = f->up ? c->e->conf->name : c->l->conf->name;
    unsigned long long room = m->room, gen = m->generation & 0xffffff;

    switch (m->type) {
    case PEER_INIT:
        trace("%s>%s%s INIT %llu g%llx a%u granted %u from %u", from, to, how,
            room, gen, m->init.attempt, m->init.granted, m->init.from);
        return;
    case PEER_RESUME:
        trace("%s>%s%s RESUME %llu g%llx a%u granted %u from %u", from, to, how,
            room, gen, m->resume.attempt, m->resume.granted, m->resume.from);
        return;
    case PEER_LENGTH:
        trace("%s>%s%s LENGTH %llu g%llx total %d max %u committed %u", from,
            to, how, room, gen, (int)m->length.total, m->length.max_rows,
            m->length.committed);
        return;
    case PEER_WANT:
        trace("%s>%s%s WANT %llu g%llx a%u granted %u committed %u", from, to,
            how, room, gen, m->want.attempt, m->want.granted,
            m->want.committed);
        return;
    case PEER_STATE:
        trace("%s>%s%s STATE %llu g%llx answers %s state %u reason %u a%u "
              "granted %u total %d",
            from, to, how, room, gen, peer_name(m->state.answers),
            m->state.state, m->state.reason, m->state.attempt, m->state.granted,
            (int)m->state.total);
        return;
    case PEER_FAILED:
        trace("%s>%s%s FAILED %llu g%llx reason %u", from, to, how, room, gen,
            m->failed.reason);
        return;
    case PEER_NACK:
        trace("%s>%s%s NACK %llu g%llx answers %s reason %u", from, to, how,
            room, gen, peer_name(m->nack.answers), m->nack.reason);
        return;
    default:
        trace("%s>%s%s %s %llu g%llx", from, to, how, peer_name(m->type), room,
            gen);
    }
}

static void frame_comes(void *p, uint64_t a, uint64_t b)
{
    struct wire *f = p;
    struct ctl *c = f->c;
    struct daemon *to = f->up ? c->e : c->l, *from = f->up ? c->l : c->e;
    struct reader r = reader_of(f->bytes, f->len);
    struct event ev = {.type = EV_PEER};
    struct peer_msg m;

    if (stands_still(to, LOOP, frame_comes, p, a, b))
        return;
    if (!c->over && lives(c->l, c->l_life) && lives(c->e, c->e_life) &&
        !W.cut[from->index][to->index] && (!f->up || accepted(c))) {
        enum err e = peer_get(&r, &m);

        HOLDS(
            e == OK && r.at == r.len, "frames can be read", "%s", err_name(e));
        if (canary("no-ack") && m.type == PEER_ACK)
            m.type = PEER_NACK;
        if (canary("early-ack") && m.type == PEER_STATE &&
            m.state.answers == PEER_LENGTH)
            m.state.state = ROOM_SUCCESS;
        ev.peer = &m;
        ev.link = f->up ? c->e_link : c->l_link;
        tell("", f, &m);
        daemon_step(to, &ev);
    }
    free(f);
}

static void frame_goes(struct ctl *c, bool up, struct span frame, bool late)
{
    struct wire *f = must_alloc(1, sizeof(*f) + frame.len);
    uint64_t when = W.now_ns + 20000 + delay_us(W.is.net_us);
    uint64_t *last = &c->last_ns[up];

    f->c = c;
    f->up = up;
    f->len = frame.len;
    memcpy(f->bytes, frame.p, frame.len);
    late |= !W.healing && chance(W.is.late);
    if (!late) {
        when = when > *last ? when : *last + 1;
        *last = when;
    } else {
        when += between(W.fault.type ? 30 : 0, W.fault.type ? 300 : 30) * MS;
    }
    at(when, frame_comes, f, 0, 0);
}

static void put_on_wire(struct daemon *d, uint32_t link, struct span frame)
{
    struct ctl *c = d->links[link];
    enum fault_how how;

    if (!c || c->over || (!W.healing && chance(W.is.loss)))
        return;
    how = fault_of(frame);
    if (how == FAULT_LOST)
        return;
    frame_goes(c, d->role == ROLE_LANGD, frame, how == FAULT_LATE);
    if (how == FAULT_TWICE || (!W.healing && chance(W.is.twice)))
        frame_goes(c, d->role == ROLE_LANGD, frame, how == FAULT_TWICE);
}

/* frames that wait for commands */

struct kept {
    struct daemon *d;
    struct ctl *c;
    uint32_t life, link, len;
    struct kept *next;
    uint8_t bytes[];
};

static struct kept *kept;

static void keep(struct daemon *d, uint32_t link, struct span frame)
{
    struct kept *k = must_alloc(1, sizeof(*k) + frame.len), **last = &kept;

    *k = (struct kept){d, d->links[link], d->life, link, frame.len, NULL};
    memcpy(k->bytes, frame.p, frame.len);
    while (*last)
        last = &(*last)->next;
    *last = k;
}

void net_flush(struct daemon *d)
{
    struct kept **first = &kept;

    while (*first) {
        struct kept *k = *first;

        if (k->d != d) {
            first = &k->next;
            continue;
        }
        *first = k->next;
        if (lives(d, k->life) && d->links[k->link] == k->c)
            put_on_wire(d, k->link, span_of(k->bytes, k->len));
        free(k);
    }
}

void net_send(struct daemon *d, uint32_t link, struct span frame)
{
    HOLDS(link < LINKS_MAX, "links are numbered", "link %u", link);
    if (daemon_lags(d))
        keep(d, link, frame);
    else
        put_on_wire(d, link, frame);
}

/* what goes wrong */

void net_cut_one(void)
{
    struct ctl *found = NULL;
    uint32_t n = 0;

    for (struct ctl *c = ctls; c; c = c->next)
        if (!c->over && draw() % ++n == 0)
            found = c;
    if (!found)
        return;
    trace("the connection %s - %s is cut", found->l->conf->name,
        found->e->conf->name);
    cut(found, 50 * MS);
}

static void partition_ends(void *p, uint64_t a, uint64_t b)
{
    W.cut[a][b] = false;
}

static void heartbeat_lost(void *p, uint64_t a, uint64_t b)
{
    struct ctl *c = p;

    if (W.cut[c->l->index][c->e->index] || W.cut[c->e->index][c->l->index])
        cut(c, 50 * MS);
}

void net_partition(
    struct daemon *a, struct daemon *b, uint64_t for_ns, bool both)
{
    trace("nothing passes from %s to %s%s for %llu ms", a->conf->name,
        b->conf->name, both ? " and back" : "",
        (unsigned long long)(for_ns / MS));
    W.cut[a->index][b->index] = true;
    at(W.now_ns + for_ns, partition_ends, NULL, a->index, b->index);
    if (both) {
        W.cut[b->index][a->index] = true;
        at(W.now_ns + for_ns, partition_ends, NULL, b->index, a->index);
    }
    for (struct ctl *c = ctls; c; c = c->next)
        if (!c->over && ((c->l == a && c->e == b) || (c->l == b && c->e == a)))
            at(W.now_ns + HEARTBEAT_LOST, heartbeat_lost, c, 0, 0);
}

void net_heal(void)
{
    memset(W.cut, 0, sizeof(W.cut));
    memset(W.shut, 0, sizeof(W.shut));
}
