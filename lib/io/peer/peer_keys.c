/* peer_keys.c - keeps strangers out: CURVE on every socket, the ZAP handler
 * that decides which keys are admitted, and refused handshakes.
 *
 * Invariants: with keys every socket has CURVE set before it is bound or
 * connected. The handler exists from before the bind of the listener until the
 * context ends, so that libzmq never continues without its answer. It admits
 * only our keys. Without keys nothing here is set, and libzmq refuses the first
 * message of a daemon that has one. The loop's thread.
 *
 * If keys have owners (control.identities), a daemon's own pair differs from
 * the keys of others: a connector uses that of its encoder, or those of all
 * encoders in turn. Messages carry the owner of their connection's key, as
 * ZAP's User-Id; keys_admit() checks it again, since the keys may have changed
 * after the handshake.
 *
 * A listener uses its first key. A connector needs that key's public half
 * before it can send, so it guesses, with a key that is also its own pair. A
 * wrong guess ends the handshake without a message, and the next key is tried
 * (peer_dial.c). So a fleet can change keys at any time: the new one is added
 * everywhere, then moved to the front everywhere, then the old one is removed.
 *
 * Rejected: a ZAP handler in a thread of its own (so only one thread reads the
 * sets of keys, and a handshake can wait for a turn of the loop), and to accept
 * any client's key (a program that learns the public half of a key would be
 * admitted). */
#include "io/peer/peer_impl.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

#define ZAP_ADDRESS "inproc://zeromq.zap.01"
#define ZAP_PARTS                                                              \
    7 /* version, request, domain, address, id, mechanism, key                 \
       */
#define ZAP_TURN 256
/* Logs show a key's first characters, as in its file. */
#define KEY_SHOWN "%.8s"

static struct log_rate refusals =
    LOG_RATE("refused control connections", LOG_WARN, 1);
static struct log_rate let_in = LOG_RATE("keys that are let in", LOG_INFO, 10);

static void note_refusal(struct links *p, const char *from, const char *why)
{
    struct links_refusal *r = &p->refusal;

    p->stats.keys_refused++;
    r->at_ns = uv_hrtime();
    snprintf(r->why, sizeof(r->why), "%s", why);
    snprintf(r->from, sizeof(r->from), "%s", from);
    log_rated(
        &refusals, "a control connection from %s is refused: %s", from, why);
}

/* the handler */

static void on_zap(uv_poll_t *h, int status, int events)
{
    struct links *p = h->data;

    (void)status;
    (void)events;
    p->zap_news = true;
}

enum err zap_open(struct links *p)
{
    p->zap = zmq_socket(p->ctx, ZMQ_REP);
    if (!p->zap || !sock_set(p->zap, ZMQ_LINGER, 0) ||
        zmq_bind(p->zap, ZAP_ADDRESS) != 0 ||
        !sock_watch(p->loop, &p->zap_poll, p->zap, on_zap, p)) {
        log_error("zmq: zap: %s", zmq_strerror(zmq_errno()));
        return ERR_INTERNAL;
    }
    p->zap_news = true;
    return OK;
}

void zap_close(struct links *p)
{
    if (!p->zap)
        return;
    if (p->zap_poll.data && !uv_is_closing((uv_handle_t *)&p->zap_poll))
        uv_close((uv_handle_t *)&p->zap_poll, NULL);
    zmq_close(p->zap);
    p->zap = NULL;
    p->zap_news = false;
}

struct zap_request {
    char id[64], from[64];
    size_t id_len;
    bool ours; /* the key is admitted */
    char key[KEY_TEXT + 1];
};

static void take_part(
    struct links *p, struct zap_request *r, uint32_t part, bool *curve)
{
    const void *bytes = zmq_msg_data(&p->scrap);
    size_t len = zmq_msg_size(&p->scrap);

    if (part == 1 && len <= sizeof(r->id)) {
        memcpy(r->id, bytes, len);
        r->id_len = len;
    } else if (part == 3 && len < sizeof(r->from)) {
        memcpy(r->from, bytes, len);
    } else if (part == 5) {
        *curve = len == 5 && memcmp(bytes, "CURVE", 5) == 0;
    } else if (part == 6) {
        r->ours = *curve && len == 32 && zmq_z85_encode(r->key, bytes, 32) &&
                  keys_find(p->opt.keys, bytes) != NONE;
    }
}

/* Receives one request. False: there is none. */
static bool zap_receive(struct links *p, struct zap_request *r)
{
    bool curve = false, more = true;
    uint32_t parts = 0;

    memset(r, 0, sizeof(*r));
    while (more) {
        if (!sock_receive(p->zap, &p->scrap))
            return false;
        take_part(p, r, parts++, &curve);
        more = zmq_msg_more(&p->scrap);
    }
    r->ours &= parts == ZAP_PARTS;
    return true;
}

