/* shard_note.c - notes, from a shard to the loop: through the ring, and through
 * the backlog while the ring is full. Below all other files of the shard, which
 * call it. The shard's owner; shard_inline(), which says who that is, in any
 * thread.
 *
 * Invariants: notes keep their order and none is lost. A shard waits for the
 * loop only while the backlog is full, which has room for two notes of each
 * slot and for those of one ring of orders. */
#include "node/shard/shard_in.h"

#include "base/check.h"

#include <poll.h>

void notes_move(struct shard *s)
{
    struct backlog *b = &s->backlog;

    while (b->len > 0 && ring_push(&s->out, &b->notes[b->head])) {
        b->head = (b->head + 1) % b->cap;
        b->len--;
        s->noted = true;
    }
}

void notes_turn(struct shard *s)
{
    notes_move(s);
    if (s->backlog.len > 0) {
        atomic_store(&s->starved, true);
        atomic_thread_fence(memory_order_seq_cst); /* then the ring's head */
        notes_move(s);
    }
    if (s->noted)
        wake_up(s->conf.wake);
    s->noted = false;
}

bool notes_high(const struct shard *s)
{
    return s->backlog.len > s->backlog.cap / 2;
}

void shard_notify(struct shard *s, const struct data_note *n)
{
    struct backlog *b = &s->backlog;

    if (b->len == 0 && ring_push(&s->out, n)) {
        s->noted = true;
        return;
    }
    while (b->len == b->cap) {
        if (atomic_load_explicit(&s->stop, memory_order_relaxed))
            return; /* notes are no longer read */
        s->noted = true;
        notes_turn(s);
        if (b->len == b->cap)
            poll(NULL, 0, 1);
    }
    CHECK(b->len < b->cap, "%u notes wait", b->len);
    b->notes[(b->head + b->len++) % b->cap] = *n;
}

bool shard_inline(const struct shard *s)
{
    return atomic_load_explicit(&s->owner, memory_order_acquire) == OWNER_LOOP;
}
