/* show.h - the parts of rows that a role puts its own columns behind; the
 * reports are brain_show(). Pure. */
#ifndef MMX_CORE_SHOW_H
#define MMX_CORE_SHOW_H

#include "core/head.h"

const char *state_name(unsigned state);
/* Appends a number of rows, unless it is unknown. */
void show_rows(struct rows_out *s, const char *name, uint32_t rows);
/* True if one more place may be looked at in this call; takes it. */
static inline bool show_place(struct show_at *at)
{
    if (at->places == 0)
        return false;
    at->places--;
    return true;
}
/* True if the reader of the report may know the ids of what is `who`'s. */
static inline bool shown_to(const struct show_at *at, uint64_t who)
{
    return at->uid == 0 || at->uid == who;
}
/* What stands in place of another user's id. */
#define OTHERS "-"
/* Appends the id of a room that is `who`'s, as the reader may know it. */
void show_room_id(
    struct rows_out *s, const struct show_at *at, uint64_t id, uint64_t who);
/* Begins the row of an open room. peer: NULL at encoded; state: NULL as it
 * is. The id may be all that opens a room, so other users are not shown it. */
void show_room(struct rows_out *s, const struct show_at *at, uint64_t now_ns,
    const struct room *r, const struct ended *h, const char *peer,
    const char *state);

#endif
