/* show.h - the common first columns of rows, to which a role adds its own;
 * brain_show() makes the reports. Pure. */
#ifndef MMX_CORE_SHOW_H
#define MMX_CORE_SHOW_H

#include "core/head.h"

/* Appends a number of rows, unless it is unknown. */
void show_rows(struct rows_out *s, const char *name, uint32_t rows);
/* True if one more place may be visited in this call; counts it. */
static inline bool show_place(struct show_at *at)
{
    if (at->places == 0)
        return false;
    at->places--;
    return true;
}
/* True if the reader of the report may see the ids of user `who`. */
static inline bool shown_to(const struct show_at *at, uint64_t who)
{
    return at->uid == 0 || at->uid == who;
}
/* Shown instead of another user's id. */
#define OTHERS "-"
/* Appends the id of a room of user `who`, if the reader may see it. */
void show_room_id(
    struct rows_out *s, const struct show_at *at, uint64_t id, uint64_t who);
/* Begins the row of an open room. peer: NULL at encoded; state: NULL: its own.
 * An id may be enough to use a room, so other users do not see it. */
void show_room(struct rows_out *s, const struct show_at *at, uint64_t now_ns,
    const struct room *r, const struct history *h, const char *peer,
    const char *state);

#endif
