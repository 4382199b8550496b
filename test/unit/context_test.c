/* context_test.c - which texts are a trace context. */
#include "wire/context.h"
#include "test/t.h"

#define GOOD "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

TEST(a_good_one_is_read_and_written)
{
    char text[TRACEPARENT_LEN + 1];
    struct traceparent t;

    T_TRUE(traceparent_read(span_str(GOOD), &t));
    T_EQ_U64(t.trace[0], 0x4bf92f3577b34da6);
    T_EQ_U64(t.trace[1], 0xa3ce929d0e0e4736);
    T_EQ_U64(t.parent, 0x00f067aa0ba902b7);
    T_EQ_U64(t.version, 0);
    T_EQ_U64(t.flags, 1);
    traceparent_write(&t, text);
    T_EQ_STR(text, GOOD);
}

TEST(others_are_refused)
{
    static const char *const bad[] = {"", "00", GOOD "0",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7_01",
        "00-4bf92f3577b34da6-3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b-701",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
        "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"};
    struct traceparent t;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        T_CHECK(!traceparent_read(span_str(bad[i]), &t), "%s", bad[i]);
}
