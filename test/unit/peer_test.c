/* peer_test.c - links over loopback: both ends in one process, and a peer
 * process that is killed. */
#include "io/peer/peer_impl.h"
#include "test/t.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <zmq.h>

#define LINKS 4

struct side {
    struct links *links;
    /* most: with this number of messages the brain is full */
    uint32_t up, down, messages, bad, next, most;
    uint32_t last_link;
    uint64_t last_epoch;
    enum err err;
    bool (*known)(void *ud, uint32_t link);
};

static struct links_opt options = {
    NULL, LINKS, 1000, 5, 60 * NS_PER_S, 1 << 20, NULL};
static uv_loop_t loop;
static const struct span any; /* of any encoder */
static struct side a, b;      /* a binds, b connects */
static char address[128];

/* HELLO may come again; it begins the count of messages anew */
static bool repeats;

static void on_message(struct side *s, const struct peer_msg *m)
{
    s->messages++;
    if (repeats && m->type == PEER_HELLO)
        s->next = 0;
    s->last_epoch = m->from_epoch;
    T_EQ_U64(m->seq, s->next);
    s->next++;
}

static void on_event(void *ud, struct event *ev)
{
    struct side *s = ud;

    s->up += ev->type == EV_LINK_UP;
    s->down += ev->type == EV_LINK_DOWN;
    s->bad += ev->type == EV_PEER_BAD;
    if (ev->type == EV_PEER_BAD)
        s->err = ev->err;
    else if (ev->type != EV_LINK_REFUSED)
        s->last_link = ev->link;
    if (ev->type == EV_PEER)
        on_message(s, ev->peer);
}

static bool on_full(void *ud)
{
    const struct side *s = ud;

    return s->messages >= s->most;
}

static void open_side(struct side *s, const char *listen)
{
    struct links_opt opt = options;
    struct links_calls calls = {s, on_event, on_full, s->known};

    opt.listen = listen;
    s->most = UINT32_MAX;
    T_OK(links_new(&s->links, &loop, &opt, &calls));
}

static void turn(struct side *s)
{
    if (!s->links)
        return;
    links_serve(s->links);
    links_flush(s->links);
}

static void pump(void)
{
    uv_run(&loop, UV_RUN_NOWAIT);
    turn(&a);
    turn(&b);
}

static void start(void)
{
    T_TRUE(uv_loop_init(&loop) == 0);
    open_side(&a, "tcp://127.0.0.1:*");
    links_endpoint(a.links, address, sizeof(address));
}

static void stop(void)
{
    links_stop(a.links);
    if (b.links)
        links_stop(b.links);
    uv_run(&loop, UV_RUN_DEFAULT);
    T_EQ_I64(uv_loop_close(&loop), 0);
    links_free(&a.links);
    links_free(&b.links);
}

static void stop_raw(void *ctx)
{
    zmq_ctx_term(ctx);
    stop();
}

struct until {
    const uint32_t *count;
    uint32_t wanted;
};

static bool reached(void *ud)
{
    struct until *u = ud;

    pump();
    return *u->count >= u->wanted;
}

static void wait_for(const uint32_t *count, uint32_t wanted)
{
    struct until u = {count, wanted};

    T_CHECK(t_wait(reached, &u, T_WAIT_MS), "%u, not %u", *count, wanted);
}

static void say_by(struct side *s, uint32_t link, uint32_t seq, bool coalesce)
{
    uint8_t frame[256];
    struct writer w = writer_of(frame, sizeof(frame));
    struct peer_msg m = {
        .type = seq ? PEER_ACK : PEER_HELLO, .seq = seq, .from_epoch = 9};

    T_TRUE(peer_put(&w, &m));
    links_send(s->links, link, span_of(w.p, w.len), coalesce);
}

static void say(struct side *s, uint32_t link, uint32_t seq)
{
    say_by(s, link, seq, false);
}

static void join(uint32_t link)
{
    T_OK(links_connect(b.links, link, span_str(address), any));
    wait_for(&b.up, 1);
}

static void start_two(void)
{
    start();
    open_side(&b, NULL);
}

