/* lender_side.h - helpers for tests of the language side about an encoder of
 * this host that lends: engines that map its pool, and rooms that hope for its
 * rows. The encoder is link 0; such engines are connections 1 and up, of
 * session "able". */
#ifndef MMX_TEST_LENDER_SIDE_H
#define MMX_TEST_LENDER_SIDE_H

#include "test/there.h"

#define TOKEN UINT64_C(0x70ce)
#define LEND  UINT64_C(0x1e4d)

/* Engines' number for pool 0 of lender 1. */
#define LENT_POOL CONF_POOLS_MAX

static inline struct peer_msg lender(uint64_t lend)
{
    struct peer_msg m = near_hello(TOKEN);

    m.hello.lend = lend;
    return m;
}

/* Says that the encoder is up, and that langd has mapped its pool. */
static inline void lends(struct rig *l, uint64_t lend)
{
    struct event ev = {.type = EV_MAP, .peer_at = 0, .mapped = 1};

    brain_hear(l, 0, lender(lend));
    rig_step(l, &ev);
}

/* Connects an engine that takes LENDER. */
static inline void able(struct rig *l, uint32_t conn, const char *session)
{
    brain_able(l, conn, 7, session, ABLE_LEND);
}

/* Returns the next LENDER for the connection, or NULL. */
static inline const struct local_lender *told_of(struct rig *l, uint32_t conn)
{
    if (!brain_event(l, conn))
        return NULL;
    T_EQ_U64(l->event.type, LOCAL_LENDER);
    return &l->event.lender;
}

static inline void maps(
    struct rig *l, uint32_t conn, uint16_t lender, uint16_t pools)
{
    struct local_msg m = {.type = LOCAL_MAPPED};

    m.mapped.lender = lender;
    m.mapped.pools = pools;
    T_OK(brain_say(l, conn, m));
}

/* Returns a rig with such an encoder, and engine 1, which does not map its pool
 * yet. */
static inline struct rig *lending(const char *a, const char *b)
{
    struct rig *l = langd_up(a, b);

    able(l, 1, "able");
    lends(l, LEND);
    return l;
}

/* Returns a request for 256 KiB. */
static inline struct local_msg large(uint64_t room, uint32_t cell)
{
    struct local_msg m = request(room, cell, MODE_WHOLE);

    m.request.rows = 64;
    return m;
}

/* Requests a room. True if it hopes to be lent, and so has no blocks. */
static inline bool hopes(
    struct rig *l, uint32_t conn, struct local_msg m, struct there *t)
{
    uint32_t before = brain_free(l);
    struct peer_init n;

    T_OK(brain_say(l, conn, m));
    T_TRUE(brain_said(l, PEER_INIT, 0) != NULL);
    *t = (struct there){.room = m.request.room,
        .generation = brain_said(l, PEER_INIT, 0)->generation};
    told(l, t);
    n = brain_said(l, PEER_INIT, 0)->init;
    T_TRUE(
        !(n.flags & FLAG_LEND) || (n.granted == 0 && brain_free(l) == before));
    brain_hear(l, 0, state(t, PEER_INIT, 0, n.granted));
    return n.flags & FLAG_LEND;
}

/* Returns LEND for all 64 rows, in blocks 3 to 10 of pool 0. */
static inline struct peer_msg lend(const struct there *t)
{
    static uint8_t bytes[8];
    struct writer w = writer_of(bytes, sizeof(bytes));
    struct peer_msg m = about(t, PEER_LEND);

    put_u32(&w, 3);
    put_u32(&w, 8);
    m.lend.total = 64;
    m.lend.block_rows = 8;
    m.lend.runs = span_of(bytes, sizeof(bytes));
    return m;
}

/* Returns a rig with room 1 in cell 0 of engine 1, which maps; the room has its
 * length and hopes. */
static inline struct rig *hoping(struct there *t)
{
    struct rig *l = lending(NULL, NULL);

    maps(l, 1, 1, 1);
    (void)brain_events(l, 1, 0);
    T_TRUE(hopes(l, 1, large(1, 0), t));
    brain_hear(l, 0, length(t, 64, 64, true));
    return l;
}

/* Returns the same rig after LEND. */
static inline struct rig *lent(struct there *t)
{
    struct rig *l = hoping(t);

    brain_hear(l, 0, lend(t));
    T_EQ_U64(brain_state(l, 1, 0), ROOM_SUCCESS);
    return l;
}

/* True if langd's answer to LEND says that it shows the rows, or will. */
static inline bool held(struct rig *l)
{
    const struct peer_msg *m = brain_said(l, PEER_STATE, 0);

    T_TRUE(m != NULL);
    T_EQ_U64(m->state.answers, PEER_LEND);
    return m->state.flags & FLAG_HELD;
}

/* Checks that the room has blocks for its rows, and that its encoder was
 * told. */
static inline void is_granted(struct rig *l)
{
    T_EQ_U64(brain_free(l), 8);
    T_EQ_U64(brain_said_count(l, PEER_RESUME), 1);
    T_EQ_U64(brain_said(l, PEER_RESUME, 0)->resume.granted, 64);
}

/* Returns the connection's READY event, or NULL. */
static inline const struct local_event *ready(struct rig *l, uint32_t conn)
{
    const struct local_event *e;

    while ((e = brain_event(l, conn)))
        if (l->event.type == LOCAL_EVENT && e->what & EVENT_READY)
            return e;
    return NULL;
}

#endif
