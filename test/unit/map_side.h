/* map_side.h - helpers for tests of the encode side about langd daemons that
 * map its pools: what such a langd says to get them. */
#ifndef MMX_TEST_MAP_SIDE_H
#define MMX_TEST_MAP_SIDE_H

#include "test/here.h"

#define DAY_MS (24 * 3600 * UINT64_C(1000))

static inline struct peer_msg hello(
    const char *name, uint64_t epoch, uint32_t mapped)
{
    static const uint8_t address[] = {3, 0, 'x', 'y', 'z'};
    struct peer_msg m = {.type = PEER_HELLO, .from_epoch = epoch};

    m.hello.version_min = m.hello.version_max = WIRE_VERSION;
    m.hello.role = ROLE_LANGD;
    m.hello.segment_max = 1 << 18;
    m.hello.name = span_str(name);
    m.hello.carrier = CARRIER_TCP;
    m.hello.carriers = span_str("tcp");
    m.hello.addresses = span_of(address, sizeof(address));
    m.hello.mapped = mapped;
    return m;
}

static inline uint64_t token_of(struct rig *e, uint32_t link, struct peer_msg m)
{
    const struct peer_msg *said;

    brain_hear(e, link, m);
    said = brain_said(e, PEER_HELLO, -1);
    T_TRUE(said != NULL);
    T_EQ_U64(said->hello.socket.len > 0, said->hello.token != 0);
    return said->hello.token;
}

static inline void connect_as(struct rig *e, uint32_t conn, uint32_t uid)
{
    struct event ev = {.type = EV_CONN_OPEN, .conn = conn, .uid = uid};

    rig_step(e, &ev);
}

static inline enum err say_map(struct rig *e, uint32_t conn, const char *name,
    uint64_t epoch, uint64_t token)
{
    struct local_msg m = {.type = LOCAL_MAP, .seq = 9};
    struct event ev = {.type = EV_LOCAL, .conn = conn, .local = &m};

    m.map.token = token;
    m.map.epoch = epoch;
    m.map.name = span_str(name);
    rig_step(e, &ev);
    T_TRUE(brain_answer(e) != NULL);
    return (enum err)brain_answer(e)->err;
}

/* Returns how many POOL_INFOs with a descriptor the connection got. */
static inline uint32_t pools_given(struct rig *e, uint32_t conn)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < e->acts_count; i++)
        n += e->acts[i].type == ACT_LOCAL && e->acts[i].conn == conn &&
             e->acts[i].fd == FD_POOL;
    return n;
}

/* Makes langd `a` map over this connection, and say that it has done so. */
static inline void maps(struct rig *e, uint32_t conn)
{
    uint64_t token = token_of(e, 0, hello("a", L_EPOCH, 0));

    connect_as(e, conn, BRAIN_UID);
    T_OK(say_map(e, conn, "a", L_EPOCH, token));
    T_EQ_U64(pools_given(e, conn), 1);
    brain_hear(e, 0, hello("a", L_EPOCH, 1));
}

static inline void link_down(struct rig *e, uint32_t link)
{
    struct event ev = {.type = EV_LINK_DOWN, .link = link};

    rig_step(e, &ev);
    brain_pass(e, 600);
}

#endif
