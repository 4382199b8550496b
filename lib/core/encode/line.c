/* line.c - the items of a queue in the order of each langd (RULES 5.11). Owned
 * by the loop's thread.
 *
 * A treap: items are in order from left to right, and one has a greater weight
 * than those below it. Weights are drawn, so langds that choose turns cannot
 * make it deep. Rejected: a heap for each langd. Each would need an array for
 * all items. */
#include "core/encode/encode.h"

static bool before(const struct item *a, const struct item *b)
{
    const struct in_line *x = &a->in_line, *y = &b->in_line;

    if (x->langd != y->langd)
        return x->langd < y->langd;
    if (x->there != y->there)
        return x->there < y->there;
    return x->here != y->here ? x->here < y->here : x->weight < y->weight;
}

/* Returns the item's place, now or later: below all items that weigh more. */
static struct item **place(struct item **at, const struct item *it)
{
    while (*at && (*at)->in_line.weight > it->in_line.weight)
        at = before(it, *at) ? &(*at)->in_line.left : &(*at)->in_line.right;
    return at;
}

/* Splits t into two trees: the items before `it`, and the rest. */
static void split(struct item *t, const struct item *it, struct item **left,
    struct item **right)
{
    if (!t) {
        *left = *right = NULL;
    } else if (before(t, it)) {
        *left = t;
        split(t->in_line.right, it, &t->in_line.right, right);
    } else {
        *right = t;
        split(t->in_line.left, it, left, &t->in_line.left);
    }
}

/* Returns one tree of both; all of `left` is before all of `right`. */
static struct item *join(struct item *left, struct item *right)
{
    if (!left || !right)
        return left ? left : right;
    if (left->in_line.weight > right->in_line.weight) {
        left->in_line.right = join(left->in_line.right, right);
        return left;
    }
    right->in_line.left = join(left, right->in_line.left);
    return right;
}

void line_put(struct item **line, struct item *it)
{
    struct item **at = place(line, it);

    CHECK(*at != it, "an item of turn %llu is put in line twice",
        (unsigned long long)it->turn);
    split(*at, it, &it->in_line.left, &it->in_line.right);
    *at = it;
}

void line_take(struct item **line, struct item *it)
{
    struct item **at = place(line, it);

    CHECK(*at == it, "an item of turn %llu is not in line",
        (unsigned long long)it->turn);
    *at = join(it->in_line.left, it->in_line.right);
}

struct item *line_first(struct item *line, uint32_t langd)
{
    struct item *first = NULL;

    while (line) {
        bool earlier = line->in_line.langd < langd;

        first = earlier ? first : line;
        line = earlier ? line->in_line.right : line->in_line.left;
    }
    return first && first->in_line.langd == langd ? first : NULL;
}