static void start_joined(void)
{
    start_two();
    join(0);
}

static void start_met(void)
{
    start_joined();
    say(&b, 0, 0);
    wait_for(&a.messages, 1);
}

TEST(a_link_comes_up_at_both_ends_and_carries_frames)
{
    start_two();
    join(3);
    T_EQ_U64(b.last_link, 3);
    T_EQ_U64(a.up, 0); /* no message has been sent */
    say(&b, 3, 0);
    wait_for(&a.messages, 1);
    T_EQ_U64(a.up, 1);
    T_EQ_U64(a.last_link, 0);
    T_EQ_U64(a.last_epoch, 9);
    say(&a, 0, 0);
    wait_for(&b.messages, 1);
    T_EQ_U64(b.last_link, 3);
    stop();
}

TEST_AROUND(frames_of_one_turn_travel_together, start_joined(), stop())
{
    for (uint32_t i = 0; i < 1000; i++)
        say(&b, 0, i);
    wait_for(&a.messages, 1000);
    T_EQ_U64(links_stats(b.links)->packets_out, 1);
    T_EQ_U64(links_stats(b.links)->frames_out, 1000);
    T_EQ_U64(links_stats(a.links)->packets_in, 1);
}

/* Frames that may wait go with the next frame, or with the flush after the
 * next. */
TEST_AROUND(frames_that_may_wait_do, start_joined(), stop())
{
    say_by(&b, 0, 0, true);
    say(&b, 0, 1);
    T_FALSE(links_flush(b.links));
    wait_for(&a.messages, 2);
    T_EQ_U64(links_stats(b.links)->packets_out, 1);
    say_by(&b, 0, 2, true);
    T_TRUE(links_flush(b.links));
    T_EQ_U64(links_stats(b.links)->packets_out, 1);
    T_FALSE(links_flush(b.links));
    T_EQ_U64(links_stats(b.links)->packets_out, 2);
    wait_for(&a.messages, 3);
}

TEST(many_packets_come_in_order_and_a_turn_is_bounded)
{
    start_joined();
    for (uint32_t i = 0; i < 600; i++) {
        say(&b, 0, i);
        links_flush(b.links);
    }
    wait_for(&a.messages, 1);
    T_TRUE(a.messages < 600);
    wait_for(&a.messages, 600);
    stop();
}

/* RULES 3.5 */
TEST_AROUND(a_full_owner_gets_the_rest_of_a_packet_later, start_met(), stop())
{
    a.most = 10;
    for (uint32_t i = 1; i < 50; i++)
        say(&b, 0, i);
    wait_for(&a.messages, 10);
    a.most = 20;
    wait_for(&a.messages, 20);
    /* the messages that are left go with the link */
    links_disconnect(a.links, a.last_link);
    a.most = UINT32_MAX;
    turn(&a);
    T_EQ_U64(a.messages, 20);
}

TEST_AROUND(a_link_that_is_down_takes_nothing, start_two(), stop())
{
    T_OK(links_connect(b.links, 1, span_str("tcp://127.0.0.1:1"), any));
    say(&b, 1, 0);
    pump();
    T_EQ_U64(links_stats(b.links)->dropped_frames, 1);
    T_EQ_U64(b.up, 0);
}

TEST_AROUND(an_address_that_is_none_is_refused, start_two(), stop())
{
    T_ERR(links_connect(b.links, 0, span_str("127.0.0.1"), any), ERR_MALFORMED);
    join(0); /* the number is free again */
}

TEST_AROUND(disconnecting_is_seen_at_the_other_end, start_joined(), stop())
{
    say(&b, 0, 0);
    wait_for(&a.up, 1);
    links_disconnect(b.links, 0);
    wait_for(&a.down, 1);
    T_EQ_U64(b.down, 0);
    /* No peer is there. */
    say(&a, 0, 0);
    T_EQ_U64(links_stats(a.links)->dropped_frames, 1);
    /* And once more, at once, under the same number at both ends. */
    a.next = 0;
    T_OK(links_connect(b.links, 0, span_str(address), any));
    wait_for(&b.up, 2);
    say(&b, 0, 0);
    wait_for(&a.up, 2);
    T_EQ_U64(a.last_link, 0);
}

