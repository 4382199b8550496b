/* carriers_test.c - what two daemons choose from what each can do. */
#include "wire/carriers.h"

#include "base/base.h"

#include "test/t.h"

#define TCP  (1u << CARRIER_TCP)
#define UCX  (1u << CARRIER_UCX)
#define BOTH (TCP | UCX)

#define OUTAGE (10 * NS_PER_S)

static uint8_t listed(const char *text)
{
    return carriers_read(span_str(text));
}

TEST(lists)
{
    T_EQ_U64(listed(""), 0);
    T_EQ_U64(listed("tcp"), TCP);
    T_EQ_U64(listed("ucx 1.18 rc_mlx5,dc_mlx5; tcp"), BOTH);
    T_EQ_U64(listed("tcp;ucx"), BOTH);
    T_EQ_U64(listed(" ; tcp 2 ; "), TCP);
    /* A carrier of a later release. */
    T_EQ_U64(listed("quic 1; tcp"), TCP);
    T_EQ_U64(listed("tcpx; ucxtcp; uc; ;;"), 0);
    T_EQ_U64(carriers_read(span_of("tcpucx", 3)), TCP);
}

TEST(names)
{
    T_EQ_STR(carrier_name(CARRIER_UCX), "ucx");
    T_EQ_STR(carrier_name(CARRIER_AUTO), "auto");
    T_EQ_STR(carrier_name(200), "auto");
}

TEST(the_best_that_both_can)
{
    static const struct {
        uint8_t here, there, chosen;
    } cases[] = {{BOTH, BOTH, CARRIER_UCX}, {BOTH, TCP, CARRIER_TCP},
        {TCP, BOTH, CARRIER_TCP}, {UCX, BOTH, CARRIER_UCX},
        {TCP, UCX, CARRIER_AUTO}, {UCX, TCP, CARRIER_AUTO},
        {BOTH, 0, CARRIER_AUTO}};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct carrier_pair p = {0};

        T_EQ_U64(carriers_choose(&p, cases[i].here, cases[i].there),
            cases[i].chosen != CARRIER_AUTO);
        T_EQ_U64(p.chosen, cases[i].chosen);
    }
}

TEST(tcp_is_first_where_it_is_here)
{
    T_EQ_U64(carriers_first(BOTH), CARRIER_TCP);
    T_EQ_U64(carriers_first(UCX), CARRIER_UCX);
}

TEST(two_breaks_within_a_minute_cost_a_carrier)
{
    struct carrier_pair p = {0};
    uint64_t t = 5 * NS_PER_S;

    T_TRUE(carriers_choose(&p, BOTH, BOTH));
    T_FALSE(carriers_broke(&p, BOTH, t, OUTAGE));
    T_TRUE(carriers_broke(&p, BOTH, t + 59 * NS_PER_S, OUTAGE));
    T_EQ_U64(p.chosen, CARRIER_TCP);
    /* Another HELLO of the same epoch does not bring UCX back. */
    T_TRUE(carriers_choose(&p, BOTH, BOTH));
    T_EQ_U64(p.chosen, CARRIER_TCP);
    /* A new epoch brings it back. */
    p = (struct carrier_pair){0};
    T_TRUE(carriers_choose(&p, BOTH, BOTH));
    T_EQ_U64(p.chosen, CARRIER_UCX);
}

TEST(breaks_that_are_one)
{
    struct carrier_pair p = {0};
    uint64_t t = 5 * NS_PER_S;

    T_TRUE(carriers_choose(&p, BOTH, BOTH));
    for (unsigned i = 0; i < 100; i++) /* a hundred rooms */
        T_FALSE(carriers_broke(&p, BOTH, t + i, OUTAGE));
    T_FALSE(carriers_broke(&p, BOTH, t + CARRIER_BREAKS_NS, OUTAGE));
    T_EQ_U64(p.chosen, CARRIER_UCX);
    T_TRUE(carriers_broke(&p, BOTH, t + CARRIER_BREAKS_NS + NS_PER_S, OUTAGE));
    /* Breaks that the change itself causes do not count against TCP. */
    t += CARRIER_BREAKS_NS + NS_PER_S;
    T_FALSE(carriers_broke(&p, BOTH, t + 1, OUTAGE));
    T_EQ_U64(p.breaks, 0);
}

TEST(the_last_carrier_stays)
{
    struct carrier_pair p = {0};
    uint64_t t = 5 * NS_PER_S;

    T_TRUE(carriers_choose(&p, TCP, BOTH));
    for (unsigned i = 0; i < 10; i++)
        T_FALSE(carriers_broke(&p, TCP, t + i * NS_PER_S, OUTAGE));
    T_EQ_U64(p.chosen, CARRIER_TCP);
    p = (struct carrier_pair){0};
    T_TRUE(carriers_choose(&p, BOTH, BOTH));
    T_FALSE(carriers_broke(&p, BOTH, t, OUTAGE));
    T_TRUE(carriers_broke(&p, BOTH, t + NS_PER_S, OUTAGE));
    for (unsigned i = 2; i < 10; i++)
        T_FALSE(carriers_broke(&p, BOTH, t + i * NS_PER_S, OUTAGE));
    T_EQ_U64(p.chosen, CARRIER_TCP);
}

/* If rows have come by a carrier, its breaks within an outage count as one. */
TEST(a_carrier_that_worked_has_patience)
{
    struct carrier_pair p = {0};
    uint64_t t = 5 * NS_PER_S;

    T_TRUE(carriers_choose(&p, BOTH, BOTH));
    p.worked = true;
    for (unsigned i = 0; i < 10; i++)
        T_FALSE(carriers_broke(&p, BOTH, t + i * NS_PER_S, OUTAGE));
    T_TRUE(carriers_broke(&p, BOTH, t + OUTAGE, OUTAGE));
    T_EQ_U64(p.chosen, CARRIER_TCP);
    T_FALSE(p.worked);
}

TEST(why_names_what_the_config_bars)
{
    struct carrier_pair p = {0};
    uint8_t ucx = 1u << CARRIER_UCX, tcp = 1u << CARRIER_TCP;
    char why[64];

    T_TRUE(carriers_choose(&p, tcp, BOTH));
    carriers_why(&p, tcp, ucx, why, sizeof(why));
    T_EQ_STR(why, "ucx: cannot encrypt");
    carriers_why(&p, tcp, 0, why, sizeof(why));
    T_EQ_STR(why, "ucx: not here");
    T_FALSE(carriers_choose(&p, 0, BOTH));
    carriers_why(&p, 0, 0, why, sizeof(why));
    T_EQ_STR(why, "tcp: not here, ucx: not here");
    carriers_why(&p, 0, 0, why, 8);
    T_EQ_STR(why, "tcp: no");
}

/* As encoded sees it: langd has chosen the lesser of two carriers that both
 * have. */
TEST(why_of_a_choice_that_was_made_there)
{
    struct carrier_pair p = {.chosen = CARRIER_TCP, .there = BOTH};
    char why[64];

    carriers_why(&p, BOTH, 0, why, sizeof(why));
    T_EQ_STR(why, "ucx: not chosen there");
    carriers_why(&p, TCP, 0, why, sizeof(why));
    T_EQ_STR(why, "ucx: not here");
    p.chosen = CARRIER_UCX;
    carriers_why(&p, BOTH, 0, why, sizeof(why));
    T_EQ_STR(why, "");
}
