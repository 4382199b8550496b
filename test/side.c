/* side.c - see side.h. Every callback checks its arguments at once: the
 * content, that it is not called inside post(), and (by the counts) that
 * nothing is reported twice. The thread that owns the carrier owns the side.
 * Rejected: a log of callbacks compared at the end, which says less about
 * where. */
#include "test/side.h"

#include "test/t.h"

#include <signal.h>

/* Returns byte i of message id. */
static uint8_t byte_of(uint32_t id, size_t i)
{
    return (uint8_t)(id * 37 + i * 11 + (i >> 8) * 3 + (i >> 16));
}

void side_fill(uint8_t *p, size_t n, uint32_t id)
{
    for (size_t i = 0; i < n; i++)
        p[i] = byte_of(id, i);
}

static void verify(const uint8_t *p, size_t n, uint32_t id)
{
    for (size_t i = 0; i < n; i++)
        T_CHECK(p[i] == byte_of(id, i),
            "message %u of %zu: byte %zu is %u, "
            "not %u",
            id, n, i, p[i], byte_of(id, i));
}

/* Returns the cookie of message id, which is not NULL. */
static void *cookie_of(uint32_t id)
{
    return (void *)(uintptr_t)(id + 1);
}

static uint32_t id_of(void *cookie)
{
    return (uint32_t)(uintptr_t)cookie - 1;
}

static bool take_rendezvous(
    struct side *s, struct data *d, const struct data_in *in, uint32_t id)
{
    struct iovec iov[DATA_IOV_MAX];
    uint32_t n = s->fetch_pieces;
    size_t each = n ? in->len / n : 0;

    T_TRUE(in->data == NULL);
    if (n == 0)
        return false;
    s->into[id] = s->memory ? s->memory : malloc(in->len);
    s->into_len[id] = in->len;
    for (uint32_t i = 0; i < n; i++) {
        iov[i].iov_base = s->into[id] + i * each;
        iov[i].iov_len = i + 1 < n ? each : in->len - i * each;
    }
    T_OK(s->ops->fetch(d, in, iov, n, cookie_of(id)));
    return true;
}

static bool on_arrived(void *ud, struct data *d, const struct data_in *in)
{
    struct side *s = ud;
    uint32_t id, len;

    T_FALSE(s->posting);
    T_TRUE(in->header.len >= 8);
    memcpy(&id, in->header.p, 4);
    memcpy(&len, in->header.p + 4, 4);
    T_TRUE(id < SIDE_IDS);
    T_EQ_U64(in->len, len);
    if (s->whole && in->handle) {
        T_OK(s->ops->fetch(d, in, NULL, 0, NULL));
        return true;
    }
    for (uint32_t i = 8; i < in->header.len; i++)
        T_EQ_U64(in->header.p[i], (uint8_t)i);
    s->who[id] = in->who;
    s->arrived[id]++;
    s->arrived_count++;
    if (s->drop || s->drop_one) {
        s->drop_one = false;
        return false;
    }
    if (in->handle)
        return take_rendezvous(s, d, in, id);
    if (!s->any_bytes)
        verify(in->data, in->len, id);
    if (s->heard)
        s->heard(s, id);
    return true;
}

static void on_fetched(void *ud, void *cookie, bool ok)
{
    struct side *s = ud;
    uint32_t id = id_of(cookie);

    T_FALSE(s->posting);
    s->fetched_count++;
    s->fetched[id]++;
    s->failed_count += !ok;
    s->failed[id] = (uint8_t)(s->failed[id] + !ok);
    if (ok && !s->any_bytes)
        verify(s->into[id], s->into_len[id], id);
    if (s->into[id] != s->memory)
        free(s->into[id]);
    s->into[id] = NULL;
}

static void on_done(void *ud, void *cookie)
{
    struct side *s = ud;

    T_FALSE(s->posting);
    s->done[id_of(cookie)]++;
    s->done_count++;
}

static void on_broken(void *ud, uint32_t ep)
{
    struct side *s = ud;

    T_FALSE(s->posting);
    s->broken[ep]++;
    s->broken_count++;
}

static void on_connected(void *ud, uint32_t ep)
{
    struct side *s = ud;

    T_FALSE(s->posting);
    s->made_count++;
}

struct data_conf side_conf(void)
{
    return (struct data_conf){.tls = "tcp",
        .devices = "lo",
        .ports = "",
        .streams = 1,
        .segment_bytes = SIDE_SEGMENT,
        .message_max = SIDE_MESSAGE,
        .keepalive_ms = 1000,
        .stall_ms = SIDE_STALL_MS,
        .greeting_ms = SIDE_GREETING_MS,
        .endpoints_max = 32,
        .inbound_max = 32,
        .messages_max = SIDE_MESSAGES,
        .fetches_max = SIDE_MESSAGES};
}

void side_open_with(
    struct side *s, const struct data_ops *ops, const struct data_conf *c)
{
    struct data_calls calls = {.ud = s,
        .arrived = on_arrived,
        .fetched = on_fetched,
        .done = on_done,
        .broken = on_broken,
        .connected = on_connected};
    struct data_conf own = *c;

    signal(SIGPIPE, SIG_IGN); /* as the daemons set it */
    memset(s, 0, sizeof(*s));
    s->ops = ops;
    s->fetch_pieces = 3;
    own.counts = &s->counts;
    T_OK(ops->open(&s->d, &own, &calls));
}

