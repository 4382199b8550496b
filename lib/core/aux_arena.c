/* aux_arena.c - see aux_arena.h. One fixed piece per room was rejected: 32 KiB
 * times every room is more memory than all else together. */
#include "core/aux_arena.h"

#include "base/check.h"

void aux_init(struct aux_arena *a, struct slab *s, uint64_t bytes)
{
    a->chunks = a->free = (uint32_t)(bytes / AUX_CHUNK);
    a->bytes = slab_take(s, a->chunks, AUX_CHUNK);
    a->next = slab_take(s, a->chunks, sizeof(*a->next));
    a->first_free = 0;
    for (uint32_t i = 0; a->next && i < a->chunks; i++)
        a->next[i] = i + 1 < a->chunks ? i + 1 : NONE;
}

void aux_drop(struct aux_arena *a, struct aux *x)
{
    uint32_t n = div_up(x->len, AUX_CHUNK), tail = x->head;

    if (n == 0)
        return;
    for (uint32_t i = 1; i < n; i++)
        tail = a->next[tail];
    a->next[tail] = a->first_free;
    a->first_free = x->head;
    a->free += n;
    x->len = 0;
}

bool aux_set(struct aux_arena *a, struct aux *x, struct span bytes)
{
    uint32_t n = div_up(bytes.len, AUX_CHUNK), at = 0, c;

    if (n > a->free + div_up(x->len, AUX_CHUNK))
        return false;
    aux_drop(a, x);
    x->len = bytes.len;
    x->head = c = a->first_free;
    a->free -= n;
    while (at < bytes.len) {
        uint32_t len = min_u32(AUX_CHUNK, bytes.len - at);

        CHECK(c != NONE, "aux chunks: %u counted free, none found", a->free);
        memcpy(a->bytes + (size_t)c * AUX_CHUNK, bytes.p + at, len);
        at += len;
        a->first_free = a->next[c];
        c = a->first_free;
    }
    return true;
}

struct span aux_get(
    const struct aux_arena *a, const struct aux *x, uint8_t *out)
{
    uint32_t c = x->head;

    for (uint32_t at = 0; at < x->len; at += AUX_CHUNK) {
        memcpy(out + at, a->bytes + (size_t)c * AUX_CHUNK,
            min_u32(AUX_CHUNK, x->len - at));
        c = a->next[c];
    }
    return span_of(out, x->len);
}
