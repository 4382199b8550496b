/* path.c - whether rows can come from an encoder to a langd, and the record of
 * what is wrong with a peer. Reports, health, doctor, metrics, the log and
 * failed rooms all use this one record.
 *
 * Rows go from encoded to langd, so encoded tries the path: it makes one data
 * connection, with its proof, to each langd that gives addresses. When that
 * breaks it tries again after a pause. A langd has an address for each of its
 * shards, and a firewall may let some through: when rows find that another
 * address cannot be connected, that one is tried from then on. Its HELLOs say
 * the result. Owned by the loop's thread.
 *
 * Rejected: to try the path with the first room. Both daemons would call
 * themselves ready although no row can move, until an engine has waited for
 * rows. */
#include "core/peers/peers.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>

/* Pauses between two tries: between tries to any peers, so that a starting
 * fleet does not connect all at once, and between tries to one peer, whatever
 * its HELLOs say. */
#define TRY_EACH_NS  NS_PER_MS
#define TRY_AGAIN_NS NS_PER_S
#define PAUSE_MAX_NS (30 * NS_PER_S)

/* the record */

void peer_note_trouble(
    struct peer *peer, enum trouble kind, const char *text, uint64_t now_ns)
{
    struct peer_trouble *t = &peer->trouble;

    CHECK(kind != TROUBLE_NONE && kind < TROUBLE_END, "trouble %u", kind);
    if (t->kind == TROUBLE_NONE ||
        trouble_of_data(t->kind) != trouble_of_data(kind)) {
        t->since_ns = now_ns;
        t->said.text[0] = 0;
    }
    t->kind = (uint8_t)kind;
    snprintf(t->text, sizeof(t->text), "%s", text);
}

static void name_peer(const struct peer *peer, char *out, size_t size)
{
    const char *name = peer->label[0] ? peer->label : peer->name;

    snprintf(out, size, "peer %s%s%s:", name[0] ? name : "without a name",
        peer->address[0] ? " at " : "", peer->address);
}

void peer_troubled(struct peer *peer, struct out *out, enum trouble kind,
    const char *text, uint64_t now_ns)
{
    char who[280];

    peer_note_trouble(peer, kind, text, now_ns);
    name_peer(peer, who, sizeof(who));
    peer_warn_once(
        &peer->trouble.said, out, who, peer->trouble.text, false, now_ns);
}

void peer_mended(struct peer *peer, struct out *out, uint64_t now_ns)
{
    struct peer_trouble *t = &peer->trouble;
    char who[280];

    if (t->kind == TROUBLE_NONE)
        return;
    name_peer(peer, who, sizeof(who));
    if (trouble_of_data(t->kind))
        out_warn(out, "%s rows can go again, after %llu s", who,
            (unsigned long long)((now_ns - t->since_ns) / NS_PER_S));
    t->kind = TROUBLE_NONE;
    t->text[0] = 0;
}

const char *peer_trouble_text(const struct peer *peer, char out[TROUBLE_SAID])
{
    const struct peer_trouble *t = &peer->trouble;
    const char *key = trouble_words[t->kind].key;
    bool named = key[0] == '-' || strstr(t->text, key);

    CHECK(t->kind < TROUBLE_END, "trouble %u", t->kind);
    snprintf(out, TROUBLE_SAID, "%s%s%s%s", t->text, named ? "" : " (",
        named ? "" : key, named ? "" : ")");
    return out;
}

/* langd */

/* True if rows of the encoder could not arrive: it is on another host, and all
 * data addresses here are of loopback. */
static bool apart(const struct peers *p, const struct peer *peer)
{
    return peer_up(peer) && peer->l.far && !peer->l.map_asked &&
           (p->self.loopback >> peer->pair.chosen & 1);
}

void peer_look(
    struct peers *p, struct out *out, struct peer *peer, uint64_t now_ns)
{
    char text[TROUBLE_TEXT];

    snprintf(text, sizeof(text),
        "on another %s, and transfer.devices is %.100s",
        peer->same_host ? "network" : "host",
        p->self.c->conf->transfer_devices);
    if (apart(p, peer))
        peer_troubled(peer, out, TROUBLE_DATA_LOOPBACK, text, now_ns);
    else if (peer_up(peer) &&
             (peer->path != PATH_SHUT ||
                 peer->trouble.kind == TROUBLE_DATA_LOOPBACK) &&
             trouble_of_data((enum trouble)peer->trouble.kind))
        peer_mended(peer, out, now_ns);
}

void path_hear(struct peers *p, struct out *out, struct peer *peer,
    const struct peer_hello *m, uint64_t now_ns)
{
    bool known =
        m->trouble < TROUBLE_END && trouble_of_data((enum trouble)m->trouble);
    char text[TROUBLE_TEXT];

    peer->path = m->path <= PATH_SHUT ? m->path : PATH_SHUT;
    if (peer->path != PATH_SHUT || apart(p, peer))
        return;
    text_copy(m->trouble_text, text, sizeof(text));
    peer_troubled(peer, out,
        known ? (enum trouble)m->trouble : TROUBLE_DATA_LOST, text, now_ns);
}