static enum err streams_open(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    struct data_conf wide = *c;

    wide.streams = SIDE_STREAMS;
    wide.devices = "lo,lo";
    wide.inbound_max *= SIDE_STREAMS;
    return data_tcp.open(out, &wide, calls);
}

const struct data_ops *side_streams(void)
{
    static struct data_ops ops;

    ops = data_tcp;
    ops.open = streams_open;
    return &ops;
}

struct span side_key(bool encrypt)
{
    static __thread uint8_t key[2][SIDE_KEY];

    side_fill(key[encrypt] + 1, SIDE_KEY - 1, 5);
    key[encrypt][0] = encrypt;
    return span_of(key[encrypt], SIDE_KEY);
}

static enum err safe_open(struct data **out, const struct data_conf *c,
    const struct data_calls *calls, enum data_safe safe)
{
    struct data_conf own = *c;
    enum err e;

    own.safe = safe;
    own.keys_max = 1;
    own.rekey_bytes = MIB;
    e = safe == SAFE_ENCRYPTED ? streams_open(out, &own, calls)
                               : data_tcp.open(out, &own, calls);
    if (e == OK && own.inbound_max > 0)
        data_tcp.admit(*out, 0, side_key(safe == SAFE_ENCRYPTED));
    return e;
}

static enum err proved_open(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    return safe_open(out, c, calls, SAFE_PROVED);
}

static enum err encrypted_open(struct data **out, const struct data_conf *c,
    const struct data_calls *calls)
{
    return safe_open(out, c, calls, SAFE_ENCRYPTED);
}

static enum err proved_connect(
    struct data *d, uint32_t ep, struct span address, struct span key)
{
    return data_tcp.connect(
        d, ep, address, key.len > 0 ? key : side_key(false));
}

static enum err encrypted_connect(
    struct data *d, uint32_t ep, struct span address, struct span key)
{
    return data_tcp.connect(d, ep, address, key.len > 0 ? key : side_key(true));
}

const struct data_ops *side_proved(void)
{
    static struct data_ops ops;

    ops = data_tcp;
    ops.open = proved_open;
    ops.connect = proved_connect;
    return &ops;
}

const struct data_ops *side_encrypted(void)
{
    static struct data_ops ops;

    ops = data_tcp;
    ops.open = encrypted_open;
    ops.connect = encrypted_connect;
    return &ops;
}

void side_open(struct side *s, const struct data_ops *ops)
{
    struct data_conf c = side_conf();

    side_open_with(s, ops, &c);
}

void side_open_soon(struct side *s, const struct data_ops *ops)
{
    struct data_conf c = side_conf();

    c.greeting_ms = SIDE_SOON_MS;
    side_open_with(s, ops, &c);
}

void side_close(struct side *s)
{
    s->ops->close(&s->d);
    T_TRUE(s->d == NULL);
}

void side_close_both(struct side *first, struct side *second)
{
    side_close(first);
    side_close(second);
}

void side_end(struct side *s)
{
    if (s->d)
        side_close(s);
}

enum err side_post_iov(struct side *s, uint32_t ep, uint32_t id,
    const struct iovec *iov, uint32_t iovs, uint32_t header_len)
{
    uint8_t header[4096];
    uint32_t len = 0;
    enum err e;

    for (uint32_t i = 0; i < iovs; i++)
        len += (uint32_t)iov[i].iov_len;
    for (uint32_t i = 8; i < header_len; i++)
        header[i] = (uint8_t)i;
    memcpy(header, &id, 4);
    memcpy(header + 4, &len, 4);
    s->posting = true;
    e = s->ops->post(
        s->d, ep, span_of(header, header_len), iov, iovs, cookie_of(id));
    s->posting = false;
    memset(header, 0xff, sizeof(header));
    return e;
}

enum err side_post(struct side *s, uint32_t ep, uint32_t id, void *p, size_t n)
{
    struct iovec iov = {p, n};

    return side_post_iov(s, ep, id, &iov, 1, 48);
}

void side_send(struct side *s, uint32_t ep, uint32_t id, uint8_t *p, size_t n)
{
    side_fill(p, n, id);
    T_OK(side_post(s, ep, id, p, n));
}

const char *side_goes(const struct side *s, uint32_t ep)
{
    const char *text;

    T_EQ_U64(s->ops->state(s->d, ep, &text), TROUBLE_NONE);
    return text;
}

unsigned side_turn(struct side *a, struct side *b)
{
    unsigned n = a->d ? a->ops->progress(a->d) : 0;

    return n + (b && b->d ? b->ops->progress(b->d) : 0);
}

void side_until(
    struct side *a, struct side *b, const uint32_t *count, uint32_t wanted)
{
    uint64_t limit = t_end_ns(T_WAIT_MS);

    while (*count < wanted && t_now_ns() < limit)
        side_turn(a, b);
    T_EQ_U64(*count, wanted);
}

void side_settle(struct side *a, struct side *b)
{
    uint64_t limit = t_now_ns() + 20 * NS_PER_MS;

    for (uint32_t i = 0; i < 100 || t_now_ns() < limit; i++)
        side_turn(a, b);
}

void side_pair(struct side *a, struct side *b, const struct data_ops *ops)
{
    side_open(a, ops);
    side_open(b, ops);
    T_OK(ops->connect(a->d, 0, ops->address(b->d), NO_KEY));
}

uint32_t side_post_many(struct side *a, uint32_t ep, uint8_t *p, size_t n)
{
    uint32_t id = 0;

    while (id < SIDE_MESSAGES && side_post(a, ep, id, p, n) == OK)
        id++;
    return id;
}
