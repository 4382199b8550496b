/* peers.c - see peers.h. Owned by the loop's thread. One socket per room or
 * per engine was rejected: a daemon pair shares one connection, and what it
 * knows of the other is known once. */
#include "core/peers/peers.h"

#include "base/check.h"
#include "base/sip.h"
#include "base/text.h"
#include "core/share.h"

#include <stdio.h>

/* HELLOs are rare: a larger step back means that seq has wrapped. */
#define OVERTAKEN_MAX (1u << 16)

void peers_init(
    struct peers *p, struct slab *s, const struct brain_conf *c, uint8_t role)
{
    p->max = share_peers(c->conf);
    /* a peer that comes back may hold two links for a while */
    p->links = 2 * p->max;
    p->peers = slab_take(s, p->max, sizeof(*p->peers));
    p->link_peer = slab_take(s, p->links, sizeof(*p->link_peer));
    p->link_host = slab_take(s, p->links, sizeof(*p->link_host));
    p->self.blobs = slab_take(s, CARRIER_END, ADDRESSES_MAX);
    heap_init(&p->timers, s, p->max);
    p->self.c = c;
    p->self.role = role;
    for (uint32_t i = 0; p->link_peer && i < p->links; i++)
        p->link_peer[i] = NONE;
}

/* First waits for the answer to an earlier HELLO: otherwise that answer would
 * be taken for the answer to this one, which may be lost. */
void peer_say_news(struct peers *p, struct peer *peer, uint64_t now_ns)
{
    if (peer->hello_ns == TIME_NEVER)
        peer->hello_ns = now_ns;
    peer_arm(p, peer);
}

void peers_news(struct peers *p, uint64_t now_ns)
{
    p->self.news++;
    PEERS_FOREACH (peer, p)
        if (peer_up(peer))
            peer_say_news(p, peer, now_ns);
}

static struct span keep(struct span from, uint8_t *to)
{
    CHECK(from.len <= ADDRESSES_MAX, "%u bytes of addresses", from.len);
    if (from.len)
        memcpy(to, from.p, from.len);
    return span_of(to, from.len);
}

void peers_addresses(struct peers *p, struct out *out, const struct event *ev)
{
    const struct own_addresses *a = ev->addresses;
    uint8_t bit = (uint8_t)(1u << a->carrier);
    uint8_t *to = p->self.blobs + (size_t)a->carrier * ADDRESSES_MAX;

    CHECK(a->carrier < CARRIER_END, "addresses of carrier %u", a->carrier);
    p->self.own[a->carrier].data = keep(a->data, to);
    p->self.loopback &= (uint8_t)~bit;
    p->self.loopback |= a->loopback ? bit : 0;
    PEERS_FOREACH (peer, p)
        if (peer_up(peer))
            peer_look(p, out, peer, ev->now_ns);
}

uint64_t epoch_shown(uint64_t epoch)
{
    static const uint64_t once[2] = {0x6d6d782d65706f63, 0x682d73686f776e31};

    return epoch ? sip_words(once, epoch, 0) | 1 : 0;
}

struct peer *peer_on(const struct peers *p, uint32_t link)
{
    CHECK(link < p->links, "link %u of %u", link, p->links);
    return p->link_peer[link] == NONE ? NULL : &p->peers[p->link_peer[link]];
}

struct peer *peer_named(const struct peers *p, struct span name)
{
    PEERS_FOREACH (peer, p)
        if (span_eq(span_str(peer->name), name))
            return peer;
    return NULL;
}

/* saying */

void peer_send(struct peers *p, struct out *out, const struct peer *peer,
    struct peer_msg *m)
{
    CHECK(peer->link < p->links, "%s to a peer without a link",
        peer_name(m->type));
    m->from_epoch = p->self.c->epoch;
    m->to_epoch = peer->epoch;
    m->seq = ++p->seq;
    out_peer(out, peer->link, m);
}

