/* out.h - how a brain appends to its list of actions. Frames are encoded at
 * once, so that nothing in the list points into the brain. Pure. */
#ifndef MMX_CORE_OUT_H
#define MMX_CORE_OUT_H

#include "core/flow.h"

/* Most actions and bytes that handling one room may need; a step continues only
 * while this much is free. */
#define OUT_SLACK_ACTIONS 2300
#define OUT_SLACK_BYTES   (160u << 10)

_Static_assert(OUT_SLACK_ACTIONS < OUT_ACTIONS && OUT_SLACK_BYTES < OUT_BYTES,
    "an empty list has room");

static inline bool out_has_room(const struct out *o)
{
    return o->cap - o->count >= OUT_SLACK_ACTIONS &&
           o->bytes.cap - o->bytes.len >= OUT_SLACK_BYTES;
}

/* Appends an action of the type, zeroed except for cmd. */
struct action *out_action(struct out *o, enum action_type type);
void out_data(struct out *o, const struct data_cmd *cmd);
/* Lets the last action wait for later output, at most 1 ms. */
void out_coalesce(struct out *o);
void out_peer(struct out *o, uint32_t link, const struct peer_msg *m);
/* Returns the action, to set the word for FD_CELLS and FD_POOL (flow.h). */
struct action *out_local(struct out *o, uint32_t conn,
    const struct local_msg *m, int fd, uint32_t index);
void out_answer(struct out *o, uint32_t conn, uint32_t seq, enum err err,
    uint32_t a, uint32_t b, const char *fmt, ...) PRINTF_LIKE(7, 8);
/* Answers with OK and the numbers a and b. */
void out_done(
    struct out *o, uint32_t conn, uint32_t seq, uint32_t a, uint32_t b);
void out_warn(struct out *o, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Answers OK to a message that engines send once per room without waiting. */
void out_ok(struct out *o, uint32_t conn, uint32_t seq);

#endif