TEST(a_forgotten_link_of_the_router_is_ended_and_comes_back)
{
    start_met();
    links_disconnect(a.links, 0);
    wait_for(&b.up, 2);
    T_EQ_U64(b.down, 1);
    T_EQ_U64(a.down, 0);
    a.next = 0;
    say(&b, 0, 0);
    wait_for(&a.messages, 2);
    T_EQ_U64(a.up, 2);
    links_disconnect(b.links, 0);
    wait_for(&a.down, 1);
    stop();
}

TEST_AROUND(a_restarted_router_is_found_again, start_met(), stop())
{
    links_stop(a.links);
    for (int i = 0; i < 10; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    links_free(&a.links);
    wait_for(&b.down, 1);
    a.next = 0;
    open_side(&a, address);
    wait_for(&b.up, 2);
    say(&b, 0, 0);
    wait_for(&a.messages, 2);
}

/* A process that connects, sends one message, and waits to be killed. It runs
 * this program again, since a fork beside ZMQ's threads may find malloc's lock
 * taken. */
__attribute__((constructor)) static void be_peer(void)
{
    const char *to = getenv("PEER_TEST_SPEAKS_TO");
    uint8_t frame[256];
    struct writer w = writer_of(frame, sizeof(frame));
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = 7};
    void *s;

    if (!to)
        return;
    s = zmq_socket(zmq_ctx_new(), ZMQ_DEALER);
    if (zmq_connect(s, to) == 0 && peer_put(&w, &m))
        zmq_send(s, w.p, w.len, 0);
    for (;;)
        pause();
}

static pid_t peer_process(void)
{
    char name[] = "peer", *argv[] = {name, NULL};
    pid_t pid;

    setenv("PEER_TEST_SPEAKS_TO", address, 1);
    T_TRUE(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ) == 0);
    unsetenv("PEER_TEST_SPEAKS_TO");
    return pid;
}

/* Without a heartbeat. */
TEST(a_killed_process_is_noticed_at_once)
{
    uint64_t killed;
    pid_t pid;

    options.heartbeat_ms = T_WAIT_MS;
    start();
    pid = peer_process();
    wait_for(&a.up, 1);
    T_EQ_U64(a.last_epoch, 7);
    kill(pid, SIGKILL);
    killed = t_now_ns();
    wait_for(&a.down, 1);
    T_CHECK(t_now_ns() - killed < 5 * NS_PER_S, "%llu ms",
        (unsigned long long)((t_now_ns() - killed) / NS_PER_MS));
    waitpid(pid, NULL, 0);
    say(&a, 0, 0);
    T_EQ_U64(links_stats(a.links)->dropped_frames, 1);
    stop();
}

static bool dropped(void *ud)
{
    say(&a, 0, 0);
    links_flush(a.links);
    return links_stats(a.links)->dropped_frames > 0;
}

/* In the time before the link is known to be down: no route, and no frame
 * waits. */