uint64_t peer_token(const struct peers *p, const struct peer *peer)
{
    const struct brain_conf *c = p->self.c;

    if (!peer->same_host || !peer->epoch ||
        c->conf->transfer_same_host == SAME_HOST_OFF ||
        (c->secret[0] | c->secret[1]) == 0)
        return 0;
    return sip_words(c->secret, peer->epoch, peer->serial) | 1;
}

uint64_t peer_lend_token(const struct peers *p, uint32_t who, uint64_t epoch)
{
    return sip_words(p->self.c->secret, ~epoch, who) | 1;
}

bool peer_copies(const struct peer *peer, uint32_t pool)
{
    return peer->e.map_conn != NONE && peer->e.map_epoch == peer->epoch &&
           (peer->mapped >> pool & 1);
}

/* Adds the token and socket with which the peer maps our pools; as langd, which
 * of the peer's pools are mapped. */
static void say_maps(
    const struct peers *p, const struct peer *peer, struct peer_hello *m)
{
    if (p->ops->greets) {
        m->mapped = p->self.c->conf->transfer_same_host == SAME_HOST_OFF
                        ? MAPS_NONE
                        : peer->mapped;
        return;
    }
    m->token = peer_token(p, peer);
    if (!m->token)
        return;
    m->socket = span_str(p->self.c->conf->socket_path);
    if (p->self.c->conf->transfer_same_host < SAME_HOST_COPY)
        m->lend = peer_lend_token(p, peer->who, peer->epoch);
}

/* Names the carriers here and, as langd, the one for rows from this peer: the
 * chosen one, or plain TCP (if it is here) while the peer has named none. Once
 * a key is in force, the key and the addresses go only to a run that has
 * answered. */
static void say_carriers(const struct peers *p, struct peer *peer,
    uint64_t to_epoch, struct peer_hello *m)
{
    m->carriers = span_str(p->self.c->carriers_text);
    if (!p->ops->greets)
        return;
    m->carrier = peer && peer->pair.chosen
                     ? peer->pair.chosen
                     : carriers_first(p->self.c->carriers);
    if (peer)
        peer->l.key_due = peer->l.keyed && (to_epoch == 0 || !peer_up(peer));
    if (peer && peer->l.key_due)
        return;
    m->addresses = p->self.own[m->carrier].data;
    if (peer)
        peer->carrier = m->carrier;
    if (peer && peer->l.keyed)
        m->data_key = span_of(peer->l.data_key, DATA_KEY_BYTES);
}

/* Tells the shards the key that the peer's data connections have to prove. */
static void tell_key(struct peers *p, struct out *out, struct peer *peer)
{
    struct action *a;
    size_t at = out->bytes.len;

    if (peer->l.keyed)
        put_bytes(&out->bytes, peer->l.data_key, DATA_KEY_BYTES);
    CHECK(!out->bytes.failed, "no room for the key of peer %u",
        peer_index(p, peer));
    a = out_action(out, ACT_PEER_KEY);
    a->index = peer_index(p, peer);
    a->at = (uint32_t)at;
    a->len = (uint32_t)(out->bytes.len - at);
}

/* langd: draws a key for this pair of runs if data connections have keys. True
 * if it drew one. */
static bool draw_key(
    struct peers *p, struct out *out, struct peer *peer, const uint8_t *fresh)
{
    if (!fresh || !p->self.c->data_keys || !p->ops->greets)
        return false;
    CHECK(peer->life != PEER_FREE, "a key for place %u, which is free",
        peer_index(p, peer));
    peer->l.data_key[0] = p->self.c->data_key_bits;
    memcpy(peer->l.data_key + DATA_KEY_BITS, fresh, DATA_KEY_FRESH);
    peer->l.keyed = true;
    tell_key(p, out, peer);
    return true;
}

/* Ends the key of a run that has ended: it opens nothing any more. */
static void end_key(struct peers *p, struct out *out, struct peer *peer)
{
    if (!peer->l.keyed)
        return;
    CHECK(p->ops->greets, "peer %u was given a key", peer_index(p, peer));
    memset(peer->l.data_key, 0, sizeof(peer->l.data_key));
    peer->l.keyed = false;
    tell_key(p, out, peer);
}

