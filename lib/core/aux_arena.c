/* aux_arena.c - see aux_arena.h. Rejected: one fixed piece per room. 32 KiB for
 * every room is more memory than everything else together. */
#include "core/aux_arena.h"

#include "base/check.h"

void aux_init(
    struct aux_arena *a, struct slab *s, const struct conf *c, uint64_t seed)
{
    share_init(&a->share, s, "limits.aux_total", c->limit_aux_total / AUX_CHUNK,
        AUX_CHUNK, seed);
    a->free = a->share.total;
    a->bytes = slab_take(s, a->free, AUX_CHUNK);
    slots_init(&a->chunks, s, a->free);
}

static void drop_chunks(struct aux_arena *a, struct aux *x)
{
    for (uint32_t n = aux_chunks(x->len); n > 0; n--) {
        uint32_t c = x->head;

        CHECK(c < a->chunks.max && a->free < a->chunks.max,
            "aux has chunk %u, %u are free", c, a->free);
        x->head = a->chunks.next[c];
        slots_give(&a->chunks, c);
        a->free++;
    }
    x->len = 0;
}

void aux_drop(struct aux_arena *a, struct aux *x)
{
    share_give(&a->share, x->who, aux_chunks(x->len) + x->reserved);
    drop_chunks(a, x);
    x->reserved = 0;
}

bool aux_reserve(struct aux_arena *a, struct aux *x, uint64_t who, uint32_t len)
{
    CHECK(x->len == 0 && x->reserved == 0, "aux of %u bytes is reserved again",
        x->len);
    if (!share_take(&a->share, who, aux_chunks(len)))
        return false;
    x->who = who;
    x->reserved = aux_chunks(len);
    return true;
}

bool aux_set(
    struct aux_arena *a, struct aux *x, uint64_t who, struct span bytes)
{
    uint32_t n = aux_chunks(bytes.len), *to = &x->head;
    uint32_t had = aux_chunks(x->len) + x->reserved;

    CHECK(had == 0 || x->who == who, "aux of another is replaced");
    if (n > had && !share_take(&a->share, who, n - had))
        return false;
    x->who = who;
    x->reserved = 0;
    drop_chunks(a, x);
    if (n < had)
        share_give(&a->share, who, had - n);
    x->len = bytes.len;
    a->free -= n;
    for (uint32_t at = 0; at < bytes.len; at += AUX_CHUNK) {
        uint32_t c = *to = slots_take(&a->chunks);

        CHECK(c != NONE, "aux chunks: %u counted free, none found", a->free);
        memcpy(a->bytes + (size_t)c * AUX_CHUNK, bytes.p + at,
            min_u32(AUX_CHUNK, bytes.len - at));
        to = &a->chunks.next[c];
    }
    return true;
}

struct span aux_get(
    const struct aux_arena *a, const struct aux *x, uint8_t *out)
{
    uint32_t c = x->head;

    CHECK(x->len <= AUX_MAX, "aux of %u bytes", x->len);
    for (uint32_t at = 0; at < x->len; at += AUX_CHUNK) {
        memcpy(out + at, a->bytes + (size_t)c * AUX_CHUNK,
            min_u32(AUX_CHUNK, x->len - at));
        c = a->chunks.next[c];
    }
    return span_of(out, x->len);
}
