/* slow.c - see slow.h. The slowest rooms are kept in order. A room that joins
 * them moves at most SLOW_MAX rows, and fewer rooms join as the list fills with
 * slower ones. Owned by the loop's thread. Rejected: a threshold above which
 * rooms are kept. What is slow for one fleet is usual for another. */
#include "core/slow.h"

#include "base/check.h"

static uint64_t took_ns(const struct ended *e)
{
    CHECK(e->of.done_ns >= e->of.opened_ns,
        "room ..%08x ended before it was opened", (uint32_t)e->room);
    return e->of.done_ns - e->of.opened_ns;
}

void slow_take(struct slow *s, const struct ended *e)
{
    uint32_t k;

    if (e->state == ROOM_FAILED) {
        s->failed[s->failed_count++ % SLOW_MAX] = *e;
        return;
    }
    if (s->slowest_count == SLOW_MAX &&
        took_ns(e) <= took_ns(&s->slowest[SLOW_MAX - 1]))
        return;
    if (s->slowest_count < SLOW_MAX)
        s->slowest_count++;
    for (k = s->slowest_count - 1;
         k > 0 && took_ns(&s->slowest[k - 1]) < took_ns(e); k--)
        s->slowest[k] = s->slowest[k - 1];
    s->slowest[k] = *e;
}

const struct ended *slow_row(const struct slow *s, uint32_t i)
{
    uint64_t n = i - s->slowest_count;

    CHECK(s->slowest_count <= SLOW_MAX, "%u rooms are the slowest",
        s->slowest_count);
    if (i < s->slowest_count)
        return &s->slowest[i];
    if (n >= min_u64(s->failed_count, SLOW_MAX))
        return NULL;
    return &s->failed[(s->failed_count - 1 - n) % SLOW_MAX];
}

/* A point in a room's life, and the purpose of the time before it. */
struct moment {
    size_t at; /* offset of its time in struct history */
    const char *text;
};
#define MOMENT(name) offsetof(struct history, name)
enum { MOMENTS_MAX = 6 };

static const struct moment of_encoded[MOMENTS_MAX] = {
    {MOMENT(length_ns), "until it was announced"},
    {MOMENT(granted_ns), "until it had source blocks"},
    {MOMENT(init_ns), "until it was asked for"},
    {MOMENT(first_ns), "until the first row could go"},
    {MOMENT(committed_ns), "until all rows were written"},
    {MOMENT(done_ns), "until READY was heard"},
};
static const struct moment of_langd[MOMENTS_MAX] = {
    {MOMENT(init_ns), "until the encoder was asked"},
    {MOMENT(length_ns), "until it was announced"},
    {MOMENT(granted_ns), "until it had blocks"},
    {MOMENT(first_ns), "until the first row landed"},
    {MOMENT(done_ns), "until all rows had landed"},
};

static uint64_t time_of(const struct ended *e, const struct moment *m)
{
    return *(const uint64_t *)(const void *)((const char *)&e->of + m->at);
}

const char *slow_longest(uint8_t role, const struct ended *e, uint64_t *us)
{
    const struct moment *all = role == ROLE_LANGD ? of_langd : of_encoded;
    const struct moment *longest = NULL;
    uint64_t most = 0;

    for (uint32_t i = 0; i < MOMENTS_MAX && all[i].text; i++) {
        uint64_t at = time_of(e, &all[i]), from = e->of.opened_ns;

        for (uint32_t k = 0; k < MOMENTS_MAX && all[k].text; k++)
            if (time_of(e, &all[k]) < at)
                from = max_u64(from, time_of(e, &all[k]));
        if (at > from && at - from > most) {
            most = at - from;
            longest = &all[i];
        }
    }
    *us = most / 1000;
    if (longest && longest->at == MOMENT(done_ns) && e->state == ROOM_FAILED)
        return "until it failed";
    return longest ? longest->text : "";
}