void peer_hello(struct peers *p, struct out *out, uint32_t link,
    uint64_t to_epoch, bool answer)
{
    const struct brain_conf *c = p->self.c;
    uint8_t pools[16384];
    struct writer w = writer_of(pools, sizeof(pools));
    struct peer_msg m = {.type = PEER_HELLO, .seq = ++p->seq};
    struct peer *peer = peer_on(p, link);
    size_t whole;

    for (uint32_t i = 0; i < p->self.pools_count; i++) {
        const struct layout *l = p->self.layouts[i];

        if (l->count == 0)
            continue;
        whole = w.len;
        put_u64(&w, l->hash);
        put_span(&w, span_str(c->conf->pools[i].name), 2, 63);
        put_span(&w, span_str(l->text), 2, LAYOUT_TEXT_MAX);
        /* the longest text does not fit: it and the rest are left out */
        if (w.failed) {
            w.len = whole;
            break;
        }
    }
    m.from_epoch = c->epoch;
    m.to_epoch = to_epoch;
    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = p->self.role;
    m.hello.answer = answer;
    m.hello.segment_max = DATA_MESSAGE_BYTES;
    m.hello.boot = c->boot;
    m.hello.name = span_str(c->conf->name);
    m.hello.advertise = span_str(c->conf->control_advertise);
    m.hello.software = span_str(MMX_VERSION);
    m.hello.pools = span_of(pools, w.len);
    m.hello.draining = p->self.draining;
    if (peer) {
        peer->told = p->self.news;
        if (!p->ops->greets)
            path_say(peer, &m.hello);
        say_maps(p, peer, &m.hello);
    }
    say_carriers(p, peer, to_epoch, &m.hello);
    out_peer(out, link, &m);
}

bool peer_carrier_broke(struct peers *p, struct out *out, struct peer *peer,
    uint64_t now_ns, uint64_t outage_ns)
{
    const char *was = carrier_name(peer->pair.chosen);

    /* Rows of a mapped peer are copied: the mapping broke, not the carrier. */
    if (peer->mapped ||
        !carriers_broke(&peer->pair, p->self.c->carriers, now_ns, outage_ns))
        return false;
    p->stats[STAT_carriers_given_up]++;
    out_warn(out, "peer %s: %s broke twice in a minute, rows go by %s now",
        peer->label[0] ? peer->label : peer->name, was,
        carrier_name(peer->pair.chosen));
    return true;
}

void peer_hello_until_up(
    struct peers *p, struct out *out, struct peer *peer, uint64_t now_ns)
{
    /* A peer that is up has answered on this link, so it may get the key. */
    peer_hello(p, out, peer->link,
        peer->l.keyed && peer_up(peer) ? peer->epoch : 0, false);
    peer->hello_ns = now_ns + p->self.c->conf->timeout_retry * 5;
    peer_arm(p, peer);
}

void peer_nack(struct peers *p, struct out *out, uint32_t link,
    const struct peer_msg *m, enum err reason, const char *text)
{
    struct peer_msg nack = {.type = PEER_NACK,
        .seq = ++p->seq,
        .from_epoch = p->self.c->epoch,
        .to_epoch = m->from_epoch,
        .room = m->room,
        .generation = m->generation};

    nack.nack.answers = (uint8_t)m->type;
    nack.nack.reason = (uint8_t)reason;
    nack.nack.text = span_str(text);
    out_peer(out, link, &nack);
}

/* hearing */

/* Returns the peer that sent the message. NULL, with NACK and HELLO as answers,
 * if an epoch in the message is neither ours nor the peer's present one. */
static struct peer *peer_gate(
    struct peers *p, struct out *out, uint32_t link, const struct peer_msg *m)
{
    struct peer *peer = peer_on(p, link);

