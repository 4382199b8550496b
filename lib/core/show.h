/* show.h - rows that both brains show alike. Pure. */
#ifndef MMX_CORE_SHOW_H
#define MMX_CORE_SHOW_H

#include "core/head.h"
#include "core/move/pool.h"

const char *state_name(unsigned state);
/* A row count that may be unknown: left out then. */
void show_rows(struct rows_out *s, const char *name, uint32_t rows);
/* True if one more place may be looked at in this call; takes it. */
static inline bool show_place(struct show_at *at)
{
    if (at->places == 0)
        return false;
    at->places--;
    return true;
}
/* The id of a room of `who`. It is what opens the room, so other users are
 * shown the end of it only. */
void show_room_id(
    struct rows_out *s, const struct show_at *at, uint64_t id, uint64_t who);
/* The ended rooms, oldest first, as places from `base` on; the last ones. */
void show_history(struct rows_out *s, struct show_at *at, uint64_t base,
    const struct ended *history, uint64_t count, uint64_t limit);
/* Begins the row of a pool, with its number on the wire. */
void show_pool(struct rows_out *s, uint32_t number, const struct pool_meta *m,
    const struct pool *p);
void show_peers(
    struct rows_out *s, struct show_at *at, const struct peers *peers);
void show_stats(struct rows_out *s, const uint64_t *stats);

#endif
