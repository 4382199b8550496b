/* tcp_in.c - see tcp_in.h. Bytes go through one buffer, except a body that is
 * fetched: recvmsg puts it into place, and a little more (READ_AHEAD, mostly
 * the next frame's header) into the buffer. So a large message costs one system
 * call and no copy of ours, and one call receives many small ones.
 *
 * States of a connection: not greeted; between frames (one begins at tail;
 * whole: it was requested in one piece); fetching (`left` bytes of a body go to
 * iov); dropping (`left` bytes of a body are discarded).
 *
 * If there are keys (tcp_safe.h) the greeting is a proof, and the buffer is
 * allocated after it. Encrypted bytes come by records, each of which is
 * decrypted into the same places.
 *
 * Lengths are size_t from where they are read, and a frame's are validated
 * before use: body_max bounds the memory of a body that is requested whole.
 *
 * Rejected: reading every message whole before it is delivered. It costs a copy
 * of every row, and memory for the largest message per connection. */
#include "io/data/tcp_in.h"

#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"
#include "io/data/carrier.h"
#include "wire/segment.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* The size at first; the buffer grows for whole messages. Beyond a message that
 * waits for its end, there is room for the next record. */
#define BUFFER     ((size_t)64 * 1024 + RECORD_MAX)
#define READ_AHEAD ((size_t)1024)
/* Limits of a turn, so that other connections get theirs: system calls, and
 * bytes after which the turn ends. */
#define READS_MAX  8
#define TURN_BYTES ((size_t)256 * 1024)

_Static_assert(BUFFER >= TCP_FRAME + DATA_HEADER_MAX + TCP_EAGER + RECORD_MAX,
    "an eager message and the next record fit the buffer");

static struct log_rate strangers =
    LOG_RATE("connections for data that break the protocol", LOG_WARN, 5);

struct tcp_in {
    struct tcp_in_conf conf;
    int fd;
    struct tcp_safe *safe;       /* until the proof */
    struct tcp_records *records; /* after the proof, if rows are encrypted */
    bool waits;                  /* see tcp_in_waits() */
    bool greeted, fetching, dropping, whole;
    bool keyed; /* key_id is that of its key */
    uint8_t key_id[TCP_KEY_ID];
    uint32_t who;    /* peer whose key was proven; NONE */
    uint32_t stream; /* after the proof: its stream number */
    bool large;      /* this or the last body is fetched, so the next one may
                        be */
    bool used; /* a grown buffer was needed since the last tcp_in_shrink() */
    uint64_t quiet_since_ns;
    uint64_t moved; /* bytes since quiet_since_ns */
    uint8_t *buffer;
    size_t cap, tail, head; /* buffer[tail..head) is not parsed yet */
    uint64_t left;          /* of the body in progress */
    void *cookie;
    uint32_t at, iovs;                  /* iov[at..iovs) still lack bytes */
    struct iovec iov[DATA_IOV_MAX + 1]; /* one more, for the buffer */
};

/* Allocates the buffer; false with a log line. */
static bool buffer_take(struct tcp_in *in)
{
    in->buffer = malloc(BUFFER);
    in->cap = BUFFER;
    if (!in->buffer)
        log_error("tcp: out of memory for a connection");
    return in->buffer != NULL;
}

/* Prepares for a proof, only after first bytes came: it costs memory. */
static bool proof_take(struct tcp_in *in)
{
    const struct tcp_in_conf *c = &in->conf;

    in->safe = tcp_safe_server(in->fd, c->keys, c->token, c->bits);
    return in->safe != NULL;
}

struct tcp_in *tcp_in_open(int fd, const struct tcp_in_conf *c)
{
    struct tcp_in *in = malloc(sizeof(*in)); /* most of it is never touched */

    if (in) {
        memset(in, 0, offsetof(struct tcp_in, iov));
        in->conf = *c;
        in->fd = fd;
        in->who = NONE;
    }
    if (in && (c->keys || buffer_take(in)))
        return in;
    free(in);
    close(fd);
    return NULL;
}

static void fetch_end(struct tcp_in *in, bool ok)
{
    CHECK(in->fetching, "a fetch ends twice");
    in->fetching = false;
    in->conf.calls->fetched(in->conf.calls->ud, in->cookie, ok);
}

void tcp_in_close(struct tcp_in **inp)
{
    struct tcp_in *in = *inp;

    *inp = NULL;
    close(in->fd);
    if (in->fetching)
        fetch_end(in, false);
    tcp_safe_free(&in->safe);
    tcp_records_free(&in->records);
    free(in->buffer);
    free(in);
}

bool tcp_in_greeted(const struct tcp_in *in)
{
    return in->greeted;
}

