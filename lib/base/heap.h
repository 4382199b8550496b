/* heap.h - binary heap of intrusive nodes, least key first. A node has its
 * position, so that any node can be moved or removed in O(log n). The owner
 * provides the array, which never grows. For "greatest first" store ~key. */
#ifndef MMX_BASE_HEAP_H
#define MMX_BASE_HEAP_H

#include "base/slab.h"

struct heap_node {
    uint64_t key;
    uint32_t at; /* position + 1; 0: on no heap */
};

struct heap {
    struct heap_node **nodes;
    uint32_t len, cap;
};

static inline bool heap_linked(const struct heap_node *n)
{
    return n->at != 0;
}

static inline struct heap_node *heap_first(const struct heap *h)
{
    return h->len ? h->nodes[0] : NULL;
}

/* Returns the least key, for a heap of times; TIME_NEVER: the heap is empty. */
static inline uint64_t heap_due(const struct heap *h)
{
    return h->len ? h->nodes[0]->key : TIME_NEVER;
}

/* Makes h an empty heap of at most cap nodes. */
static inline void heap_init(struct heap *h, struct slab *s, uint32_t cap)
{
    h->nodes = slab_take(s, cap, sizeof(struct heap_node *));
    h->len = 0;
    h->cap = cap;
}

/* Puts n into h under key, or moves it if it is in h already. More than cap
 * nodes are the owner's bug (CHECK). */
void heap_set(struct heap *h, struct heap_node *n, uint64_t key);

/* Takes n out of h. n must be in h. */
void heap_take(struct heap *h, struct heap_node *n);

/* Takes n out of h; no effect if it is on no heap. */
static inline void heap_remove(struct heap *h, struct heap_node *n)
{
    if (heap_linked(n))
        heap_take(h, n);
}

/* Puts n into h under key if `in`; takes it out otherwise. */
static inline void heap_place(
    struct heap *h, struct heap_node *n, bool in, uint64_t key)
{
    if (!in && !heap_linked(n))
        return;
    if (!in)
        heap_remove(h, n);
    else if (!heap_linked(n) || n->key != key)
        heap_set(h, n, key);
}

#endif