    if (peer && peer_up(peer) && m->from_epoch == peer->epoch &&
        m->to_epoch == p->self.c->epoch)
        return peer;
    p->stats[STAT_stale_epoch]++;
    if (m->type != PEER_NACK) {
        peer_nack(p, out, link, m, ERR_STALE, "another epoch");
        peer_hello(p, out, link, 0, false);
    }
    return NULL;
}

void peer_bad(struct peers *p, struct out *out, const struct event *ev)
{
    char text[WIRE_FAULT_TEXT];

    p->stats[STAT_malformed_peer]++;
    if (!ev->fault.field || ev->err != ERR_MALFORMED)
        return;
    p->stats[STAT_unknown_bits] += !ev->fault.length;
    if (ev->link < p->links && ev->peer->type != PEER_NACK &&
        (ev->peer->type == PEER_HELLO || peer_gate(p, out, ev->link, ev->peer)))
        peer_nack(p, out, ev->link, ev->peer, ERR_MALFORMED,
            wire_fault_text(&ev->fault, text));
}

void peer_warn_once(struct said *r, struct out *out, const char *who,
    const char *text, bool lasts, uint64_t now_ns)
{
    r->untold |= lasts || strcmp(r->text, text) != 0;
    if (r->untold && now_ns >= r->from_ns) {
        r->untold = false;
        r->from_ns = now_ns + SAID_EVERY_NS;
        out_warn(out, "%s %s", who, text);
    }
    snprintf(r->text, sizeof(r->text), "%s", text);
}

static void peer_refused(struct peer *peer, struct out *out, enum err e,
    const char *how, const char *why, uint64_t now_ns)
{
    char text[TROUBLE_TEXT];

    snprintf(text, sizeof(text), "%s: %.130s", how, why);
    peer_troubled(peer, out, e == ERR_VERSION ? TROUBLE_VERSION : TROUBLE_HELLO,
        text, now_ns);
}

static void stranger_refused(struct peers *p, struct out *out, struct span says,
    const char *why, uint64_t now_ns)
{
    char who[100], text[TROUBLE_TEXT];

    text_copy(says, p->stranger, sizeof(p->stranger));
    snprintf(who, sizeof(who), "a daemon that calls itself %s", p->stranger);
    snprintf(text, sizeof(text), "is refused: %s", why);
    peer_warn_once(&p->strangers, out, who, text, true, now_ns);
}

/* True if the link's key belongs to the daemon that the HELLO names. */
static bool is_owner(
    struct peers *p, const struct peer *peer, const struct event *ev)
{
    const struct peer_hello *m = &ev->peer->hello;
    const struct identity *who = ev->owner;

    if (!who)
        return true;
    CHECK(who->name[0], "a key of role %u has no name", who->role);
    snprintf(p->why, sizeof(p->why), "its key is that of %s %s",
        role_name(who->role), who->name);
    /* langd: a configured encoder is the daemon of that name */
    return who->role == m->role && span_eq(span_str(who->name), m->name) &&
           (!peer || !peer->l.configured ||
               strcmp(peer->label, who->name) == 0);
}

/* Finds the peer that sends HELLO; on error *text says why there is none. */
static enum err find_sender(struct peers *p, struct out *out,
    const struct event *ev, struct peer **peer, const char **text)
{
    const struct peer_msg *m = ev->peer;

    *text = p->why;
    if (!is_owner(p, *peer, ev))
        return ERR_NOT_OWNER;
    *text = "a daemon of the wrong role, or without an epoch";
    if (m->hello.role != role_other(p->self.role) || m->from_epoch == 0)
        return ERR_MALFORMED;
    if (p->ops->find)
        *peer = p->ops->find(p->brain, out, ev->link, m, text);
    if (!*peer)
        return ERR_BUSY;
    *text = p->why;
    if (!peer_proven(p, out, *peer, ev->now_ns))
        return ERR_BUSY;
    if ((*peer)->epoch && (*peer)->epoch != m->from_epoch)
        peer_lost(p, out, *peer, true);
    return OK;
}

