/* heap.c - see heap.h. Belongs to the heap's owner; no locks. A sorted
 * list was rejected: rooms join a queue late and at any age. */
#include "base/heap.h"

#include "base/check.h"

static void place(struct heap *h, struct heap_node *n, uint32_t i)
{
    h->nodes[i] = n;
    n->at = i + 1;
}

static void sift(struct heap *h, struct heap_node *n, uint32_t i)
{
    while (i > 0 && h->nodes[(i - 1) / 2]->key > n->key) {
        place(h, h->nodes[(i - 1) / 2], i);
        i = (i - 1) / 2;
    }
    for (;;) {
        uint32_t c = 2 * i + 1;

        if (c + 1 < h->len && h->nodes[c + 1]->key < h->nodes[c]->key)
            c++;
        if (c >= h->len || h->nodes[c]->key >= n->key)
            break;
        place(h, h->nodes[c], i);
        i = c;
    }
    place(h, n, i);
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

void heap_remove(struct heap *h, struct heap_node *n)
{
    uint32_t i = n->at - 1;
    struct heap_node *last;

    if (!n->at)
        return;
    CHECK(i < h->len && h->nodes[i] == n, "node %u of %u", i, h->len);
    n->at = 0;
    last = h->nodes[--h->len];
    if (last != n)
        sift(h, last, i);
}
