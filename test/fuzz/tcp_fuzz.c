/* tcp_fuzz.c - bytes that a connection for rows could bring, through tcp_in.c.
 *
 * Input: how much is written at a time, what is done with large messages, then
 * the bytes behind a good greeting. Holds: what arrives is what a plain reader
 * of the same bytes sees, in order and once, however the bytes were cut; a
 * fetch ends exactly once; a message that is longer than a daemon's
 * configuration allows never arrives. One thread. */
#include "base/check.h"
#include "wire/layout.h"
#include "wire/segment.h"
#include "io/data/carrier.h"
#include "io/data/tcp_in.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* The limit of a daemon that learns a pool's layout later. */
#define BODY_MAX ROW_BYTES_MAX

struct seen {
    const uint8_t *p; /* all bytes behind the greeting */
    size_t len, at;   /* the next frame begins at `at` */
    uint8_t choice;   /* what to do with each large message in turn */
    struct tcp_in *in;
    uint8_t *into; /* a fetch is in progress */
    uint32_t into_len;
    const uint8_t *wanted;
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool fetch(struct seen *s, const struct data_in *in)
{
    struct iovec iov[3];
    size_t third = in->len / 3;

    s->into = malloc(in->len);
    s->into_len = (uint32_t)in->len;
    iov[0] = (struct iovec){s->into, third};
    iov[1] = (struct iovec){s->into + third, 0};
    iov[2] = (struct iovec){s->into + third, in->len - third};
    CHECK(tcp_in_fetch(in->handle, iov, 3, in->len, s) == OK, "%u bytes",
        s->into_len);
    return true;
}

static bool on_arrived(void *ud, struct data *d, const struct data_in *in)
{
    struct seen *s = ud;
    struct reader r = reader_of(s->p + s->at, s->len - s->at);
    uint32_t header = get_u32(&r), body = get_u32(&r);
    const uint8_t *h = get_bytes(&r, header);

    CHECK(!r.failed && header == in->header.len && body == in->len,
        "a frame of %u and %u bytes", in->header.len, (unsigned)in->len);
    CHECK(body <= BODY_MAX, "a body of %u bytes", body);
    CHECK(header == 0 || memcmp(h, in->header.p, header) == 0, "a header");
    if (in->handle && s->choice++ % 3 == 0) {
        tcp_in_whole(in->handle);
        return true;
    }
    s->wanted = s->p + s->at + TCP_FRAME + header;
    s->at += TCP_FRAME + (size_t)header + body;
    if (in->handle)
        return s->choice % 3 == 1 && fetch(s, in);
    CHECK(s->at <= s->len && (body == 0 || !memcmp(in->data, s->wanted, body)),
        "a body of %u bytes", body);
    return true;
}

static void on_fetched(void *ud, void *cookie, bool ok)
{
    struct seen *s = cookie;

    CHECK(ud == s && s->into, "a fetch ended twice");
    CHECK(!ok ||
              (s->at <= s->len && memcmp(s->into, s->wanted, s->into_len) == 0),
        "a fetch of %u bytes", s->into_len);
    free(s->into);
    s->into = NULL;
}

/* Writes p in pieces of `step` bytes, reading in between. */
static bool feed(
    struct tcp_in *in, int out, const uint8_t *p, size_t len, size_t step)
{
    bool over = false;

    while (len > 0 && !over) {
        size_t n = len < step ? len : step;
        ssize_t w = send(out, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (w > 0) {
            p += w;
            len -= (size_t)w;
        }
        tcp_in_turn(in, &over);
    }
    return over;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t token[TCP_TOKEN] = "0123456789abcdef";
    struct seen s = {.p = data + 2};
    struct data_calls calls = {
        .ud = &s, .arrived = on_arrived, .fetched = on_fetched};
    struct data_counts counts = {0};
    struct carrier carrier = {.name = "fuzz", .calls = calls};
    struct tcp_in_conf conf = {.d = (struct data *)(void *)&carrier,
        .counts = &counts,
        .calls = &calls,
        .token = token,
        .body_max = BODY_MAX};
    int fds[2];
    bool over;

    if (size < 2 || socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        return 0;
    s.len = size - 2;
    s.choice = data[1];
    s.in = tcp_in_open(fds[0], &conf);
    CHECK(s.in, "memory");
    over = feed(s.in, fds[1], (const uint8_t *)TCP_MAGIC, 4, 4) ||
           feed(s.in, fds[1], token, TCP_TOKEN, 5);
    CHECK(!over && tcp_in_greeted(s.in), "a greeting");
    over = feed(s.in, fds[1], s.p, s.len,
        (s.len < 2000 ? 1 : 50) + (size_t)data[0] * 97);
    close(fds[1]);
    for (unsigned i = 0; i < 100 && !over; i++)
        tcp_in_turn(s.in, &over);
    CHECK(over, "an end that is not heard");
    tcp_in_close(&s.in);
    CHECK(!s.into, "a fetch never ended");
    return 0;
}