bool tcp_in_waits(const struct tcp_in *in)
{
    return in->waits;
}

bool tcp_in_named(const struct tcp_in *in)
{
    return in->keyed;
}

bool tcp_in_of(const struct tcp_in *in, const uint8_t *id)
{
    return in->keyed && memcmp(in->key_id, id, TCP_KEY_ID) == 0;
}

bool tcp_in_same_key(const struct tcp_in *a, const struct tcp_in *b)
{
    return a->keyed && tcp_in_of(b, a->key_id);
}

bool tcp_in_same(const struct tcp_in *a, const struct tcp_in *b)
{
    return a->greeted && b->greeted && a->stream == b->stream &&
           tcp_in_same_key(a, b);
}

bool tcp_in_stalled(struct tcp_in *in, uint64_t now_ns, uint64_t limit_ns)
{
    bool middle = in->fetching || in->dropping || in->tail != in->head;

    if (!middle || in->moved >= TCP_LEAST(limit_ns) ||
        in->quiet_since_ns == 0) {
        in->quiet_since_ns = now_ns;
        in->moved = 0;
    }
    return now_ns - in->quiet_since_ns >= limit_ns;
}

/* places of a fetch */

/* Advances the fetch by n bytes that are in place. */
static void fill(struct tcp_in *in, uint64_t n)
{
    CHECK(n <= in->left, "%zu bytes of a body that lacks %zu", (size_t)n,
        (size_t)in->left);
    in->left -= n;
    in->at = (uint32_t)(iov_skip(&in->iov[in->at], (size_t)n) - in->iov);
    CHECK(in->at <= in->iovs, "piece %u of %u", in->at, in->iovs);
}

/* Copies the buffer's part of the body. False: its place is gone. */
static bool from_buffer(struct tcp_in *in)
{
    size_t have = in->head - in->tail;
    size_t take = in->left < have ? (size_t)in->left : have;

    if (in->fetching &&
        !guard_scatter(&in->iov[in->at], in->buffer + in->tail, take))
        return false;
    in->tail += take;
    if (in->fetching)
        fill(in, take);
    else
        in->left -= take;
    return true;
}

/* Continues a body. False: the connection must end, because the message's place
 * is gone (EFAULT from the kernel). */
static bool body_turn(struct tcp_in *in)
{
    if (!from_buffer(in))
        return false;
    if (in->left > 0)
        return true;
    if (in->fetching)
        fetch_end(in, true);
    in->dropping = false;
    return true;
}

void tcp_in_whole(struct tcp_in *in)
{
    CHECK(!in->fetching && !in->dropping, "asked for outside of arrived()");
    in->whole = true;
}

enum err tcp_in_fetch(struct tcp_in *in, const struct iovec *iov, uint32_t iovs,
    uint64_t len, void *cookie)
{
    uint64_t bytes = 0;

    CHECK(iovs <= DATA_IOV_MAX && !in->fetching, "%u pieces", iovs);
    in->at = in->iovs = 0;
    for (uint32_t i = 0; i < iovs; i++) {
        bytes += iov[i].iov_len;
        if (iov[i].iov_len > 0)
            in->iov[in->iovs++] = iov[i];
    }
    if (bytes != len)
        return ERR_MALFORMED;
    in->cookie = cookie;
    in->left = len;
    in->fetching = true;
    return OK;
}

/* frames */

static bool greeting(struct tcp_in *in, bool *over)
{
    if (in->head - in->tail < TCP_HELLO)
        return false;
    if (memcmp(in->buffer + in->tail, TCP_MAGIC, 4) != 0 ||
        memcmp(in->buffer + in->tail + 4, in->conf.token, TCP_TOKEN) != 0) {
        log_rated(&strangers, "tcp: a connection with a wrong greeting");
        in->conf.counts->strangers++;
        *over = true;
        return false;
    }
    in->tail += TCP_HELLO;
    in->greeted = true;
    return true;
}

static bool arrived(
    struct tcp_in *in, struct span header, const uint8_t *data, size_t len)
{
    struct data_in m = {.header = header,
        .data = data,
        .len = len,
        .handle = data ? NULL : in,
        .who = in->who};

    return carrier_arrived(in->conf.d, &m);
}

bool tcp_in_grown(const struct tcp_in *in)
{
    return in->cap > BUFFER;
}

void tcp_in_shrink(struct tcp_in *in)
{
    bool used = in->used;
    uint8_t *less;

    in->used = false;
    if (!tcp_in_grown(in) || used || in->tail != in->head)
        return;
    less = malloc(BUFFER);
    if (!less)
        return;
    free(in->buffer);
    in->buffer = less;
    in->cap = BUFFER;
    in->tail = in->head = 0;
}

