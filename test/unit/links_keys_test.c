/* links_keys_test.c - links under CURVE over loopback, both ends in one
 * process: which key of several is used, what is refused, and how a refusal is
 * reported. */
#include "io/peer.h"
#include "test/t.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <zmq.h>

struct side {
    struct links *links;
    uint32_t up, down, messages, refused;
    const char *why;
    char owner[64];              /* whose key the last message's link has */
    struct keys keys, others[4]; /* others: after a reload */
};

/* If set, ZMQ_USE_FD is refused, as an older libzmq does. */
static bool old_libzmq;

int zmq_setsockopt(void *zmq, int option, const void *value, size_t len)
{
    static int (*real)(void *, int, const void *, size_t);

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "zmq_setsockopt");
    if (!old_libzmq || option != ZMQ_USE_FD)
        return real(zmq, option, value, len);
    errno = EINVAL;
    return -1;
}

TESTS_AT_ONCE(8);

static uv_loop_t loop;
static struct side a, b; /* a binds, b connects */
static char address[128];
static struct keys pool; /* keys, of which each side has some */

static void on_event(void *ud, struct event *ev)
{
    struct side *s = ud;
    const struct identity *who;

    s->up += ev->type == EV_LINK_UP;
    s->down += ev->type == EV_LINK_DOWN;
    if (ev->type == EV_PEER) {
        who = links_owner(s->links, ev->link);
        s->messages++;
        snprintf(s->owner, sizeof(s->owner), "%s", who ? who->name : "any");
    }
    if (ev->type == EV_LINK_REFUSED && ev->trouble == TROUBLE_KEY) {
        s->refused++;
        s->why = ev->text;
    }
}

static bool on_full(void *ud)
{
    return false;
}

/* Fills k with the keys of these numbers ("20": keys 2 and 0). NULL if there
 * are none. */
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

static void open_with(
    struct side *s, const char *listen, const struct keys *keys)
{
    struct links_opt opt = {listen, 4, 1000, 5, 60 * NS_PER_S, 1 << 20, keys};
    struct links_calls calls = {s, on_event, on_full, NULL};

    T_OK(links_new(&s->links, &loop, &opt, &calls));
}

static void open_side(struct side *s, const char *listen, const char *keys)
{
    open_with(s, listen, some(&s->keys, keys));
}

static void start(const char *here, const char *there)
{
    T_TRUE(uv_loop_init(&loop) == 0);
    open_side(&a, "tcp://127.0.0.1:*", here);
    links_endpoint(a.links, address, sizeof(address));
    open_side(&b, NULL, there);
    T_OK(links_connect(b.links, 1, span_str(address), span_str("")));
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
    T_CHECK(t_wait(reached, count, T_WAIT_MS), "up %u, refused %u: %s", b.up,
        b.refused, b.why ? b.why : "");
}

static void say_hello(void)
{
    uint8_t frame[256];
    struct writer w = writer_of(frame, sizeof(frame));
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = 9};

    T_TRUE(peer_put(&w, &m));
    links_send(b.links, 1, span_of(w.p, w.len), false);
}

/* Sends a HELLO, with which the listener makes the link. */
static void greet(void)
{
    wait_for(&b.up);
    say_hello();
    wait_for(&a.messages);
}

static void talk(void)
{
    greet();
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
    /* the connector has moved key 1 to the front, the listener not yet */
    start("01", "10");
    talk();
}

/* Checks that b is refused with this reason, after some seconds: for a moment
 * an encoder that restarts looks the same. */
static void guessed(const char *why)
{
    uint64_t from_ns = uv_hrtime();

    wait_for(&b.refused);
    T_TRUE(uv_hrtime() - from_ns >= 4 * NS_PER_S);
    T_TRUE(links_stats(b.links)->keys_refused >= 3 * b.keys.count);
    refused(why);
}

TEST(another_key)
{
    start("0", "1");
    guessed("key (the other side ends the handshake");
}

/* A key that is accepted, but does not serve, does not connect. */
TEST(no_key_is_the_first)
{
    start("01", "123");
    guessed("key (the other side ends the handshake");
}

TEST(none_there)
{
    start("0", "");
    refused("key (the other side");
}

TEST_AROUND(none_here, start("", "0"), stop())
{
    wait_for(&b.refused);
    T_TRUE(strstr(b.why, "key (the other side"));
    T_EQ_U64(b.up + a.up, 0);
}

/* a recorded handshake */

