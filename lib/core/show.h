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
/* Begins the row of an open room. peer: NULL at encoded; state: NULL as it
 * is. The id is what opens a room, so other users are shown the end of it. */
void show_room(struct rows_out *s, const struct show_at *at, uint64_t now_ns,
    const struct room *r, const struct ended *h, const char *peer,
    const char *state);

#endif
