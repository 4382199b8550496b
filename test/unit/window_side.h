/* window_side.h - shared by the tests of client/window.h: a whole run, as
 * mmx_plan_run does it under its lock. */
#ifndef MMX_TEST_WINDOW_SIDE_H
#define MMX_TEST_WINDOW_SIDE_H

#include "client/window.h"

/* Checks, then copies in small steps, so that the cursor is used. */
static inline enum err window_run(const struct mmx_plan *plan,
    const struct window_sources *from, const struct mmx_tensor *to,
    struct mmx_trouble *trouble)
{
    struct window_cursor c = {0};
    struct window_piece pieces[8];
    uint32_t count = 1;
    enum err e = window_check(plan, from, to, trouble);

    while (e == OK && count > 0) {
        e = window_pieces(
            plan, from, to, &c, pieces, ARRAY_LEN(pieces), &count);
        if (e == OK)
            window_copy(pieces, count);
    }
    return e;
}

#endif