enum { GREETING = 64, HELLO = 202, WELCOME = 170 };

static uint8_t recorded[GREETING + HELLO];

/* Fills *to with 127.0.0.1 and the port at the end of an address. */
static void port_of(const char *text, struct sockaddr_in *to)
{
    *to = (struct sockaddr_in){.sin_family = AF_INET};
    to->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to->sin_port = htons((uint16_t)atoi(strrchr(text, ':') + 1));
}

struct bytes {
    int fd;
    uint8_t *to;
    size_t had, wanted;
    bool ended;
};

static bool came(void *ud)
{
    static const uint32_t never;
    struct bytes *x = ud;
    ssize_t n;

    (void)reached((void *)&never);
    n = recv(x->fd, x->to + x->had, x->wanted - x->had, MSG_DONTWAIT);
    x->ended |= n == 0 || (n < 0 && errno != EAGAIN);
    x->had += n > 0 ? (size_t)n : 0;
    return x->ended || x->had == x->wanted;
}

/* Reads what the other end sends while both sides run. False if it has
 * ended. */
static bool heard(int fd, uint8_t *to, size_t wanted)
{
    struct bytes x = {fd, to, 0, wanted, false};

    T_WAIT(came, &x);
    return !x.ended;
}

/* Has side b connect to a listener of ours, which records the first bytes. */
static void record(void)
{
    uint8_t hi[GREETING] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1};
    int fd = socket(AF_INET, SOCK_STREAM, 0), to = -1;
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof(at);
    char text[64];

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    T_TRUE(bind(fd, (struct sockaddr *)&at, len) == 0 && listen(fd, 9) == 0);
    T_TRUE(getsockname(fd, (struct sockaddr *)&at, &len) == 0);
    snprintf(text, sizeof(text), "tcp://127.0.0.1:%u", ntohs(at.sin_port));
    T_OK(links_connect(b.links, 1, span_str(text), span_str("")));
    to = accept(fd, NULL, NULL);
    memcpy(hi + 12, "CURVE", 5);
    hi[32] = 1; /* as a server */
    T_TRUE(send(to, hi, sizeof(hi), 0) == GREETING);
    T_TRUE(heard(to, recorded, sizeof(recorded)));
    T_TRUE(memcmp(recorded + GREETING, "\4\310\5HELLO", 8) == 0);
    links_disconnect(b.links, 1);
    close(to);
    close(fd);
}

#define FLOOD 128 /* more than a has places for, where descriptors are few */

/* Sends the record to a on a new connection, and reads the answer. The
 * connection that is FLOOD older has been ended by a, and is closed. */
static void replay(const struct sockaddr_in *to)
{
    static int made[FLOOD];
    static uint32_t n;
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    uint8_t back[GREETING + WELCOME];

    T_CHECK(connect(fd, (const struct sockaddr *)to, sizeof(*to)) == 0,
        "descriptor %d: %s", fd, strerror(errno));
    T_TRUE(setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof(one)) == 0);
    T_TRUE(send(fd, recorded, sizeof(recorded), 0) == sizeof(recorded));
    T_TRUE(heard(fd, back, sizeof(back)));
    if (n >= FLOOD)
        close(made[n % FLOOD]);
    made[n++ % FLOOD] = fd;
}

/* Opens both sides, a with few places for connections, at *to. */
static void start_small(struct sockaddr_in *to, const char *there)
{
    struct rlimit few;

    T_TRUE(getrlimit(RLIMIT_NOFILE, &few) == 0);
    few.rlim_cur = 512;
    T_TRUE(setrlimit(RLIMIT_NOFILE, &few) == 0);
    T_TRUE(uv_loop_init(&loop) == 0);
    open_side(&a, "tcp://127.0.0.1:*", "0");
    links_endpoint(a.links, address, sizeof(address));
    open_side(&b, NULL, there);
    port_of(address, to);
}

/* True if a peer that sends its HELLO behind a flood of others is answered.
 * Fails if it is ended before libzmq would end a slow handshake, after 3 s. */
static bool answered_in_a_flood(const struct sockaddr_in *to)
{
    uint64_t begun = t_now_ns(), out = links_stats(a.links)->crowded_out;
    uint8_t back[GREETING + WELCOME];
    int peer = socket(AF_INET, SOCK_STREAM, 0);
    bool answered;

    T_TRUE(connect(peer, (const struct sockaddr *)to, sizeof(*to)) == 0);
    while (links_stats(a.links)->crowded_out < out + 20)
        replay(to);
    answered = send(peer, recorded, sizeof(recorded), MSG_NOSIGNAL) ==
                   sizeof(recorded) &&
               heard(peer, back, sizeof(back));
    close(peer);
    T_TRUE(answered || t_now_ns() - begun > 5 * NS_PER_S / 2);
    return answered;
}