TEST_AROUND(frames_for_a_lost_peer_are_dropped, start(), stop())
{
    pid_t pid = peer_process();

    wait_for(&a.up, 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    T_WAIT(dropped, NULL);
    T_EQ_U64(a.down, 0);
    wait_for(&a.down, 1);
}

/* Descriptor numbers are used again; links must not be mixed up. */
TEST_AROUND(many_processes_come_and_go, start(), stop())
{
    for (uint32_t i = 1; i <= 40; i++) {
        pid_t pid = peer_process();

        a.next = 0;
        wait_for(&a.up, i);
        wait_for(&a.messages, i);
        T_EQ_U64(a.down, i - 1);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        wait_for(&a.down, i);
    }
    T_EQ_U64(links_stats(a.links)->dropped_packets, 0);
}

/* True if the counter of links, ud, is not 0. */
static bool is_counted(void *ud)
{
    pump();
    return *(const uint64_t *)ud > 0;
}

TEST(more_daemons_than_links_are_not_heard_until_one_goes)
{
    pid_t pids[LINKS + 1];

    start();
    for (uint32_t i = 0; i < LINKS; i++) {
        a.next = 0;
        pids[i] = peer_process();
        wait_for(&a.messages, i + 1);
    }
    a.next = 0;
    open_side(&b, NULL);
    join(0);
    say(&b, 0, 0);
    T_WAIT(is_counted, (void *)&links_stats(a.links)->dropped_packets);
    T_EQ_U64(links_stats(a.links)->dropped_packets, 1);
    T_EQ_U64(a.messages, LINKS);
    kill(pids[2], SIGKILL);
    wait_for(&a.down, 1);
    T_EQ_U64(a.last_link, 2);
    say(&b, 0, 0);
    wait_for(&a.messages, LINKS + 1);
    T_EQ_U64(a.last_link, 2);
    for (uint32_t i = 0; i < LINKS; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    stop();
}

static void raw(void *s, const void *p, size_t n, int flags)
{
    T_EQ_I64(zmq_send(s, p, n, flags), (int64_t)n);
}

static void *dealer(void *ctx)
{
    void *s = zmq_socket(ctx, ZMQ_DEALER);
    int linger = 0;

    zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof(linger));
    return s;
}

static bool strangers(void *ud)
{
    pump();
    return links_stats(a.links)->strangers >= *(uint64_t *)ud;
}

static void raw_hello(void *s)
{
    uint8_t frame[256];
    struct writer w = writer_of(frame, sizeof(frame));
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = 7};

    T_TRUE(peer_put(&w, &m));
    raw(s, w.p, w.len, 0);
}

static bool has_come(void *ud)
{
    int events = 0;
    size_t n = sizeof(events);

    T_TRUE(zmq_getsockopt(ud, ZMQ_EVENTS, &events, &n) == 0);
    return events & ZMQ_POLLIN;
}

/* The monitor may report the end before the last message is read. */
TEST(what_a_lost_connection_said_is_not_heard_after_its_end)
{
    start_met();
    say(&a, a.last_link, 0);
    links_flush(a.links);
    T_WAIT(has_come, b.links->links[0].sock->zmq);
    link_down(b.links, 0);
    T_EQ_U64(b.down, 1);
    sock_ready(b.links->links[0].sock);
    links_serve(b.links);
    T_EQ_U64(b.messages, 0);
    T_EQ_U64(links_stats(b.links)->dropped_packets, 1);
    T_TRUE(!has_come(b.links->links[0].sock->zmq));
    stop();
}

/* Without a HELLO no link is made; a connection of another protocol is
 * ended. */
TEST(what_is_not_ours_is_ended)
{
    void *ctx = zmq_ctx_new(), *s = dealer(ctx), *named = dealer(ctx);
    uint64_t count = 1;

    start();
    zmq_setsockopt(named, ZMQ_ROUTING_ID, "somebody", 8);
    T_TRUE(zmq_connect(s, address) == 0 && zmq_connect(named, address) == 0);
    raw(s, "rubbish", 7, 0);
    T_WAIT(strangers, &count);
    T_EQ_U64(a.bad, 1);
    T_EQ_U64(a.err, ERR_MALFORMED);
    raw(named, "x", 1, 0);
    count = 2;
    T_WAIT(strangers, &count);
    raw(s, "two", 3, ZMQ_SNDMORE);
    raw(s, "parts", 5, 0);
    count = 3;
    T_WAIT(strangers, &count);
    T_EQ_U64(a.up, 0);
    zmq_close(s);
    zmq_close(named);
    stop_raw(ctx);
}

TEST(a_packet_that_is_too_large_ends_its_link)
{
    void *ctx = zmq_ctx_new(), *s = dealer(ctx);
    static uint8_t big[PEER_PACKET_MAX + 1];

    start();
    T_TRUE(zmq_connect(s, address) == 0);
    raw_hello(s);
    wait_for(&a.up, 1);
    raw(s, big, sizeof(big), 0);
    wait_for(&a.down, 1);
    zmq_close(s);
    stop_raw(ctx);
}

