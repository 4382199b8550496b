/* hello.c - takes what another daemon says of itself: checks it as a whole,
 * then stores it in the peer, and passes the data addresses to the shards.
 * peers.c has the exchange of HELLOs. Owned by the loop's thread. */
#include "core/peers/peers.h"

#include "base/check.h"
#include "base/text.h"

/* Counts the addresses of a blob; NONE: it is not well-formed. */
static uint32_t addresses_count(struct span blob)
{
    struct reader r = reader_of(blob.p, blob.len);
    uint32_t n = 0;

    while (!r.failed && r.at < r.len) {
        struct span a = get_span(&r, 2, ADDRESS_MAX);

        if (a.len == 0)
            return NONE;
        n++;
    }
    return r.failed || n > 64 ? NONE : n;
}

/* Reads the pools of a HELLO, as many as are kept, into pools unless that is
 * NULL. Returns their number; NONE: not well-formed. */
static uint32_t read_pools(struct span blob, struct peer_pool *pools)
{
    struct reader r = reader_of(blob.p, blob.len);
    uint32_t n = 0;

    for (; !r.failed && r.at < r.len && n < CONF_POOLS_MAX; n++) {
        uint64_t hash = get_u64(&r);
        struct span name = get_span(&r, 2, 63);
        struct span text = get_span(&r, 2, LAYOUT_TEXT_MAX);

        if (!pools)
            continue;
        pools[n].hash = hash;
        text_copy(name, pools[n].name, sizeof(pools[n].name));
        text_copy(text, pools[n].text, sizeof(pools[n].text));
    }
    return r.failed ? NONE : n;
}

static enum err check_hello(const struct peer_hello *m, const char **text)
{
    if (m->version_min > WIRE_VERSION || m->version_max < WIRE_VERSION)
        return ERR_VERSION;
    *text = "a daemon's name has 1 to 63 bytes of UTF-8, no control characters";
    if (m->name.len == 0 || !text_is_clean(m->name))
        return ERR_MALFORMED;
    *text = "hello with bad data addresses";
    if (addresses_count(m->addresses) == NONE ||
        (m->addresses.len > 0 && m->carrier == CARRIER_AUTO))
        return ERR_MALFORMED;
    *text = "hello with a bad key for data";
    if (m->data_key.len > 0 && m->data_key.len != DATA_KEY_BYTES)
        return ERR_MALFORMED;
    *text = "segment_max is at least 1024";
    if (m->segment_max < 1024)
        return ERR_MALFORMED;
    *text = "hello with bad pools";
    if (read_pools(m->pools, NULL) == NONE)
        return ERR_MALFORMED;
    *text = "";
    return OK;
}

enum err peer_take_hello(struct peer *peer, const struct peer_hello *m,
    const struct key *boot, const char **text)
{
    enum err e = check_hello(m, text);
    uint32_t addresses;

    if (e != OK)
        return e;
    peer->pools_count = read_pools(m->pools, peer->pools);
    span_copy_str(m->name, peer->name, sizeof(peer->name));
    text_copy(m->advertise, peer->advertise, sizeof(peer->advertise));
    text_copy(m->software, peer->software, sizeof(peer->software));
    peer->segment_max = m->segment_max;
    addresses = addresses_count(m->addresses);
    if (addresses > 0) /* otherwise they follow later, or stay as they are */
        peer->addresses = addresses;
    peer->same_host = key_eq(&m->boot, boot);
    peer->hello_ns = peer->lost_ns = peer->l.away_ns = TIME_NEVER;
    return OK;
}

void peer_tell_shards(struct peers *p, struct out *out, struct peer *peer,
    const struct peer_hello *m)
{
    struct data_cmd cmd = {.type = PEER_OPEN, .peer = peer_index(p, peer)};
    struct span key =
        conf_secure(p->self.c->conf) ? m->data_key : span_of(NULL, 0);
    struct action *a;
    size_t at = out->bytes.len;

    if (m->addresses.len == 0)
        return;
    put_bytes(&out->bytes, m->addresses.p, m->addresses.len);
    if (key.len > 0)
        put_bytes(&out->bytes, key.p, key.len);
    CHECK(!out->bytes.failed, "no room for %u address bytes", m->addresses.len);
    a = out_action(out, ACT_PEER_DATA);
    a->index = cmd.peer;
    a->at = (uint32_t)at;
    a->len = m->addresses.len + key.len;
    a->word = peer->segment_max | (uint64_t)peer->carrier << 32 |
              (uint64_t)key.len << 40;
    out_data(out, &cmd);
}