/* Grows the buffer to `need` bytes. Without memory the connection must end: the
 * sender notices and connects again. */
static bool make_whole(struct tcp_in *in, size_t need)
{
    uint8_t *more;

    in->used |= need > BUFFER;

    if (need <= in->cap)
        return true;
    more = realloc(in->buffer, need);
    if (!more) {
        log_error("tcp: no memory for a message of %zu bytes", need);
        return false;
    }
    in->buffer = more;
    in->cap = need;
    return true;
}

/* Delivers a message whose body is not all here yet. */
static void deliver_large(
    struct tcp_in *in, struct span header, size_t len, bool *over)
{
    bool kept = arrived(in, header, NULL, len);

    CHECK(kept == (in->fetching || in->whole), "a message of %zu bytes was %s",
        len, kept ? "kept and not fetched" : "fetched and not kept");
    if (in->whole) { /* the frame is parsed again */
        in->large = false;
        *over = !make_whole(in, TCP_FRAME + header.len + len + RECORD_MAX);
        return;
    }
    in->tail += TCP_FRAME + header.len;
    in->dropping = !in->fetching;
    in->left = len;
}

/* True if a frame may have these lengths. */
static bool lengths_good(const struct tcp_in *in, size_t header, size_t body)
{
    if (header > DATA_HEADER_MAX) {
        log_rated(&strangers,
            "tcp: a header of %zu bytes, at most %u are allowed", header,
            (unsigned)DATA_HEADER_MAX);
        return false;
    }
    if (body > in->conf.body_max) {
        log_rated(&strangers,
            "tcp: a message of %zu bytes, at most %u are allowed", body,
            in->conf.body_max);
        return false;
    }
    return true;
}

/* Delivers the next frame if it is complete, or complete except a body to
 * fetch. False: it is not. */
static bool frame(struct tcp_in *in, bool *over)
{
    size_t have = in->head - in->tail, need;
    struct reader r = reader_of(in->buffer + in->tail, have);
    size_t header = get_u32(&r), body = get_u32(&r);
    struct span h;

    if (r.failed)
        return false;
    if (!lengths_good(in, header, body)) {
        in->conf.counts->malformed++;
        *over = true;
        return false;
    }
    in->large = body > TCP_EAGER && !in->whole;
    need = TCP_FRAME + header + (in->large ? 0 : body);
    if (have < need)
        return false;
    h = span_of(in->buffer + in->tail + TCP_FRAME, (uint32_t)header);
    if (in->large) {
        deliver_large(in, h, body, over);
    } else {
        in->whole = false;
        in->tail += need;
        (void)arrived(in, h, h.p + h.len, body);
    }
    return true;
}

/* Handles the bytes in the buffer. Returns the number of frames and bodies. */
static unsigned parse(struct tcp_in *in, bool *over)
{
    unsigned count = 0;
    bool more = true;

    while (more && !*over) {
        if (in->fetching || in->dropping) {
            *over = !body_turn(in);
            more = !in->fetching && !in->dropping;
        } else {
            more = in->greeted ? frame(in, over) : greeting(in, over);
        }
        count += more;
    }
    if (count > 0)
        in->quiet_since_ns = 0;
    return count;
}

/* the socket */

/* Moves the buffer's bytes to its start. */
static void make_room(struct tcp_in *in)
{
    size_t have = in->head - in->tail;

    CHECK(in->tail <= in->head && in->head <= in->cap, "%zu to %zu of %zu",
        in->tail, in->head, in->cap);
    if (have > 0 && in->tail > 0)
        memmove(in->buffer, in->buffer + in->tail, have);
    in->tail = 0;
    in->head = have;
}

/* Returns the places of the next bytes: what a fetch still lacks, and last, at
 * iov[iovs], `room` bytes of the buffer. */
static struct iovec *places(struct tcp_in *in, size_t room)
{
    if (!in->fetching)
        in->at = in->iovs = 0;
    in->iov[in->iovs] = (struct iovec){in->buffer + in->head, room};
    return &in->iov[in->at];
}

static ssize_t receive(struct tcp_in *in, size_t *asked)
{
    size_t room = in->large ? READ_AHEAD : in->cap - in->head;
    struct msghdr m = {0};

    if (in->dropping) { /* MSG_TRUNC: TCP discards them without a copy */
        *asked = in->left < BUFFER ? (size_t)in->left : BUFFER;
        return recv(in->fd, in->buffer, *asked, MSG_TRUNC | MSG_DONTWAIT);
    }
    m.msg_iov = places(in, room);
    m.msg_iovlen = in->iovs - in->at + 1;
    *asked = (in->fetching ? (size_t)in->left : 0) + room;
    return recvmsg(in->fd, &m, MSG_DONTWAIT);
}