/* Repeats HELLO while the connection is up, as a brain does: the connection may
 * have been ended to make room for the crowd. */
static bool hello_heard(void *ud)
{
    uint64_t *said_ns = ud, now_ns = t_now_ns();

    pump();
    if (b.up > b.down && now_ns - *said_ns > 50 * NS_PER_MS) {
        say(&b, 0, 0);
        *said_ns = now_ns;
    }
    return a.messages > 0;
}

/* Repeats HELLO until it is answered: an answer may go to a connection that has
 * just ended. */
static bool hello_answered(void *ud)
{
    uint32_t before = a.messages;

    (void)hello_heard(ud);
    if (a.messages > before)
        say(&a, a.last_link, 0);
    return b.messages > 0;
}

/* More connections than places: the oldest of the silent ones are ended. */
TEST(a_crowd_that_says_nothing_makes_nobody_deaf)
{
    void *ctx = zmq_ctx_new(), *crowd[120];
    uint32_t crowd_len = sizeof(crowd) / sizeof(crowd[0]);
    uint64_t said_ns = 0;
    struct rlimit few = {600, 600};

    /* Strangers get an eighth of the descriptors: 75. */
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &few), 0);
    repeats = true;
    start();
    for (uint32_t i = 0; i < crowd_len; i++) {
        crowd[i] = dealer(ctx);
        T_TRUE(crowd[i] && zmq_connect(crowd[i], address) == 0);
    }
    open_side(&b, NULL);
    join(0);
    T_WAIT(hello_heard, &said_ns);
    T_EQ_U64(a.up, 1);
    say(&a, 0, 0);
    T_WAIT(hello_answered, &said_ns);
    for (uint32_t i = 0; i < crowd_len; i++)
        zmq_close(crowd[i]);
    stop_raw(ctx);
}

TEST(one_that_says_no_hello_is_ended_in_time)
{
    void *ctx = zmq_ctx_new(), *s = dealer(ctx);

    options.hello_ns = 3 * NS_PER_S; /* b's HELLO comes long before */
    start_met();
    T_TRUE(zmq_connect(s, address) == 0);
    T_WAIT(is_counted, (void *)&links_stats(a.links)->silent_ended);
    T_EQ_U64(a.down, 0);
    T_EQ_U64(b.down, 0);
    zmq_close(s);
    stop_raw(ctx);
}

/* A peer that sends PINGs and does not read. */
TEST(what_waits_to_be_sent_is_bounded)
{
    void *ctx = zmq_ctx_new(), *s = dealer(ctx);
    uint64_t packets = 0;

    start();
    zmq_setsockopt(s, ZMQ_RCVHWM, &(int){1}, sizeof(int));
    T_TRUE(zmq_connect(s, address) == 0);
    raw_hello(s);
    wait_for(&a.up, 1);
    for (; a.down == 0 && packets < 4000; packets++) {
        for (uint32_t i = 0; i < 1000; i++)
            say(&a, 0, 1);
        pump();
    }
    wait_for(&a.down, 1);
    T_EQ_U64(links_stats(a.links)->flooded, 1);
    zmq_close(s);
    stop_raw(ctx);
}

static bool first_is_known(void *ud, uint32_t link)
{
    return link == 0;
}

/* HELLOs that no brain accepted: the oldest of these links is ended, not a
 * known one. */
TEST(links_without_a_peer_give_way)
{
    void *ctx = zmq_ctx_new(), *s[2 * LINKS];

    a.known = first_is_known;
    start();
    for (uint32_t i = 0; i < 2 * LINKS; i++) {
        a.next = 0;
        s[i] = dealer(ctx);
        T_TRUE(zmq_connect(s[i], address) == 0);
        raw_hello(s[i]);
        wait_for(&a.messages, i + 1);
        T_EQ_U64(a.up, i + 1);
        T_EQ_U64(a.down, i < LINKS ? 0 : i + 1 - LINKS);
    }
    T_EQ_U64(links_stats(a.links)->crowded_out, LINKS);
    for (uint32_t i = 0; i < 2 * LINKS; i++)
        zmq_close(s[i]);
    stop_raw(ctx);
}

