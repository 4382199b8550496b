/* heap.c - see heap.h. Belongs to the heap's owner; no locks. Rejected: a
 * sorted list. Rooms join a queue late and at any age. */
#include "base/heap.h"

#include "base/check.h"

static void place(struct heap_node **nodes, struct heap_node *n, uint32_t i)
{
    nodes[i] = n;
    n->at = i + 1;
}

static void sift(struct heap *h, struct heap_node *n, uint32_t i)
{
    struct heap_node **nodes = h->nodes;
    uint32_t len = h->len;
    uint64_t key = n->key;

    for (struct heap_node *up; i > 0 && (up = nodes[(i - 1) / 2])->key > key;
         i = (i - 1) / 2)
        place(nodes, up, i);
    for (uint32_t c; (c = 2 * i + 1) < len; i = c) {
        if (c + 1 < len && nodes[c + 1]->key < nodes[c]->key)
            c++;
        if (nodes[c]->key >= key)
            break;
        place(nodes, nodes[c], i);
    }
    place(nodes, n, i);
}

void heap_set(struct heap *h, struct heap_node *n, uint64_t key)
{
    n->key = key;
    if (!n->at) {
        CHECK(h->len < h->cap, "heap of %u is full", h->cap);
        h->len++;
        n->at = h->len;
        h->nodes[h->len - 1] = n;
    }
    sift(h, n, n->at - 1);
}

void heap_take(struct heap *h, struct heap_node *n)
{
    uint32_t i = n->at - 1;
    struct heap_node *last;

    CHECK(n->at && i < h->len && h->nodes[i] == n, "node %u of %u", i, h->len);
    n->at = 0;
    last = h->nodes[--h->len];
    if (last != n)
        sift(h, last, i);
}
