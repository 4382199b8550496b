/* memory_test.c - what is remembered for whom, and what is evicted. */
#include "core/memory.h"

#include "test/slab.h"
#include "test/t.h"

#define CAP 8

static struct memory *memory(void)
{
    static struct memory m;
    struct slab s = {0};

    memory_init(&m, &s, CAP, sizeof(struct tomb), 1, 100);
    s = slab_fresh(s.used);
    memory_init(&m, &s, CAP, sizeof(struct tomb), 1, 100);
    return &m;
}

static bool has(const struct memory *m, uint64_t id)
{
    return memory_get(m, 1, id, 0) != NULL;
}

TEST(the_oldest_of_the_holder_with_most_is_evicted)
{
    struct memory *m = memory();

    (void)tomb_put(m, 0, 1, 0, 1, 0, 0); /* of holder 1, the oldest */
    for (uint64_t id = 2; id <= CAP; id++)
        (void)tomb_put(m, 0, id, 0, 2, 0, 0);
    T_TRUE(has(m, 1) && has(m, 2));
    for (uint64_t id = 100; id < 110; id++)
        (void)tomb_put(m, 0, id, 0, 2, 0, 0);
    T_TRUE(has(m, 1) && has(m, 103) && has(m, 109) && !has(m, 102));
    for (uint64_t id = 200; id < 202; id++)
        (void)tomb_put(m, 0, id, 0, 1, 0, 0);
    T_TRUE(has(m, 1) && has(m, 200) && has(m, 105) && !has(m, 104));
    T_EQ_U64(m->used, CAP);
}

/* RULES 5.19, 9.4 */
TEST(what_has_expired_is_evicted_before_what_has_not)
{
    struct memory *m = memory();

    for (uint64_t id = 1; id <= 3; id++)
        (void)tomb_put(m, 0, id, 0, 1, 0, 0);
    for (uint64_t id = 11; id <= 18; id++)
        (void)tomb_put(m, 100, id, 0, 2, 0, 0);
    for (uint64_t id = 11; id <= 18; id++)
        T_TRUE(memory_get(m, 100, id, 0) != NULL);
    T_EQ_U64(m->forgotten, 0);
    (void)tomb_put(m, 100, 19, 0, 3, 0, 0);
    T_EQ_U64(m->forgotten, 1);
}

TEST_WITH(an_entry_expires_and_is_put_anew, struct memory *m, memory())
{
    (void)tomb_put(m, 0, 1, 7, 1, 3, 4);
    T_TRUE(memory_get(m, 99, 1, 7) && !memory_get(m, 99, 1, 8));
    T_TRUE(!memory_get(m, 100, 1, 7));
    T_EQ_U64(tomb_put(m, 100, 1, 7, 2, 5, 6)->owner, NONE);
    T_EQ_U64(((struct tomb *)memory_get(m, 199, 1, 7))->state, 5);
    T_EQ_U64(m->used, 1);
    memory_forget(m, 1, 7);
    T_TRUE(m->used == 0 && !memory_get(m, 100, 1, 7));
}

TEST(entries_of_one_id_are_chained_from_the_latest)
{
    struct memory *m = memory();
    struct tomb t = {.memo = {.id = 1}}, *got[3];

    for (uint8_t i = 0; i < 3; i++) {
        t.state = i;
        got[i] = memory_put(m, 0, &t, i);
    }
    T_TRUE(memory_get(m, 0, 1, 0) == got[2]);
    T_TRUE(memory_next(m, 0, got[2]) == got[1]);
    memory_drop(m, got[1]);
    T_TRUE(memory_next(m, 0, got[2]) == got[0]);
    memory_drop(m, got[2]);
    T_TRUE(memory_get(m, 0, 1, 0) == got[0]);
    T_TRUE(memory_next(m, 0, got[0]) == NULL);
}