/* libzmq answers a recorded HELLO. A flood of these must leave time to a peer
 * that has sent nothing yet. */
TEST(a_recorded_hello_pushes_none_out)
{
    struct sockaddr_in to;

    start_small(&to, "0");
    record();
    while (links_stats(a.links)->crowded_out < 8)
        replay(&to);
    while (!answered_in_a_flood(&to))
        ;
    stop();
}

static bool crowded(void *ud)
{
    static const uint32_t never;

    (void)reached((void *)&never);
    return links_stats(a.links)->crowded_out >= *(const uint32_t *)ud;
}

/* What gave way to others is no refused key, and hides none. */
TEST(who_is_crowded_out_is_refused_for_no_key)
{
    static const uint32_t most = 8;
    struct sockaddr_in to;
    int crowd[FLOOD];

    start_small(&to, "1");
    for (uint32_t i = 0; i < FLOOD; i++) {
        crowd[i] = socket(AF_INET, SOCK_STREAM, 0);
        T_TRUE(connect(crowd[i], (struct sockaddr *)&to, sizeof(to)) == 0);
    }
    T_WAIT(crowded, (void *)&most);
    T_OK(links_connect(b.links, 1, span_str(address), span_str("")));
    wait_for((uint32_t *)&links_stats(a.links)->keys_refused);
    T_EQ_STR(
        links_refusal(a.links)->why, "key (the other side has another one)");
    for (uint32_t i = 0; i < FLOOD; i++)
        close(crowd[i]);
    stop();
}

/* other keys while links are up */

static enum err rekey(struct side *s, int again, const char *numbers)
{
    return links_rekey(s->links, some(&s->others[again], numbers));
}

/* Checks that both sides go on without interruption. */
static void stays(void)
{
    a.messages = 0;
    greet();
    T_EQ_U64(a.up, 1);
    T_EQ_U64(a.down + b.down, 0);
    stop();
}

/* Checks that the link is made again. */
static void comes_back(void)
{
    b.up = a.messages = 0;
    greet();
    T_EQ_U64(a.up, 2);
    T_EQ_U64(b.down, 1);
    T_EQ_U64(b.refused, 0);
    stop();
}

/* RULES 9.7 */
TEST(a_key_that_is_added_changes_no_link)
{
    start("0", "0");
    greet();
    T_OK(rekey(&a, 0, "01"));
    T_OK(rekey(&b, 0, "01"));
    stays();
}

TEST(a_connector_keeps_a_key_that_has_moved)
{
    start("01", "01");
    greet();
    T_OK(rekey(&b, 0, "210"));
    T_OK(rekey(&b, 1, "01")); /* its place of before has no key now */
    stays();
}

/* RULES 9.7 */
TEST(another_first_key_makes_links_again)
{
    start("01", "01");
    greet();
    T_OK(rekey(&a, 0, "10"));
    T_EQ_U64(a.down, 1);
    comes_back();
}

TEST(a_connector_keeps_the_key_that_it_has_found)
{
    start("10", "01");
    greet();
    T_OK(rekey(&b, 0, "1"));
    stays();
}

TEST(a_connector_whose_key_is_taken_out)
{
    start("01", "0");
    greet();
    T_OK(rekey(&b, 0, "1"));
    T_EQ_U64(b.down, 1);
    T_OK(rekey(&a, 0, "1"));
    comes_back();
}

/* RULES 9.7 */
TEST(a_listener_without_the_key_lets_it_in_no_more)
{
    start("0", "0");
    greet();
    T_OK(rekey(&a, 0, "1"));
    a.up = b.up = 0;
    refused("key");
}

/* The sockets of earlier changes are still closing. */
/* RULES 9.7 */
TEST(keys_that_change_too_often_change_nothing)
{
    uint32_t good = 0;

    start("01", "01");
    greet();
    while (good < 4 && rekey(&a, (int)good, good % 2 ? "01" : "10") == OK)
        good++;
    T_CHECK(good == 2, "%u times", good);
    b.up = a.messages = 0;
    greet();
    T_OK(rekey(&a, 3, "10"));
    b.up = a.messages = 0;
    greet();
    stop();
}