/* Takes the peer's carriers. langd chooses one; encoded takes the one that
 * langd's addresses are for. */
static void take_carriers(
    struct peers *p, struct peer *peer, const struct peer_hello *m)
{
    uint8_t there = carriers_read(m->carriers);

    text_copy(m->carriers, peer->carriers, sizeof(peer->carriers));
    if (!p->ops->greets) {
        peer->carrier = peer->pair.chosen = m->carrier;
        peer->pair.there = there;
        return;
    }
    (void)carriers_choose(&peer->pair, p->self.c->carriers, there);
}

/* Takes from a HELLO whether the peer is up or drains, and the state of the
 * path. Ignores a HELLO that a later one overtook. True if the peer begins to
 * drain. */
static bool take_news(struct peers *p, struct out *out, struct peer *peer,
    const struct peer_msg *m, uint64_t now_ns)
{
    uint32_t behind = peer->hello_seq - m->seq; /* seq wraps */
    uint8_t was = peer->life;

    if (peer_up(peer) && behind > 0 && behind <= OVERTAKEN_MAX)
        return false;
    peer->hello_seq = m->seq;
    peer_move(peer, m->hello.draining ? PEER_DRAINING : PEER_UP);
    if (p->ops->greets)
        path_hear(p, out, peer, &m->hello, now_ns);
    return peer->life == PEER_DRAINING && was != PEER_DRAINING;
}

static const char *versions(struct peers *p, const struct peer_hello *m)
{
    snprintf(p->why, sizeof(p->why),
        "%s speaks protocol version %u to %u, %s %d", role_name(m->role),
        m->version_min, m->version_max, role_name(p->self.role), WIRE_VERSION);
    return p->why;
}

static void on_hello(struct peers *p, struct out *out, const struct event *ev)
{
    const struct peer_msg *m = ev->peer;
    uint32_t link = ev->link;
    struct peer *peer = peer_on(p, link);
    uint64_t now_ns = ev->now_ns;
    const char *text;
    bool was_up, drawn, drains;
    enum err e;

    if (p->ops->greets && !peer)
        return; /* the link is being closed */
    e = find_sender(p, out, ev, &peer, &text);
    was_up = e == OK && peer_up(peer);
    if (e == OK && !was_up)
        peer->asked_ns = now_ns;
    if (e == OK)
        e = peer_take_hello(peer, &m->hello, &p->self.c->boot, &text);
    if (e != OK) {
        p->stats[STAT_malformed_peer] += e == ERR_MALFORMED;
        text = e == ERR_VERSION ? versions(p, &m->hello) : text;
        peer_nack(p, out, link, m, e, text);
        if (p->ops->greets)
            peer_refused(peer, out, e, "is refused", text, now_ns);
        else
            stranger_refused(p, out, m->hello.name, text, now_ns);
        if (peer && !peer->epoch && peer->link == NONE &&
            list_empty(&peer->rooms))
            peer_forget(p, out, peer);
        return;
    }
    if (peer->epoch != m->from_epoch)
        peer->pair = (struct carrier_pair){0};
    peer->epoch = m->from_epoch;
    if (!trouble_of_data((enum trouble)peer->trouble.kind))
        peer_mended(peer, out, now_ns);
    drains = take_news(p, out, peer, m, now_ns);
    take_carriers(p, peer, &m->hello);
    drawn = !peer->l.keyed && draw_key(p, out, peer, ev->fresh);
    p->ops->greeted(p->brain, out, link, peer, m, was_up);
    if (drains && p->ops->drains)
        p->ops->drains(p->brain, out);
    CHECK(peer->link == link && peer_on(p, link) == peer,
        "a peer that said HELLO on link %u is not there", link);
    if (!p->ops->greets && m->hello.addresses.len > 0)
        path_try(p, peer, now_ns);
    /* As langd: if the answer changes the choice, the new carrier's addresses
     * follow, and on a new link the key, before any request. */
    if (!m->hello.answer || drawn || peer->l.key_due ||
        (p->ops->greets && peer->pair.chosen &&
            peer->carrier != peer->pair.chosen))
        peer_hello(p, out, link, peer->epoch, true);
    else if (peer->told != p->self.news || peer->e.path_due)
        peer->hello_ns = now_ns; /* the peer answered an older HELLO */
    peer_arm(p, peer);
}

