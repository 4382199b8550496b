/* links_keys_test.c - links under CURVE over loopback, both ends in one
 * process: which key of several is found, what is refused, and what is said of
 * it. */
#include "io/peer.h"
#include "test/t.h"

#include <stdio.h>
#include <string.h>
#include <zmq.h>

struct side {
    struct links *links;
    uint32_t up, messages, refused;
    const char *why;
    struct keys keys;
};

static uv_loop_t loop;
static struct side a, b; /* a binds, b connects */
static char address[128];
static struct keys pool; /* of which sides have some */

static void on_up(void *ud, uint32_t link)
{
    (void)link;
    ((struct side *)ud)->up++;
}

static void on_down(void *ud, uint32_t link)
{
    (void)ud, (void)link;
}

static void on_message(void *ud, uint32_t link, const struct peer_msg *m)
{
    (void)link, (void)m;
    ((struct side *)ud)->messages++;
}

static void on_bad(
    void *ud, uint32_t link, enum err err, const struct peer_msg *m)
{
    (void)ud, (void)link, (void)err, (void)m;
}

static bool on_full(void *ud)
{
    (void)ud;
    return false;
}

static void on_refused(void *ud, uint32_t link, const char *why)
{
    struct side *s = ud;

    (void)link;
    s->refused++;
    s->why = why;
}

/* Fills k with the keys of these numbers, two with "20". Empty: NULL. */
static const struct keys *some(struct keys *k, const char *numbers)
{
    for (uint32_t i = pool.count; i < CONF_KEYS_MAX; i++) {
        struct key_pair *p = &pool.pairs[pool.count++];

        T_EQ_I64(zmq_curve_keypair(p->public, p->secret), 0);
        T_TRUE(zmq_z85_decode(p->public_bytes, p->public));
    }
    for (; *numbers; numbers++)
        k->pairs[k->count++] = pool.pairs[*numbers - '0'];
    return k->count ? k : NULL;
}

static void open_side(struct side *s, const char *listen, const char *keys)
{
    struct links_opt opt = {listen, 4, 1000, 5, 60 * NS_PER_S, 1 << 20, NULL};
    struct links_calls calls = {
        s, on_up, on_down, on_message, on_bad, on_full, NULL, on_refused};

    opt.keys = some(&s->keys, keys);
    T_OK(links_new(&s->links, &loop, &opt, &calls));
}

static void start(const char *here, const char *there)
{
    T_TRUE(uv_loop_init(&loop) == 0);
    open_side(&a, "tcp://127.0.0.1:*", here);
    links_endpoint(a.links, address, sizeof(address));
    open_side(&b, NULL, there);
    T_OK(links_connect(b.links, 1, span_str(address)));
}

static void stop(void)
{
    links_stop(a.links);
    links_stop(b.links);
    uv_run(&loop, UV_RUN_DEFAULT);
    T_EQ_I64(uv_loop_close(&loop), 0);
    links_free(&a.links);
    links_free(&b.links);
}

static bool reached(void *ud)
{
    struct side *sides[] = {&a, &b};

    uv_run(&loop, UV_RUN_NOWAIT);
    for (int i = 0; i < 2; i++) {
        links_serve(sides[i]->links);
        links_flush(sides[i]->links);
    }
    return *(const uint32_t *)ud > 0;
}

static void wait_for(uint32_t *count)
{
    T_CHECK(t_wait(reached, count, 10000), "up %u, refused %u: %s", b.up,
        b.refused, b.why ? b.why : "");
}

static void talk(void)
{
    uint8_t frame[256];
    struct writer w = writer_of(frame, sizeof(frame));
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = 9};

    wait_for(&b.up);
    T_TRUE(peer_put(&w, &m));
    links_send(b.links, 1, span_of(w.p, w.len));
    wait_for(&a.messages);
    T_EQ_U64(a.up, 1);
    stop();
}

static void refused(const char *why)
{
    wait_for(&b.refused);
    T_CHECK(strstr(b.why, why), "%s, not %s", b.why, why);
    T_EQ_U64(b.up + a.up, 0);
    T_TRUE(links_stats(b.links)->keys_refused >= 2);
    wait_for((uint32_t *)&links_stats(a.links)->keys_refused);
    T_TRUE(links_refusal(a.links) && !links_refusal(b.links));
    T_TRUE(strstr(links_refusal(a.links)->why, "key ("));
    stop();
}

TEST(one_key)
{
    start("0", "0");
    talk();
}

TEST(the_listeners_first_key_is_found)
{
    start("3012", "0123");
    talk();
}

TEST(a_key_that_only_the_connector_has_left_behind)
{
    start("01", "10"); /* moved to the front there, not here yet */
    talk();
}

TEST(another_key)
{
    start("0", "1");
    refused("key (the other side ends the handshake");
}

/* A key that is accepted and does not serve is of no use alone. */
TEST(no_key_is_the_first)
{
    start("01", "123");
    refused("key (the other side ends the handshake");
}

TEST(none_there)
{
    start("0", "");
    refused("key (the other side");
}

TEST(none_here)
{
    start("", "0");
    wait_for(&b.refused);
    T_TRUE(strstr(b.why, "key (the other side"));
    T_EQ_U64(b.up + a.up, 0);
    stop();
}
