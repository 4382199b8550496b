/* peer_dial_test.c - the addresses that a link is connected to: names are
 * answered, sockets opened and links brought up by the case. */
#include "io/peer/peer_impl.h"
#include "test/t.h"

#include <stdarg.h>
#include <zmq.h>

#define SECOND NS_PER_S

static struct links links;
static struct link one;
static struct sock made;
static struct meter unused = {.fd = -1};
static uint64_t now = SECOND;
static char connected[64]; /* the address of the last connection */
static enum trouble trouble;
static uint32_t refusals;

/* DNS: no answer comes before answer() */
struct lookup {
    bool answered;
    struct lookup_result r;
};
static struct lookup asked;

struct lookup *lookup_start(const char *name)
{
    T_EQ_STR(name, "enc.example");
    asked.answered = false;
    return &asked;
}

bool lookup_done(const struct lookup *l, struct lookup_result *out)
{
    if (l->answered)
        *out = l->r;
    return l->answered;
}

void lookup_drop(struct lookup **l)
{
    *l = NULL;
}

/* the rest of lib/io/peer */

struct sock *sock_open(struct links *p, int type, uint32_t link, bool six)
{
    T_TRUE(type == ZMQ_DEALER && !six);
    made = (struct sock){.owner = p, .link = link, .meter = unused};
    return &made;
}

void sock_close(struct sock *s)
{
    T_TRUE(s == &made);
    connected[0] = 0;
}

int zmq_connect(void *socket, const char *to)
{
    (void)socket;
    snprintf(connected, sizeof(connected), "%s", to);
    return 0;
}

void link_down(struct links *p, uint32_t link)
{
    p->links[link].up = false;
}

bool meter_over(struct meter *m, uint64_t limit)
{
    (void)m;
    (void)limit;
    return false;
}

void links_watch(struct links *p)
{
    (void)p;
}

uint64_t uv_hrtime(void)
{
    return now;
}

static void on_event(void *ud, struct event *ev)
{
    (void)ud;
    T_EQ_I64(ev->type, EV_LINK_REFUSED);
    trouble = ev->trouble;
    refusals++;
}

static void after(uint64_t ns)
{
    now += ns;
    dial_tick(&links, now);
}

static void answer(uint32_t n, ...)
{
    va_list names;

    T_TRUE(one.dial.lookup == &asked);
    asked.r = (struct lookup_result){.count = n, .error = "no such name"};
    va_start(names, n);
    for (uint32_t i = 0; i < n; i++)
        snprintf(asked.r.addresses[i], LOOKUP_TEXT, "%s",
            va_arg(names, const char *));
    va_end(names);
    asked.answered = true;
    after(SECOND / 10);
}

static void begin(void)
{
    links = (struct links){.opt = {.links = 1, .inbox = 1 << 20},
        .links = &one,
        .calls = {.event = on_event}};
    list_init(&one.dirty);
    T_OK(links_connect(
        &links, 0, span_str("tcp://enc.example:5700"), span_of(NULL, 0)));
}

static void up(bool is)
{
    one.up = is;
    made.meter.fd = is ? 99 : -1;
    dial_changed(&links, 0);
    /* our own connects would need a network */
    one.dial.probe_ns = UINT64_MAX;
}

/* A link that is up at the second of two addresses, after a restart of the
 * encoder whose name is still looked up. */
static void second_is_up(void)
{
    begin();
    answer(2, "192.0.2.1", "192.0.2.2");
    one.dial.probe_ns = UINT64_MAX;
    after(3 * SECOND);
    answer(2, "192.0.2.1", "192.0.2.2");
    T_EQ_STR(connected, "tcp://192.0.2.2:5700");
    up(true);
    after(SECOND);
    up(false);
    after(3 * SECOND);
    T_TRUE(one.dial.lookup);
    asked.r = (struct lookup_result){
        .count = 1, .addresses = {"192.0.2.1"}, .error = "no such name"};
    asked.answered = true;
    up(true);
}

TEST(an_answer_for_a_link_that_is_up_is_not_taken)
{
    second_is_up();
    after(SECOND);
    up(false);
    dial_again(&links, 0);
    T_EQ_STR(connected, "tcp://192.0.2.2:5700");
}

TEST(a_failed_lookup_is_no_trouble_of_a_link_that_is_up)
{
    second_is_up();
    asked.r.count = 0;
    after(SECOND);
    T_EQ_U64(refusals, 0);
}

TEST(a_failed_lookup_is_said)
{
    begin();
    answer(0);
    T_EQ_U64(refusals, 1);
    T_EQ_I64(trouble, TROUBLE_NAME);
}

TEST(the_next_address_follows_one_that_refuses_all_keys)
{
    begin();
    answer(2, "192.0.2.1", "192.0.2.2");
    T_EQ_STR(connected, "tcp://192.0.2.1:5700");
    dial_refused(&links, 0, "key", true);
    T_EQ_STR(connected, "");
    after(3 * SECOND);
    answer(2, "192.0.2.1", "192.0.2.2");
    T_EQ_STR(connected, "tcp://192.0.2.2:5700");
}