/* Our HELLO was refused. It is sent again and again, so we notice when the peer
 * changes its mind. */
static void on_refused(struct peers *p, struct out *out, uint32_t link,
    const struct peer_msg *m, uint64_t now_ns)
{
    struct peer *peer = peer_on(p, link);
    char text[TROUBLE_TEXT];

    if (!peer || peer_up(peer) || m->to_epoch != p->self.c->epoch)
        return;
    text_copy(m->nack.text, text, sizeof(text));
    peer_refused(peer, out, (enum err)m->nack.reason, "refuses this daemon",
        text[0] ? text : "no reason given", now_ns);
}

struct peer *peers_hear(
    struct peers *p, struct out *out, const struct event *ev)
{
    const struct peer_msg *m = ev->peer;

    if (m->type == PEER_HELLO)
        on_hello(p, out, ev);
    else if (m->type == PEER_NACK && m->nack.answers == PEER_HELLO &&
             p->ops->greets)
        on_refused(p, out, ev->link, m, ev->now_ns);
    else
        return peer_gate(p, out, ev->link, m);
    return NULL;
}

/* ends */

void peer_disconnect(struct peers *p, struct out *out, struct peer *peer)
{
    peer_move(peer, PEER_NAMED);
    peer->hello_ns = peer->l.away_ns = TIME_NEVER;
    peer_arm(p, peer);
    if (peer->link == NONE)
        return;
    CHECK(peer_on(p, peer->link) == peer, "link %u is another peer's",
        peer->link);
    out_action(out, ACT_DISCONNECT)->link = peer->link;
    p->link_peer[peer->link] = NONE;
    peer->link = NONE;
}

void peer_lost(
    struct peers *p, struct out *out, struct peer *peer, bool restarted)
{
    struct data_cmd cmd = {.type = PEER_CLOSE, .peer = peer_index(p, peer)};

    CHECK(peer->life != PEER_FREE, "peer %u is lost and no peer", cmd.peer);
    p->stats[STAT_peers_lost]++;
    p->ops->lost(p->brain, out, peer, restarted);
    end_key(p, out, peer);
    path_end(peer);
    if (peer_up(peer))
        peer_move(peer, PEER_AWAY);
    peer->lost_ns = TIME_NEVER;
    peer_arm(p, peer);
    out_data(out, &cmd);
}

void peer_forget(struct peers *p, struct out *out, struct peer *peer)
{
    CHECK(!peer->l.configured && list_empty(&peer->rooms),
        "peer %u is forgotten and in use", peer_index(p, peer));
    if (peer->epoch)
        peer_lost(p, out, peer, true);
    end_key(p, out, peer); /* a peer that never sent HELLO may have one, too */
    peer_disconnect(p, out, peer);
    peer_move(peer, PEER_FREE);
}

void peers_link(struct peers *p, struct out *out, const struct event *ev)
{
    struct peer *peer = ev->link < p->links ? peer_on(p, ev->link) : NULL;
    char text[TROUBLE_TEXT];

    if (ev->type == EV_LINK_UP && ev->link < p->links)
        p->link_host[ev->link] = ev->host;
    if (!peer)
        return;
    if (ev->type == EV_LINK_REFUSED) {
        CHECK(ev->text && p->ops->greets,
            "link %u is refused to one that accepts, or without a word",
            ev->link);
        snprintf(text, sizeof(text), "%s: %s",
            ev->trouble == TROUBLE_KEY ? "refused" : "cannot be connected",
            ev->text);
        peer_troubled(peer, out, ev->trouble, text, ev->now_ns);
        return;
    }
    if (ev->type == EV_LINK_UP) {
        if (!peer->l.keyed || !peer->epoch)
            (void)draw_key(p, out, peer, ev->fresh);
        peer->l.far = ev->far;
        if (p->ops->greets)
            peer_hello_until_up(p, out, peer, ev->now_ns);
        return;
    }
    if (!p->ops->greets) {
        p->link_peer[ev->link] = NONE;
        peer->link = NONE;
    }
    peer_down(p, peer, ev->now_ns);
}

