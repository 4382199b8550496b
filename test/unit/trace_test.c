/* trace_test.c - what the flight recorder shows to whom, and which peers get a
 * trace context. */
#include "core/trace/trace.h"
#include "test/here.h"

#define CONTEXT "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

struct shown {
    struct rows_out s;
    char text[1u << 20];
    size_t len;
};

static void add(struct shown *k, const char *name, const char *value)
{
    int n = snprintf(
        k->text + k->len, sizeof(k->text) - k->len, "%s=%s ", name, value);

    T_TRUE(n > 0 && k->len + (size_t)n < sizeof(k->text));
    k->len += (size_t)n;
}

static void one_row(struct rows_out *s) {}

static void one_text(struct rows_out *s, const char *name, const char *value)
{
    add((struct shown *)(void *)s, name, value);
}

static void one_number(struct rows_out *s, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    one_text(s, name, text);
}

/* Returns the trace as a user of this id sees it. */
static const char *seen_by(struct rig *b, uint32_t uid, uint64_t from)
{
    static struct shown k;
    struct show_at at = {.at = from, .places = UINT32_MAX, .uid = uid};

    k = (struct shown){.s = {one_row, one_text, one_number, NONE}};
    T_TRUE(brain_show(b->is, "trace", b->now_ns, &at, &k.s));
    T_TRUE(at.over);
    return k.text;
}

TEST_ENCODED(a_user_sees_the_ids_of_his_own_rooms)
{
    brain_hear(e, 0, init(e, 99, 5, 8)); /* a room of no user on this host */
    T_OK(brain_say(e, 0, announce(4660, 0, 8, 8)));
    T_TRUE(strstr(seen_by(e, 7, 0), "room=4660 ") != NULL);
    T_TRUE(strstr(seen_by(e, 7, 0), "room=99 ") == NULL);
    T_TRUE(strstr(seen_by(e, 8, 0), "room=4660 ") == NULL);
    T_TRUE(strstr(seen_by(e, 8, 0), "room=- what=announced") != NULL);
    T_TRUE(strstr(seen_by(e, 0, 0), "room=4660 ") != NULL);
    T_TRUE(strstr(seen_by(e, 0, 0), "room=99 ") != NULL);
}

TEST_ENCODED(a_report_begins_where_it_is_asked_to)
{
    uint64_t count = e->recorder.count;

    T_OK(brain_say(e, 0, announce(1, 0, 8, 8)));
    T_TRUE(e->recorder.count > count);
    T_TRUE(strstr(seen_by(e, 0, count), "peer-up") == NULL);
    T_TRUE(strstr(seen_by(e, 0, count), "announced") != NULL);
    T_EQ_STR(seen_by(e, 0, e->recorder.count), "");
    T_EQ_STR(seen_by(e, 0, UINT64_MAX), "");
}

TEST_ENCODED(what_was_overwritten_is_left_out)
{
    T_OK(brain_say(e, 0, announce(1, 0, 8, 8)));
    while (e->recorder.count < RECORDER_SIZE + 2000)
        happened_here((struct brain *)e->is, HAPPENED_DRAINING, NULL);
    T_TRUE(
        strstr(seen_by(e, 0, RECORDER_SIZE + 1999), "number=67535 ") != NULL);
    T_TRUE(strstr(seen_by(e, 0, 0), "announced") == NULL);
}

TEST(a_context_goes_to_the_langd)
{
    struct rig *e = BRAIN(ROLE_ENCODED, "log=info");
    struct local_msg m = announce(1, 0, 8, 8);

    brain_conn(e, 0, "s");
    brain_hello(e, 0, "a", L_EPOCH);
    m.announce.traceparent = span_str(CONTEXT);
    T_OK(brain_say(e, 0, m));
    brain_hear(e, 0, init(e, 1, 5, 8));
    T_TRUE(span_eq(
        brain_said(e, PEER_LENGTH, -1)->length.traceparent, span_str(CONTEXT)));
}

TEST_ENCODED(an_engine_s_bad_context_is_refused)
{
    struct local_msg m = announce(1, 0, 8, 8);

    m.announce.traceparent = span_str("00-11-22-01");
    T_EQ_U64(brain_say(e, 0, m), ERR_MALFORMED);
}

/* A malformed context of a peer is left out, and the room goes on. */
TEST_ENCODED(a_peer_s_bad_context_is_left)
{
    struct peer_msg m = init(e, 1, 5, 8);

    m.init.traceparent = span_str("00-11-22-01");
    T_OK(brain_say(e, 0, announce(1, 0, 8, 8)));
    brain_hear(e, 0, m);
    T_TRUE(brain_said(e, PEER_LENGTH, -1) != NULL);
    T_TRUE(strstr(seen_by(e, 0, 0), "traceparent") == NULL);
}