static void use_up_descriptors(struct rlimit *before)
{
    struct rlimit low;
    int fd = dup(0);

    T_TRUE(getrlimit(RLIMIT_NOFILE, before) == 0);
    low = *before;
    low.rlim_cur = (rlim_t)fd; /* no lower number is free */
    close(fd);
    T_TRUE(setrlimit(RLIMIT_NOFILE, &low) == 0);
}

TEST_AROUND(a_link_that_cannot_be_made_is_made_later, start_two(), stop())
{
    struct rlimit before;

    use_up_descriptors(&before);
    T_OK(links_connect(b.links, 2, span_str(address), any));
    T_EQ_U64(links_stats(b.links)->dials_failed, 1);
    T_TRUE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    wait_for(&b.up, 1);
    T_EQ_U64(b.last_link, 2);
    say(&b, 2, 0);
    wait_for(&a.messages, 1);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;

    T_TRUE(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static bool calm(void *ud)
{
    uint64_t before = cpu_ns();
    struct until u = {&a.up, 2};

    (void)t_wait(reached, &u, 300);
    return cpu_ns() - before < 150 * NS_PER_MS;
}

/* Connections that wait would keep the listener readable, and so ZMQ's thread
 * awake: they are refused, or accepted and ended. */
TEST(without_descriptors_connections_do_not_keep_a_thread_busy)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct rlimit before;
    int s[5];

    start();
    for (int i = 0; i < 5; i++)
        s[i] = socket(AF_INET, SOCK_STREAM, 0);
    open_side(&b, NULL);
    join(0);
    say(&b, 0, 0);
    wait_for(&a.messages, 1);
    T_WAIT(calm, NULL); /* by now the listener holds its spare descriptor */
    to.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    use_up_descriptors(&before);
    for (int i = 0; i < 5; i++)
        T_TRUE(connect(s[i], (struct sockaddr *)&to, sizeof(to)) == 0);
    T_WAIT(calm, NULL);
    say(&b, 0, 1);
    wait_for(&a.messages, 2);
    T_EQ_U64(a.down, 0);
    T_TRUE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    for (int i = 0; i < 5; i++)
        close(s[i]);
    stop();
}

TEST(a_name_is_connected_to)
{
    struct addrinfo *known;
    char name[128];

    if (getaddrinfo("localhost", NULL, NULL, &known) != 0)
        t_skip("this host does not know localhost");
    freeaddrinfo(known);
    start_two();
    snprintf(name, sizeof(name), "tcp://localhost%s", strrchr(address, ':'));
    T_OK(links_connect(b.links, 1, span_str(name), any));
    wait_for(&b.up, 1);
    say(&b, 1, 0);
    wait_for(&a.messages, 1);
    stop();
}

static bool has_ipv6(void)
{
    struct sockaddr_in6 me = {
        .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int s = socket(AF_INET6, SOCK_STREAM, 0);
    bool ok = s >= 0 && bind(s, (struct sockaddr *)&me, sizeof(me)) == 0;

    if (s >= 0)
        close(s);
    return ok;
}

TEST(an_ipv6_address_is_bound_and_connected_to)
{
    if (!has_ipv6())
        return;
    T_TRUE(uv_loop_init(&loop) == 0);
    open_side(&a, "tcp://[::1]:*");
    links_endpoint(a.links, address, sizeof(address));
    open_side(&b, NULL);
    join(0);
    say(&b, 0, 0);
    wait_for(&a.messages, 1);
    stop();
}

TEST_AROUND(a_name_without_an_address_is_asked_for_again, start_two(), stop())
{
    T_OK(
        links_connect(b.links, 1, span_str("tcp://nowhere.invalid:7601"), any));
    T_WAIT(is_counted, (void *)&links_stats(b.links)->dials_failed);
    T_EQ_U64(links_stats(b.links)->dials_failed, 1);
    links_disconnect(b.links, 1);
    join(1);
}