/* time */

void peer_arm(struct peers *p, struct peer *peer)
{
    uint64_t at = min_u64(peer->lost_ns, peer->hello_ns);

    at = min_u64(min_u64(at, peer->l.away_ns), peer->e.try_ns);
    if (at == TIME_NEVER)
        heap_remove(&p->timers, &peer->timer);
    else
        heap_set(&p->timers, &peer->timer, at);
}

void peer_awaited(struct peers *p, struct peer *peer, uint64_t now_ns)
{
    CHECK(p->ops->greets && !peer_up(peer),
        "peer %u is awaited, and up, or encoded", peer_index(p, peer));
    if (peer->life == PEER_UNREACHABLE || peer->l.away_ns != TIME_NEVER)
        return;
    peer->l.away_ns = now_ns + p->self.c->conf->timeout_unreachable;
    peer_arm(p, peer);
}

/* Makes a peer unreachable that was awaited for timeouts.unreachable. */
static void give_up(struct peers *p, struct out *out, struct peer *peer)
{
    const char *why =
        peer->trouble.kind ? peer->trouble.text : "no connection, or no answer";

    peer_move(peer, PEER_UNREACHABLE);
    p->stats[STAT_peers_unreachable]++;
    out_warn(out, "peer %s at %s is unreachable: %s", peer->label,
        peer->address, why);
    p->ops->unreachable(p->brain, peer);
}

void peer_down(struct peers *p, struct peer *peer, uint64_t now_ns)
{
    if (peer_up(peer)) { /* otherwise it is lost already, or about to be */
        /* encoded: what it found out about the path to a langd is kept until
         * the next try. */
        if (p->ops->greets || !trouble_of_data(peer->trouble.kind))
            peer_note_trouble(
                peer, TROUBLE_LOST, "the connection is lost", now_ns);
        peer_move(peer, PEER_AWAY);
        peer->lost_ns = now_ns + p->self.c->conf->control_lost_after;
    }
    peer->hello_ns = TIME_NEVER;
    if (p->ops->greets)
        peer_awaited(p, peer, now_ns);
    peer_arm(p, peer);
}

void peers_expire(struct peers *p, struct out *out, uint64_t now_ns)
{
    struct heap_node *n;

    while (
        out_has_room(out) && (n = heap_first(&p->timers)) && n->key <= now_ns) {
        struct peer *peer = CONTAINER_OF(n, struct peer, timer);
        uint64_t *due = peer->lost_ns <= now_ns     ? &peer->lost_ns
                        : peer->l.away_ns <= now_ns ? &peer->l.away_ns
                        : peer->e.try_ns <= now_ns  ? &peer->e.try_ns
                                                    : &peer->hello_ns;

        *due = TIME_NEVER;
        peer_arm(p, peer);
        if (due == &peer->lost_ns)
            peer_lost(p, out, peer, false);
        else if (due == &peer->l.away_ns)
            give_up(p, out, peer);
        else if (due == &peer->e.try_ns)
            path_due(p, out, peer, now_ns);
        else if (peer_up(peer) || p->ops->greets)
            peer_hello_until_up(p, out, peer, now_ns);
    }
}

const char *peer_layout(const struct peer *peer, uint64_t hash)
{
    for (uint32_t i = 0; i < peer->pools_count; i++)
        if (peer->pools[i].hash == hash)
            return peer->pools[i].text;
    return "unknown";
}