/* encoded */

void path_say(struct peer *peer, struct peer_hello *m)
{
    m->path = peer->path == PATH_NOT_SAID ? PATH_TRIED : peer->path;
    peer->e.path_due = false;
    if (peer->path != PATH_SHUT)
        return;
    m->trouble = peer->trouble.kind;
    m->trouble_text = span_str(peer->trouble.text);
}

void path_try(struct peers *p, struct peer *peer, uint64_t now_ns)
{
    uint64_t slot = max_u64(now_ns, p->tries_ns), at = slot;

    if (peer->path == PATH_NOT_SAID)
        peer->path = PATH_TRIED;
    if (peer->e.tried_ns)
        at = max_u64(at, peer->e.tried_ns + TRY_AGAIN_NS);
    if (at >= peer->e.try_ns)
        return; /* an earlier try is due */
    p->tries_ns = slot + TRY_EACH_NS;
    peer->e.try_ns = at;
    peer_arm(p, peer);
}

void path_due(
    struct peers *p, struct out *out, struct peer *peer, uint64_t now_ns)
{
    struct data_cmd cmd = {.type = PEER_TRY, .peer = peer_index(p, peer)};

    CHECK(peer->path != PATH_NOT_SAID, "peer %u has no addresses to try",
        cmd.peer);
    peer->e.tried_ns = now_ns;
    peer->e.tries = cmd.attempt = ++p->tries;
    peer->e.try_at %= peer->addresses; /* there may be fewer now */
    peer->e.shut &= UINT64_MAX >> (64 - peer->addresses);
    while (peer->e.shut && !(peer->e.shut >> peer->e.try_at & 1))
        peer->e.try_at = (peer->e.try_at + 1) % peer->addresses;
    cmd.a = peer->e.try_at;
    out_data(out, &cmd);
}

void path_end(struct peer *peer)
{
    peer->path = PATH_NOT_SAID;
    peer->e.try_ns = TIME_NEVER;
    /* later notes of old tries do not count */
    peer->e.pause_ns = peer->e.tries = peer->e.try_at = 0;
    peer->e.shut = 0;
    if (trouble_of_data((enum trouble)peer->trouble.kind))
        peer_note_trouble(peer, TROUBLE_LOST, "the connection is lost",
            peer->trouble.since_ns);
}

static void tried(
    struct peers *p, struct out *out, struct peer *peer, const struct event *ev)
{
    const struct conf *c = p->self.c->conf;
    uint64_t bit = UINT64_C(1) << ev->note.slot;
    bool ok = ev->note.rows == TROUBLE_NONE;
    uint8_t was = peer->path, kind = peer->trouble.kind;
    char text[TROUBLE_TEXT];

    CHECK(ev->note.slot < 64, "address %u was tried", ev->note.slot);
    peer->e.shut = ok ? peer->e.shut & ~bit : peer->e.shut | bit;
    peer->path = peer->e.shut ? PATH_SHUT : PATH_OPEN;
    snprintf(text, sizeof(text), "rows cannot go to %.140s",
        ev->text && ev->text[0] ? ev->text : "its data address");
    if (!ok && peer->e.try_ns == TIME_NEVER) {
        peer->e.pause_ns = peer->e.pause_ns
                               ? min_u64(2 * peer->e.pause_ns, PAUSE_MAX_NS)
                               : c->timeout_retry;
        peer->e.try_ns = ev->now_ns + peer->e.pause_ns;
    }
    if (!ok) {
        peer_troubled(peer, out, (enum trouble)ev->note.rows, text, ev->now_ns);
    } else {
        peer->e.pause_ns = 0;
        if (peer->e.shut)
            path_try(p, peer, ev->now_ns);
        else if (trouble_of_data((enum trouble)kind))
            peer_mended(peer, out, ev->now_ns);
    }
    if (was != peer->path || kind != peer->trouble.kind) {
        peer->e.path_due = true;
        peer_say_news(p, peer, ev->now_ns);
    }
    peer_arm(p, peer);
}

bool path_note(struct peers *p, struct out *out, const struct event *ev)
{
    struct peer *peer = &p->peers[ev->note.peer];

    if (ev->note.type != NOTE_PEER_TRIED && ev->note.type != NOTE_PEER_BROKEN)
        return false;
    CHECK(ev->note.peer < p->max && ev->note.rows < TROUBLE_END,
        "note of peer %u, trouble %u", ev->note.peer, ev->note.rows);
    if (!peer_up(peer)) /* why it is away says more */
        return ev->note.type == NOTE_PEER_TRIED;
    if (ev->note.type == NOTE_PEER_TRIED && peer->path != PATH_NOT_SAID &&
        ev->note.attempt == peer->e.tries)
        tried(p, out, peer, ev);
    else if (ev->note.type == NOTE_PEER_BROKEN && peer->path == PATH_OPEN) {
        peer->e.try_at = ev->note.slot;
        path_try(p, peer, ev->now_ns);
    }
    return ev->note.type == NOTE_PEER_TRIED;
}
