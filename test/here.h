/* here.h - helpers for tests of the encode side: messages of its engines, and
 * of langd `a` at link 0 and `b` at link 1. Engine 0 has session "s"; cells
 * have the tag cell + 100. */
#ifndef MMX_TEST_HERE_H
#define MMX_TEST_HERE_H

#include "test/brain.h"

/* epoch of the langd at link 0; others add the link */
#define L_EPOCH UINT64_C(0x1a00)

static inline struct local_msg announce(
    uint64_t room, uint32_t cell, uint32_t max_rows, uint32_t total)
{
    struct local_msg m = {.type = LOCAL_ANNOUNCE};

    m.announce.room = room;
    m.announce.cell = cell;
    m.announce.tag = cell + 100;
    m.announce.storage = STORAGE_COMPACT;
    m.announce.max_rows = max_rows;
    m.announce.total = total;
    return m;
}

static inline struct local_msg commit(
    uint32_t cell, uint32_t first, uint32_t rows)
{
    struct local_msg m = {.type = LOCAL_COMMIT};

    m.commit.cell = cell;
    m.commit.tag = cell + 100;
    m.commit.first = first;
    m.commit.rows = rows;
    m.commit.total = ROWS_UNKNOWN;
    return m;
}

static inline struct local_msg final(uint32_t cell, uint32_t total)
{
    struct local_msg m = commit(cell, 0, 0);

    m.commit.flags = FLAG_FINAL;
    m.commit.total = total;
    return m;
}

static inline struct local_msg attach(
    uint64_t room, uint32_t cell, uint8_t rights)
{
    struct local_msg m = {.type = LOCAL_ATTACH};

    m.attach.room = room;
    m.attach.cell = cell;
    m.attach.tag = cell + 100;
    m.attach.rights = rights;
    return m;
}

static inline struct local_msg release(uint32_t cell)
{
    struct local_msg m = {.type = LOCAL_RELEASE};

    m.release.cell = cell;
    m.release.tag = cell + 100;
    m.release.rows = ROWS_UNKNOWN;
    return m;
}

static inline struct peer_msg about(
    uint64_t room, uint64_t generation, enum peer_type type)
{
    return (struct peer_msg){
        .type = type, .room = room, .generation = generation};
}

static inline struct peer_msg init(
    struct rig *e, uint64_t room, uint64_t generation, uint32_t granted)
{
    struct peer_msg m = about(room, generation, PEER_INIT);

    m.init.layout = brain_layout(e->is, 0)->hash;
    m.init.granted = granted;
    m.init.unit_rows = 8;
    m.init.part_rows = 64;
    m.init.required_dst = 1;
    return m;
}

/* Makes the message ask for a room with two destinations. */
static inline struct peer_msg two(struct peer_msg m)
{
    m.init.required_dst = 2;
    return m;
}

static inline struct local_msg announce_for(
    uint16_t required, uint64_t room, uint32_t cell, uint32_t rows)
{
    struct local_msg m = announce(room, cell, rows, rows);

    m.announce.required_dst = required;
    return m;
}

static inline struct peer_msg resume(uint64_t room, uint64_t generation,
    uint32_t attempt, uint32_t granted, uint32_t from)
{
    struct peer_msg m = about(room, generation, PEER_RESUME);

    m.resume.attempt = attempt;
    m.resume.granted = granted;
    m.resume.from = from;
    return m;
}

static inline struct peer_msg state(
    uint64_t room, uint64_t generation, enum peer_type answers, uint8_t st)
{
    struct peer_msg m = about(room, generation, PEER_STATE);

    m.state.answers = (uint8_t)answers;
    m.state.state = st;
    m.state.reason = st == ROOM_FAILED ? ERR_ABORTED : 0;
    m.state.total = ROWS_UNKNOWN;
    return m;
}

static inline struct rig *encoded(const char *a, const char *b)
{
    struct rig *e = BRAIN(ROLE_ENCODED, a ? a : "log=info", b ? b : "log=info");

    brain_conn(e, 0, "s");
    brain_hello(e, 0, "a", L_EPOCH);
    brain_hello(e, 1, "b", L_EPOCH + 1);
    return e;
}

/* TEST_ENCODED(id, setting, setting): with none, one or two of them. */
#define TEST_ENCODED(id, ...)                                                  \
    TEST_WITH(id, struct rig *e,                                               \
        brain_of(encoded,                                                      \
            (const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL, NULL}))

/* The last message was neither refused nor failed; an answer may come later. */
static inline void is_taken(struct rig *e)
{
    T_EQ_U64(brain_said_count(e, PEER_FAILED), 0);
    T_EQ_U64(brain_said_count(e, PEER_NACK), 0);
}

static inline void ack(struct rig *e, uint32_t link, uint64_t room, uint64_t g)
{
    brain_hear(e, link, about(room, g, PEER_ACK));
    is_taken(e);
}

/* Sends an ACK; connection 0 must see the room of this cell succeed. */
static inline void ack_succeeds(
    struct rig *e, uint32_t link, uint64_t room, uint64_t g, uint32_t cell)
{
    ack(e, link, room, g);
    T_EQ_U64(brain_state(e, 0, cell), ROOM_SUCCESS);
}

/* Connection 0 releases a room; then `blocks` blocks must be free. */
static inline void frees(struct rig *e, uint32_t cell, uint32_t blocks)
{
    T_OK(brain_say(e, 0, release(cell)));
    T_EQ_U64(brain_free(e), blocks);
}

/* Returns an INIT that grants nothing yet. */
static inline struct peer_msg asks(
    struct rig *e, uint64_t room, uint64_t generation)
{
    return init(e, room, generation, 0);
}

static inline struct peer_msg grants(
    uint64_t room, uint64_t generation, uint32_t granted, uint8_t firm)
{
    struct peer_msg m = resume(room, generation, 0, granted, 0);

    m.resume.firm = firm;
    return m;
}

static inline void all_rows(struct rig *e, uint32_t cell, uint32_t rows)
{
    T_OK(brain_say(e, 0, commit(cell, 0, rows)));
    T_OK(brain_say(e, 0, final(cell, rows)));
}

static inline bool is_granted(struct rig *e, uint32_t cell)
{
    return brain_say(e, 0, commit(cell, 0, 0)) == OK;
}

#endif
