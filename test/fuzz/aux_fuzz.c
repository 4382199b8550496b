/* aux_fuzz.c - an aux that another engine could send.
 *
 * Holds: an aux that is accepted and has only known tags comes out of the
 * writer the same, byte for byte, since each content has only one form; and an
 * aux that was joined with its rest comes out of the split the same. One
 * thread. */
#include "base/check.h"
#include "client/mmx_aux.h"

#include <string.h>

enum { INPUT = 1 << 17 }; /* longest input of use */

static uint64_t values[INPUT / 8];
static uint8_t again[INPUT], whole[INPUT];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Joins and splits. data: 3 bytes for the length of the aux, the aux, its rest.
 */
static void split_again(const uint8_t *data, size_t size)
{
    size_t len =
        size < 3 ? 0 : (size_t)data[0] << 16 | (size_t)data[1] << 8 | data[2];
    const uint8_t *aux = data + 3, *rest;
    int n, cut_len;
    size_t cut, claimed;

    if (size < 3 || len > size - 3)
        return;
    rest = aux + len;
    claimed = size - 3 - len;
    n = mmx_aux_rest(aux, len, (uint32_t)claimed, 1);
    CHECK(n < 0 || (size_t)n <= claimed, "%d of %zu", n, claimed);
    n = mmx_aux_join(aux, len, rest, claimed, whole, sizeof whole);
    if (n < 0)
        return;
    cut_len = mmx_aux_split(whole, (size_t)n, again, &cut);
    CHECK(cut_len == (int)len && memcmp(again, aux, len) == 0, "%d of %zu",
        cut_len, len);
    CHECK((size_t)n - cut <= claimed &&
              memcmp(whole + cut, rest, (size_t)n - cut) == 0,
        "%d cut at %zu", n, cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int good = mmx_aux_check(data, size) == 0, total = 8, n;
    struct mmx_aux a;

    if (size > INPUT)
        return 0;
    split_again(data, size);
    mmx_aux_begin(&a, again, sizeof again);
    for (int tag = 1; tag <= MMX_AUX_REST;
         tag = tag == MMX_AUX_EXTRA ? MMX_AUX_REST : tag + 1) {
        n = mmx_aux_get(
            data, size, (enum mmx_aux_tag)tag, values, sizeof values);
        CHECK(good ? n >= 0 : n < 0, "tag %d: %d", tag, n);
        if (n > 0)
            (void)mmx_aux_put(&a, (enum mmx_aux_tag)tag, values, (size_t)n);
    }
    if (!good)
        return 0;
    total = mmx_aux_end(&a);
    CHECK(total >= 8 && (size_t)total <= size, "%d of %zu", total, size);
    CHECK((size_t)total < size || memcmp(again, data, size) == 0,
        "%zu bytes differ", size);
    return 0;
}
