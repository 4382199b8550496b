/* peer_keys.c - what keeps strangers out: CURVE on every socket, the ZAP
 * handler that says whose key is taken, and handshakes that were refused.
 *
 * Invariants: with keys every socket has CURVE set before it is bound or
 * connected; the handler is there before the listener is bound and until the
 * context ends, so that libzmq never goes on without its answer. It answers for
 * keys of ours alone. Without keys nothing here is set, and the first message
 * of a daemon that has one is refused by libzmq. The loop's thread.
 *
 * A listener serves with its first key. A connector needs that key's public
 * half before it can speak, and says a guess, which is also its own pair: a
 * wrong one ends the handshake without a word, the next one is tried then
 * (peer_dial.c). So a fleet gets a new key without an hour zero: it is added
 * everywhere, moved to the front everywhere, and the old one is taken out.
 *
 * Rejected: a ZAP handler in a thread of its own (the sets are read by one
 * thread, and a handshake may wait for a turn), accepting any client's key
 * (a program that learns the public half of a key would be in), and a key per
 * daemon (lists of names to keep; what a stolen one opens is the same). */
#include "io/peer/peer_impl.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

#define ZAP_ADDRESS "inproc://zeromq.zap.01"
#define ZAP_PARTS                                                              \
    7 /* version, request, domain, address, id, mechanism, key                 \
       */
#define ZAP_TURN 256
/* libzmq's number; its header has it for drafts only. A build that does not
 * know it goes on without a handler where there is none: ours is there. */
#define ENFORCE_DOMAIN 93

static struct log_rate refusals =
    LOG_RATE("refused control connections", LOG_WARN, 1);

bool keys_set(const struct links *p, void *zmq, int type, uint32_t which)
{
    const struct keys *keys = p->opt.keys;
    const struct key_pair *k = keys ? &keys->pairs[which] : NULL;

    if (!k)
        return true;
    CHECK(which < keys->count, "key %u of %u", which, keys->count);
    if (type == ZMQ_ROUTER) {
        (void)sock_set(zmq, ENFORCE_DOMAIN, 1);
        return sock_set(zmq, ZMQ_CURVE_SERVER, 1) &&
               zmq_setsockopt(
                   zmq, ZMQ_CURVE_SECRETKEY, k->secret, KEY_TEXT + 1) == 0 &&
               zmq_setsockopt(zmq, ZMQ_ZAP_DOMAIN, "mmx", 3) == 0;
    }
    return zmq_setsockopt(zmq, ZMQ_CURVE_SERVERKEY, k->public, KEY_TEXT + 1) ==
               0 &&
           zmq_setsockopt(zmq, ZMQ_CURVE_PUBLICKEY, k->public, KEY_TEXT + 1) ==
               0 &&
           zmq_setsockopt(zmq, ZMQ_CURVE_SECRETKEY, k->secret, KEY_TEXT + 1) ==
               0;
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
        zmq_bind(p->zap, ZAP_ADDRESS) != 0) {
        log_error("zmq: zap: %s", zmq_strerror(zmq_errno()));
        return ERR_INTERNAL;
    }
    sock_watch(p->loop, &p->zap_poll, p->zap, on_zap, p);
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
    char id[64];
    size_t id_len;
    bool ours; /* the key is one of control.keys */
};

static void take_part(
    struct links *p, struct zap_request *r, uint32_t part, bool *curve)
{
    const void *bytes = zmq_msg_data(&p->scrap);
    size_t len = zmq_msg_size(&p->scrap);

    if (part == 1 && len <= sizeof(r->id)) {
        memcpy(r->id, bytes, len);
        r->id_len = len;
    } else if (part == 5) {
        *curve = len == 5 && memcmp(bytes, "CURVE", 5) == 0;
    } else if (part == 6) {
        r->ours = *curve && len == 32 && keys_have(p->opt.keys, bytes);
    }
}

/* Receives one request. False: there is none. */
static bool zap_receive(struct links *p, struct zap_request *r)
{
    bool curve = false, more = true;
    uint32_t parts = 0;

    memset(r, 0, sizeof(*r));
    while (more) {
        if (zmq_msg_recv(&p->scrap, p->zap, ZMQ_DONTWAIT) < 0)
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
        r->ours ? "" : "not a key of the fleet", "", ""};

    (void)zmq_send(p->zap, "1.0", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq_send(p->zap, r->id, r->id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        (void)zmq_send(p->zap, words[i], strlen(words[i]),
            (i + 1 < ARRAY_LEN(words) ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT);
}

void zap_serve(struct links *p)
{
    struct zap_request r;
    uint32_t served = 0;

    p->zap_news = false;
    while (served < ZAP_TURN && zap_receive(p, &r)) {
        zap_answer(p, &r);
        served++;
    }
    p->zap_news = served == ZAP_TURN;
}

/* refused handshakes */

/* Says why a handshake failed. NULL: for no reason of keys. */
static const char *why_of(const struct links *p, uint16_t event, uint32_t value)
{
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        return "key (it is not of this fleet)";
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
    p->failed = why_of(p, event, value);
    p->failed_sure = p->failed != NULL;
    if (!p->failed && event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
        p->stats.strangers++;
    else if (!p->failed && p->opt.keys)
        p->failed = "key (the other side ends the handshake: it may use none)";
}

void keys_ended(struct links *p, const struct conn *c)
{
    struct links_refusal *r = &p->refusal;
    const char *why = p->failed;

    p->failed = NULL;
    if (!why || (!p->failed_sure && c && c->ended)) /* we have ended it */
        return;
    p->stats.keys_refused++;
    r->why = why;
    r->at_ns = uv_hrtime();
    snprintf(r->from, sizeof(r->from), "an unknown address");
    if (c)
        conn_from(c, r->from, sizeof(r->from));
    log_rated(&refusals, "a control connection from %s is refused: %s", r->from,
        r->why);
}

void keys_dealer_event(
    struct links *p, uint32_t link, uint16_t event, uint32_t value)
{
    const char *why = why_of(p, event, value);
    const char *guess = p->opt.keys ? "key (the other side ends the handshake: "
                                      "none of control.keys is its own)"
                                    : "key (the other side ends the handshake: "
                                      "it may want one)";

    p->stats.keys_refused++;
    dial_refused(p, link, why ? why : guess, why != NULL);
}

const struct links_refusal *links_refusal(const struct links *p)
{
    return p->refusal.why ? &p->refusal : NULL;
}