static uint32_t descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    uint32_t n = 0;

    T_TRUE(d != NULL);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static bool as_many(void *ud)
{
    (void)reached(&b.refused);
    return descriptors() == *(uint32_t *)ud;
}

/* RULES 9.7 */
TEST(a_listener_that_cannot_be_made_again_goes_on)
{
    uint32_t before;

    start("01", "01");
    greet();
    before = descriptors();
    old_libzmq = true;
    for (int i = 0; i < 3; i++) {
        T_ERR(rekey(&a, i, "10"), ERR_NO_BLOCKS);
        T_WAIT(as_many, &before);
    }
    old_libzmq = false;
    stays();
}

/* RULES 9.7 */
TEST(a_listener_that_is_not_made_again_keeps_its_keys)
{
    start("0", "0");
    greet();
    old_libzmq = true;
    T_ERR(rekey(&a, 0, "1"), ERR_NO_BLOCKS);
    old_libzmq = false;
    links_disconnect(b.links, 1);
    b.up = a.messages = 0;
    T_OK(links_connect(b.links, 1, span_str(address), span_str("")));
    greet();
    stop();
}

/* A program that is no daemon of ours may have a key other than the listener's
 * first. */
/* RULES 9.7 */
TEST(a_listener_ends_links_under_a_second_key_that_is_gone)
{
    uint8_t frame[256];
    struct writer w = writer_of(frame, sizeof(frame));
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = 9};
    void *ctx = zmq_ctx_new(), *s = zmq_socket(ctx, ZMQ_DEALER);
    const struct key_pair *own, *there;
    int none = 0;

    start("01", "2");
    there = &pool.pairs[0];
    own = &pool.pairs[1];
    zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof(none));
    zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, there->public, KEY_TEXT + 1);
    zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, own->public, KEY_TEXT + 1);
    zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, own->secret, KEY_TEXT + 1);
    T_TRUE(zmq_connect(s, address) == 0 && peer_put(&w, &m));
    T_TRUE(zmq_send(s, w.p, w.len, 0) == (int)w.len);
    wait_for(&a.messages);
    T_OK(rekey(&a, 0, "0"));
    T_EQ_U64(a.down, 1);
    zmq_close(s);
    zmq_ctx_term(ctx);
    stop();
}

/* The key has another number there. */
/* RULES 9.7 */
TEST(a_connector_finds_its_key_where_it_has_moved_to)
{
    start("10", "01");
    greet();
    T_OK(rekey(&b, 0, "1"));
    b.refused = 0;
    T_OK(rekey(&a, 0, "0"));
    wait_for(&b.refused);
    T_OK(rekey(&a, 1, "1"));
    b.up = a.messages = 0;
    greet();
    stop();
}

/* control.identities: a is e, whose key is 0, b is l, whose key is 1 */

/* Makes a side's keys: its own, and lines like "e0 l1". */
static const struct keys *known(struct keys *k, const char *own, const char *as)
{
    struct key_line *to;

    (void)some(k, own);
    free(k->lines);
    k->lines = calloc(strlen(as) / 3 + 1, sizeof(*k->lines));
    for (k->lines_count = 0; *as; as += as[2] ? 3 : 2) {
        const struct key_pair *p = &pool.pairs[as[1] - '0'];

        to = &k->lines[k->lines_count++];
        to->who.name[0] = as[0];
        to->who.role = as[0] < 'l' ? ROLE_ENCODED : ROLE_LANGD;
        memcpy(to->public, p->public, sizeof(to->public));
        memcpy(to->public_bytes, p->public_bytes, sizeof(to->public_bytes));
    }
    return k;
}

static void start_known(const char *here, const char *there, const char *name)
{
    T_TRUE(uv_loop_init(&loop) == 0);
    open_with(&a, "tcp://127.0.0.1:*", known(&a.keys, "0", here));
    links_endpoint(a.links, address, sizeof(address));
    open_with(&b, NULL, known(&b.keys, "1", there));
    T_OK(links_connect(b.links, 1, span_str(address), span_str(name)));
}

static void stop_known(void)
{
    stop();
    free(a.keys.lines);
    free(b.keys.lines);
    for (size_t i = 0; i < ARRAY_LEN(a.others); i++) {
        free(a.others[i].lines);
        free(b.others[i].lines);
    }
}

