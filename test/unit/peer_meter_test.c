/* peer_meter_test.c - what counts as waiting on a control connection, by
 * kernel's counters that the case sets. */
#include "io/peer/peer_impl.h"
#include "io/peer/tcp_info.h"
#include "test/t.h"

#define LIMIT (64u << 10)

static struct tcp_counts counts;

bool tcp_counts(int fd, struct tcp_counts *out)
{
    T_EQ_I64(fd, 7);
    *out = counts;
    return true;
}

/* ZMTP's own commands, such as heartbeats, are acknowledged and in no count of
 * messages. */
TEST(heartbeats_hide_nothing_that_waits_to_be_sent)
{
    struct meter m = {.fd = 7};

    for (int tick = 0; tick < 10000; tick++) {
        counts.acked += 100;
        T_FALSE(meter_over(&m, LIMIT));
    }
    meter_count(&m, &m.written, LIMIT);
    T_TRUE(meter_over(&m, LIMIT));
    counts.acked = m.written;
    T_FALSE(meter_over(&m, LIMIT));
}
