/* encoded_carrier_test.c - what encoded does with the carrier that a langd has
 * chosen (lib/wire/carriers.h). It has UCX and TCP here. */
#include "test/here.h"

#define BOTH "transfer.tls=rc"

static struct peer_msg hello_of(const char *carriers, uint8_t carrier)
{
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = L_EPOCH};

    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = ROLE_LANGD;
    m.hello.segment_max = 1 << 18;
    m.hello.name = span_str("a");
    m.hello.carrier = carrier;
    m.hello.carriers = span_str(carriers);
    m.hello.addresses = span_of("\3\0abc", 5);
    return m;
}

TEST_ENCODED(shards_learn_what_the_addresses_are_for, BOTH)
{
    const struct action *a = NULL;

    T_EQ_STR(brain_text(e, "peers", "carrier", 0), "tcp");
    brain_hear(e, 0, hello_of("ucx 1.18 rc; tcp", CARRIER_UCX));
    for (uint32_t i = 0; i < e->acts_count; i++)
        if (e->acts[i].type == ACT_PEER_DATA)
            a = &e->acts[i];
    T_TRUE(a != NULL);
    T_EQ_U64(a->word, 1 << 18 | (uint64_t)CARRIER_UCX << 32);
    T_EQ_STR(brain_text(e, "peers", "carrier", 0), "ucx");
    T_EQ_MEM(
        brain_said(e, PEER_HELLO, 0)->hello.carriers.p, "ucx 1.18 rc; tcp", 16);
}

TEST_ENCODED(the_report_says_why_not_by_a_better_one, BOTH)
{
    brain_hear(e, 0, hello_of("tcp", CARRIER_TCP));
    T_EQ_STR(brain_text(e, "peers", "not_by", 0),
        "copy: not mapped, ucx: not there");
    brain_hear(e, 0, hello_of("ucx 1.18 rc; tcp", CARRIER_TCP));
    T_EQ_STR(brain_text(e, "peers", "not_by", 0),
        "copy: not mapped, ucx: not chosen there");
    brain_hear(e, 0, hello_of("ucx 1.18 rc; tcp", CARRIER_UCX));
    T_EQ_STR(brain_text(e, "peers", "not_by", 0), "copy: not mapped");
}

TEST_ENCODED(addresses_of_16000_bytes_are_passed_on, BOTH)
{
    struct peer_msg m = hello_of("ucx 1.18 rc; tcp", CARRIER_UCX);
    static uint8_t blob[2 * 16002];
    const struct action *a = NULL;

    blob[0] = blob[16002] = 16000 & 0xff;
    blob[1] = blob[16003] = 16000 >> 8;
    m.hello.addresses = span_of(blob, sizeof(blob));
    brain_hear(e, 0, m);
    for (uint32_t i = 0; i < e->acts_count; i++)
        if (e->acts[i].type == ACT_PEER_DATA)
            a = &e->acts[i];
    T_TRUE(a != NULL);
    T_EQ_U64(a->len, sizeof(blob));
    T_EQ_U64(brain_shown(e, "peers", "data_addresses", 0), 2);
}

TEST_ENCODED(nothing_in_common_fails_the_room)
{
    const struct peer_failed *f;

    brain_hear(e, 0, hello_of("ucx 1.18 rc", CARRIER_UCX));
    T_OK(brain_say(e, 0, announce(1, 0, 16, 16)));
    brain_hear(e, 0, init(e, 1, 77, 16));
    f = &brain_said(e, PEER_FAILED, 0)->failed;
    T_EQ_U64(f->reason, ERR_INCOMPATIBLE_LAYOUT);
    T_EQ_MEM(f->text.p, "encoded moves rows by tcp, langd by ucx 1.18 rc", 47);
}
