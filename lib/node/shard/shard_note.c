/* shard_note.c - notes, from a shard to the loop. Below all other files of the
 * shard, which call it. The shard's owner; shard_inline(), which says who that
 * is, in any thread.
 *
 * Invariants: notes keep their order and none is lost. A shard waits for the
 * loop only while the ring is full; the ring has room for two notes of each
 * slot and for those of one ring of orders. The loop never waits for a shard,
 * as its turns are short. */
#include "node/shard/shard_in.h"

#include "base/check.h"

#include <poll.h>

bool notes_high(struct shard *s)
{
    return !ring_fits(&s->out, s->out.mask / 2);
}

void notes_tell(struct shard *s)
{
    if (s->noted)
        wake_up(s->conf.wake);
    s->noted = false;
}

void shard_notify(struct shard *s, const struct data_note *n)
{
    while (!ring_push(&s->out, n)) {
        if (atomic_load_explicit(&s->stop, memory_order_relaxed))
            return; /* the loop has ended, which read them */
        CHECK(!shard_inline(s), "the loop waits for itself to read notes");
        notes_tell(s);
        poll(NULL, 0, 1);
    }
    s->noted = true;
}

bool shard_inline(const struct shard *s)
{
    /* Acquire order: pass_to() has released the owner and the whole shard. */
    return atomic_load_explicit(&s->owner, memory_order_acquire) == OWNER_LOOP;
}
