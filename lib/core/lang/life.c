/* life.c - moves a room from one state of life.def to the next, and keeps the
 * list of rooms to settle. All other files of the folder may call this one.
 * Owned by the loop's thread. */
#include "core/lang/lang.h"

void lroom_move(struct lroom *m, enum life to)
{
    static const uint8_t next[LIFE_COUNT] = {
#define TO(name)               (1 << LIFE_##name)
#define LIFE(name, next, text) next,
#include "core/lang/life.def"
#undef LIFE
#undef TO
    };

    CHECK(m->life < LIFE_COUNT && next[m->life] >> to & 1,
        "room ..%08x goes from life %u to %u", (uint32_t)m->r.id, m->life, to);
    m->life = (uint8_t)to;
}

void lroom_touch(struct langd *l, struct lroom *m)
{
    CHECK_ROOM(m);
    if (!list_linked(&m->r.todo))
        list_push_tail(&l->todo, &m->r.todo);
}
