/* encoded_line_test.c - items in the order of their langds, compared with a
 * scan of all of them. */
#include "core/encode/encode.h"
#include "test/t.h"

#define ITEMS 200
#define MANY  10000

static struct item items[ITEMS];

static bool is_in(const struct item *it)
{
    return it->in_line.weight != 0;
}

static bool is_less(const struct in_line *a, const struct in_line *b)
{
    return a->there != b->there ? a->there < b->there
           : a->here != b->here ? a->here < b->here
                                : a->weight < b->weight;
}

static const struct item *first_of(uint32_t langd)
{
    const struct item *best = NULL;

    for (unsigned i = 0; i < ITEMS; i++)
        if (is_in(&items[i]) && items[i].in_line.langd == langd &&
            (!best || is_less(&items[i].in_line, &best->in_line)))
            best = &items[i];
    return best;
}

/* RULES 5.11 */
TEST(the_first_of_each_langd_is_found)
{
    struct item *line = NULL;
    uint64_t seed = 5;

    for (unsigned step = 0; step < 50000; step++) {
        struct item *it = &items[t_rand_below(&seed, ITEMS)];
        uint32_t langd = (uint32_t)t_rand_below(&seed, 4);

        if (is_in(it)) {
            line_take(&line, it);
            it->in_line.weight = 0;
        } else {
            it->in_line = (struct in_line){.langd = langd,
                .there = t_rand_below(&seed, 8),
                .here = t_rand_below(&seed, 8),
                .weight = t_rand(&seed) | 1};
            line_put(&line, it);
        }
        T_TRUE(line_first(line, langd) == first_of(langd));
        T_TRUE(line_first(line, 4) == NULL);
    }
}

static unsigned depth(const struct item *it)
{
    unsigned left = it ? depth(it->in_line.left) : 0;
    unsigned right = it ? depth(it->in_line.right) : 0;

    return it ? 1 + (left > right ? left : right) : 0;
}

TEST(a_line_is_flat_also_when_turns_come_in_order)
{
    struct item *all = calloc(MANY, sizeof(*all)), *line = NULL;
    uint64_t seed = 9;

    T_TRUE(all != NULL);
    for (unsigned i = 0; i < MANY; i++) {
        all[i].in_line.there = i;
        all[i].in_line.weight = t_rand(&seed);
        line_put(&line, &all[i]);
    }
    T_TRUE(depth(line) < 50);
    for (unsigned i = 0; i < MANY; i++) {
        T_TRUE(line_first(line, 0) == &all[i]);
        line_take(&line, &all[i]);
    }
    T_TRUE(line == NULL);
    free(all);
}