static void zap_answer(struct links *p, const struct zap_request *r)
{
    const char *words[] = {r->ours ? "200" : "400",
        r->ours ? "" : "not a key of the fleet", r->ours ? r->key : "", ""};

    (void)sock_send(p->zap, "1.0", 3, ZMQ_SNDMORE);
    (void)sock_send(p->zap, r->id, r->id_len, ZMQ_SNDMORE);
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        (void)sock_send(p->zap, words[i], strlen(words[i]),
            i + 1 < ARRAY_LEN(words) ? ZMQ_SNDMORE : 0);
}

static void turned_away(struct links *p, const struct zap_request *r)
{
    char why[sizeof(p->refusal.why)];

    snprintf(why, sizeof(why), "key (" KEY_SHOWN " is not let in)", r->key);
    note_refusal(p, r->from, why);
}

void zap_serve(struct links *p)
{
    struct zap_request r;
    uint32_t served = 0;

    p->zap_news = false;
    while (served < ZAP_TURN && zap_receive(p, &r)) {
        zap_answer(p, &r);
        if (!r.ours)
            turned_away(p, &r);
        served++;
    }
    p->zap_news = served == ZAP_TURN;
}

/* refused handshakes */

/* Returns why a handshake failed. NULL: not because of keys. */
static const char *why_of(const struct links *p, uint16_t event, uint32_t value)
{
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        return "key (this daemon's is not let in there)";
    if (event != ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
        return NULL;
    if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        return p->opt.keys ? "key (the other side uses none)"
                           : "key (the other side wants one, and this daemon "
                             "has none)";
    if (value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
        return "key (the other side has another one)";
    return NULL;
}

void keys_router_event(struct links *p, uint16_t event, uint32_t value)
{
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) /* turned_away() */
        return;
    p->failed = why_of(p, event, value);
    p->failed_sure = p->failed != NULL;
    if (!p->failed && event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
        p->stats.strangers++;
    else if (!p->failed && p->opt.keys)
        p->failed = "key (the other side ends the handshake: it may use none)";
}

void keys_ended(struct links *p, const struct conn *c)
{
    char from[sizeof(p->refusal.from)] = "an unknown address";
    const char *why = p->failed;

    p->failed = NULL;
    /* one that we ended; without an entry it was evicted */
    if (!why || (!p->failed_sure && (!c || c->ended)))
        return;
    if (c)
        conn_from(c, from, sizeof(from));
    note_refusal(p, from, why);
}

void keys_dealer_event(
    struct links *p, uint32_t link, uint16_t event, uint32_t value)
{
    const char *why = why_of(p, event, value);
    const char *guess =
        !p->opt.keys ? "key (the other side ends the handshake: it may want "
                       "one)"
        : p->opt.keys->lines_count
            ? "key (the other side ends the handshake: control.identities has "
              "another key of it)"
            : "key (the other side ends the handshake: none of control.keys "
              "is its own, or it has control.identities)";

    p->stats.keys_refused++;
    dial_refused(p, link, why ? why : guess, why != NULL);
}

const struct links_refusal *links_refusal(const struct links *p)
{
    return p->refusal.at_ns ? &p->refusal : NULL;
}

/* admitted keys */

/* Returns the index of the link's key. */
static uint32_t key_of(const struct links *p, const struct link *k)
{
    CHECK(p->opt.keys, "a key of a link without keys");
    return k->sock == p->router ? keys_find(p->opt.keys, p->conns[k->conn].key)
                                : k->dial.key;
}

bool keys_admit(struct links *p, uint32_t conn)
{
    struct conn *c = &p->conns[conn];
    const char *key = zmq_msg_gets(&p->msg, "User-Id");

    if (!p->opt.keys || (key && zmq_z85_decode(c->key, key) &&
                            keys_find(p->opt.keys, c->key) != NONE))
        return true;
    conns_shut(p, conn);
    return false;
}

void keys_let_in(const struct links *p, uint32_t link)
{
    const struct link *k = link_at(p, link);
    const struct identity *who = links_owner(p, link);
    char from[sizeof(p->refusal.from)];
    const char *key;

    if (!p->opt.keys)
        return;
    key = keys_public(p->opt.keys, key_of(p, k));
    if (k->sock != p->router) {
        log_rated(&let_in,
            "encoder at %s port %s: it has key " KEY_SHOWN "%s%s", k->dial.host,
            k->dial.port, key, who ? " of " : "", who ? who->name : "");
        return;
    }
    conn_from(&p->conns[k->conn], from, sizeof(from));
    log_rated(&let_in,
        "a control connection from %s is let in: key " KEY_SHOWN "%s%s", from,
        key, who ? " of " : "", who ? who->name : "");
}

const struct identity *links_owner(const struct links *p, uint32_t link)
{
    const struct link *k = link_at(p, link);

    return p->opt.keys && k->up ? keys_owner(p->opt.keys, key_of(p, k)) : NULL;
}
