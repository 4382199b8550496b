/* list.h - intrusive doubly linked list. A node is on one list or on none; a
 * node on none points to itself. Allocates nothing; no thread of its own. */
#ifndef MMX_BASE_LIST_H
#define MMX_BASE_LIST_H

#include "base/base.h"

struct list {
    struct list *next, *prev;
};

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

/* True if the node is on a list: the opposite of list_empty. */
static inline bool list_linked(const struct list *n)
{
    return n->next != n;
}

static inline void list_insert_before(struct list *at, struct list *n)
{
    n->next = at;
    n->prev = at->prev;
    at->prev->next = n;
    at->prev = n;
}

static inline void list_push_tail(struct list *l, struct list *n)
{
    list_insert_before(l, n);
}

static inline void list_push_head(struct list *l, struct list *n)
{
    list_insert_before(l->next, n);
}

/* Takes n off its list; no effect if it is on none. */
static inline void list_remove(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}

/* Takes and returns the first node, or NULL. */
static inline struct list *list_pop(struct list *l)
{
    struct list *n = l->next;

    if (n == l)
        return NULL;
    list_remove(n);
    return n;
}

#define LIST_ENTRY(node, type, member) CONTAINER_OF(node, type, member)
#define LIST_FIRST(l, type, member)                                            \
    (list_empty(l) ? NULL : LIST_ENTRY((l)->next, type, member))

/* n is a struct list *. In the SAFE form the body may remove n. */
#define LIST_FOREACH(n, l)                                                     \
    for (struct list *n = (l)->next; n != (l); n = n->next)
#define LIST_FOREACH_SAFE(n, l)                                                \
    for (struct list *n = (l)->next, *n##_next = n->next; n != (l);            \
         n = n##_next, n##_next = n->next)

#endif
