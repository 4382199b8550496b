/* lend_side.h - helpers for tests of the encode side about rows that language
 * engines of this host read in its pool: such engines, and a room that is lent.
 * Langd `a` is link 0 and maps over connection 1. */
#ifndef MMX_TEST_LEND_SIDE_H
#define MMX_TEST_LEND_SIDE_H

#include "test/unit/map_side.h"

#define NEXT_EPOCH (L_EPOCH + 9) /* a later run of langd `a` */

/* Returns what engines of that run of langd `a` say in MAP. */
static inline uint64_t lend_of(struct rig *e, uint64_t epoch)
{
    const struct peer_msg *m;

    brain_hear(e, 0, hello("a", epoch, 1));
    m = brain_said(e, PEER_HELLO, -1);
    T_TRUE(m != NULL);
    return m->hello.lend;
}

static inline void open_as(
    struct rig *e, uint32_t conn, uint32_t uid, int32_t pid)
{
    struct event ev = {
        .type = EV_CONN_OPEN, .conn = conn, .uid = uid, .pid = pid};

    rig_step(e, &ev);
}

/* Connects a process that reads rooms of langd `a`. */
static inline void reads(struct rig *e, uint32_t conn, int32_t pid)
{
    uint64_t token = lend_of(e, L_EPOCH);

    open_as(e, conn, 7, pid);
    T_OK(say_map(e, conn, "a", L_EPOCH, token));
}

/* Connects in place of a connection that has ended, to say BYE. */
static inline void parts(struct rig *e, uint32_t conn, int32_t pid)
{
    struct local_msg m = {.type = LOCAL_MAP};

    m.map.token = lend_of(e, L_EPOCH);
    m.map.epoch = L_EPOCH;
    m.map.name = span_str("a");
    m.map.parting = 1;
    open_as(e, conn, 7, pid);
    T_OK(brain_say(e, conn, m));
}

static inline bool closed(const struct rig *e, uint32_t conn)
{
    bool found = false;

    for (uint32_t i = 0; i < e->acts_count; i++)
        found |= e->acts[i].type == ACT_CONN_CLOSE && e->acts[i].conn == conn;
    return found;
}

/* Ends the connection. True if its process is watched, as that of a reader. */
static inline bool stays(struct rig *e, uint32_t conn)
{
    brain_end(e, conn);
    return !closed(e, conn);
}

/* Says BYE and ends the connection, whose process then needs no watch. */
static inline void says_bye(struct rig *e, uint32_t conn)
{
    T_OK(brain_say(e, conn, (struct local_msg){.type = LOCAL_BYE}));
    T_TRUE(closed(e, conn));
    T_FALSE(stays(e, conn));
    brain_dead(e, conn);
}

static inline struct peer_msg hopes(struct rig *e, uint64_t room, uint64_t g)
{
    struct peer_msg m = init(e, room, g, 0);

    m.init.flags = FLAG_LEND;
    return m;
}

static inline struct rig *mapped(const char *a)
{
    struct rig *e = encoded("timeouts.linger=0ms", a);

    maps(e, 1);
    return e;
}

/* Announces a room, writes all rows, and has langd ask for it. True if it is
 * lent. */
static inline bool goes(
    struct rig *e, uint64_t room, uint32_t cell, uint64_t g, uint32_t rows)
{
    T_OK(brain_say(e, 0, announce(room, cell, rows, rows)));
    (void)brain_events(e, 0, cell);
    all_rows(e, cell, rows);
    brain_hear(e, 0, hopes(e, room, g));
    T_EQ_U64(brain_said_count(e, PEER_LEND) + brain_said_count(e, PEER_WANT),
        1); /* either LEND or WANT */
    return brain_said_count(e, PEER_LEND) == 1;
}

static inline struct rig *lent(void)
{
    struct rig *e = mapped(NULL);

    T_TRUE(goes(e, 1, 0, 70, 16));
    T_EQ_U64(brain_free(e), 14);
    T_EQ_U64(brain_shown(e, "pools", "lent", 0), 2);
    return e;
}

static inline struct peer_msg about_lend(uint8_t st, uint8_t flags)
{
    struct peer_msg m = state(1, 70, PEER_LEND, st);

    m.state.flags = flags;
    return m;
}

/* Ends the langd of the lent room, its process, and the room. */
static inline void loses_langd(struct rig *e)
{
    link_down(e, 0);
    T_OK(brain_say(e, 0, release(0)));
    T_TRUE(stays(e, 1));
    T_EQ_U64(brain_free(e), 14);
    T_EQ_U64(brain_shown(e, "pools", "orphaned", 0), 0);
    brain_dead(e, 1);
}

/* True if readers of a dead langd hold the lent room's blocks. */
static inline bool orphaned(struct rig *e)
{
    uint64_t n = brain_shown(e, "pools", "orphaned", 0);

    T_EQ_U64(brain_shown(e, "pools", "lent", 0), n);
    T_TRUE(n == 0 || (n == 2 && brain_free(e) == 14));
    return n;
}

#endif