static void refused_known(const char *why)
{
    wait_for(&b.refused);
    T_CHECK(strstr(b.why, why), "%s, not %s", b.why, why);
    T_EQ_U64(b.up + a.up, 0);
    stop_known();
}

static enum err reknow(struct side *s, int again, const char *as)
{
    return links_rekey(
        s->links, known(&s->others[again], s == &a ? "0" : "1", as));
}

TEST(a_link_has_the_owner_of_its_key)
{
    start_known("e0 l1", "l1 e0", "e");
    greet();
    T_EQ_STR(a.owner, "l");
    T_EQ_STR(links_owner(b.links, 1)->name, "e");
    stop_known();
}

TEST(an_address_without_name_finds_the_key_of_its_encoder)
{
    start_known("e0 l1", "f2 l1 g3 e0", "");
    greet();
    T_EQ_STR(links_owner(b.links, 1)->name, "e");
    stop_known();
}

TEST(a_connector_that_has_no_line_is_refused)
{
    start_known("e0 m2", "l1 e0", "e");
    wait_for((uint32_t *)&links_stats(a.links)->keys_refused);
    T_TRUE(strstr(links_refusal(a.links)->why, "is not let in)"));
    T_CHECK(
        memcmp(links_refusal(a.links)->why + 5, pool.pairs[1].public, 8) == 0,
        "%s does not say which key", links_refusal(a.links)->why);
    refused_known("key (this daemon's is not let in there)");
}

TEST(another_encoder_in_its_place_is_refused)
{
    start_known("e0 l1", "l1 e0 f2", "f");
    refused_known("key (the other side ends the handshake: "
                  "control.identities has another key of it)");
}

/* m serves with the key of a langd. */
TEST(a_langd_that_serves_is_no_encoder)
{
    start_known("m0 l1", "l1 m0", "");
    refused_known("key (control.identities has none of such an encoder)");
}

TEST(lines_that_come_and_go_end_no_other_link)
{
    start_known("e0 l1 m2", "l1 e0 f2", "e");
    greet();
    T_OK(reknow(&a, 0, "f3 l1 e0"));
    T_OK(reknow(&b, 0, "e0 l1"));
    a.messages = 0;
    greet();
    T_EQ_STR(a.owner, "l");
    T_EQ_U64(a.up, 1);
    T_EQ_U64(a.down + b.down, 0);
    stop_known();
}

TEST(a_line_that_is_taken_out_ends_its_link)
{
    start_known("e0 l1 m2", "l1 e0", "e");
    greet();
    T_OK(reknow(&a, 0, "e0 m2"));
    T_EQ_U64(a.down, 1);
    a.up = b.up = 0;
    refused_known("is not let in there");
}

TEST(a_key_that_is_another_daemons_now_comes_as_that_one)
{
    start_known("e0 l1", "l1 e0", "e");
    greet();
    T_OK(reknow(&a, 0, "e0 n1"));
    T_EQ_U64(a.down, 1);
    b.up = a.messages = 0;
    greet();
    T_EQ_STR(a.owner, "n");
    stop_known();
}

TEST(an_encoder_whose_line_is_taken_out_is_let_go)
{
    start_known("e0 l1", "l1 e0 f2", "e");
    greet();
    T_OK(reknow(&b, 0, "l1 f2"));
    T_EQ_U64(b.down, 1);
    wait_for(&b.refused);
    T_TRUE(strstr(b.why, "key (control.identities has none"));
    b.up = a.messages = 0;
    T_OK(reknow(&b, 1, "l1 e0"));
    greet();
    stop_known();
}

/* The key is taken out of the file between the handshake and the HELLO. */
TEST(a_hello_under_a_key_that_is_gone_makes_no_link)
{
    start_known("e0 l1", "l1 e0", "e");
    wait_for(&b.up);
    T_OK(reknow(&a, 0, "e0 m2"));
    b.refused = 0;
    say_hello();
    b.up = a.up = 0;
    refused_known("is not let in there");
}

TEST(a_shared_key_and_identities_do_not_meet)
{
    T_TRUE(uv_loop_init(&loop) == 0);
    open_side(&a, "tcp://127.0.0.1:*", "0");
    links_endpoint(a.links, address, sizeof(address));
    open_with(&b, NULL, known(&b.keys, "1", "l1 e0"));
    T_OK(links_connect(b.links, 1, span_str(address), span_str("e")));
    refused_known("key (this daemon's is not let in there)");
}