/* Handles n received bytes. Behind a body that is dropped, a record may have
 * bytes of the next message; receive() asks for the body's alone. */
static void take(struct tcp_in *in, uint64_t n)
{
    uint64_t body = n < in->left ? n : in->left;

    if (in->dropping && !in->records) {
        CHECK(n <= in->left, "%zu bytes are too many to drop", (size_t)n);
        in->left -= n;
        return;
    }
    if (in->fetching) {
        fill(in, body);
        n -= body;
    }
    in->head += (size_t)n;
}

/* Ends a connection that proves nothing, or names no key. */
static void unproven(struct tcp_in *in, const char *why, bool *over)
{
    bool named = in->waits || tcp_safe_id(in->safe);

    log_rated(&strangers, "tcp: a connection for data is closed: %s", why);
    in->conf.counts->unproven += named;
    in->conf.counts->strangers += !named;
    *over = true;
}

/* Starts to take messages, encrypted or not. The key is still in force: its
 * replacement would have closed the connection. */
static void proven(struct tcp_in *in, bool *over)
{
    const struct tcp_keys *keys = in->conf.keys;
    const struct tcp_key *key = tcp_keys_find(keys, in->key_id);

    CHECK(in->keyed && key, "a proof by a key that is not in force");
    in->who = (uint32_t)(key - keys->of);
    in->stream = tcp_safe_stream(in->safe);
    if (in->stream >= in->conf.streams) {
        log_rated(&strangers,
            "tcp: connection %u of a peer that may have %u (from "
            "transfer.streams) is refused",
            in->stream, in->conf.streams);
        in->conf.counts->refused++;
        *over = true;
        return;
    }
    in->records = tcp_safe_end(&in->safe);
    in->greeted = true;
    *over = !buffer_take(in);
}

/* Continues the proof. A client whose key is not known must send nothing until
 * it is answered; if it does, its proof fails. */
static void prove(struct tcp_in *in, bool *over)
{
    const uint8_t *id;
    enum tcp_proof p;

    if (in->waits) {
        unproven(in, "its key is not in force", over);
        return;
    }
    p = tcp_safe_prove(in->safe);
    id = tcp_safe_id(in->safe);
    in->keyed = id != NULL;
    if (id)
        memcpy(in->key_id, id, TCP_KEY_ID);
    switch (p) {
    case PROOF_WAITS:
        break;
    case PROOF_DONE:
        proven(in, over);
        break;
    case PROOF_UNKNOWN:
        in->waits = true;
        break;
    case PROOF_FAILED:
        unproven(in, tcp_safe_why(in->safe), over);
        break;
    }
}

void tcp_in_again(struct tcp_in *in, bool *over)
{
    CHECK(in->waits && !in->greeted, "a connection that waits for no key");
    in->waits = false;
    prove(in, over);
}

/* Does what tcp_in_turn() does for an encrypted connection: reads the socket
 * once and opens all records. */
static unsigned turn_sealed(struct tcp_in *in, bool *over)
{
    ssize_t n = tcp_records_read(in->records, in->fd);
    unsigned count = 0;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    *over = n <= 0;
    in->moved += n > 0 ? (uint64_t)n : 0;
    while (!*over) {
        make_room(in);
        CHECK(in->cap - in->head >= RECORD_MAX, "no room for a record");
        n = tcp_records_open(in->records, places(in, in->cap - in->head));
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0 && errno != EFAULT) {
            log_rated(
                &strangers, "tcp: a connection with a record of others ends");
            in->conf.counts->malformed++;
        }
        *over = n <= 0;
        if (n > 0) {
            take(in, (uint64_t)n);
            count += 1 + parse(in, over);
        }
    }
    return count + *over;
}

unsigned tcp_in_turn(struct tcp_in *in, bool *over)
{
    unsigned count = 0;
    size_t bytes = 0;

    if (in->conf.keys && !in->greeted) {
        if (in->safe || proof_take(in))
            prove(in, over);
        else
            *over = true;
    }
    if (in->safe || *over)
        return 1;
    if (in->records)
        return turn_sealed(in, over);
    for (unsigned i = 0; i < READS_MAX && bytes < TURN_BYTES && !*over; i++) {
        size_t asked;
        ssize_t n;

        make_room(in);
        n = receive(in, &asked);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n <= 0) {
            *over = true;
            break;
        }
        in->moved += (size_t)n;
        bytes += (size_t)n;
        take(in, (uint64_t)n);
        count += 1 + parse(in, over);
        if ((size_t)n < asked)
            break; /* the socket is empty */
    }
    return count + *over;
}
