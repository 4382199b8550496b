/* aux_fuzz.c - an aux that another engine could send.
 *
 * Holds: what is accepted and has only known tags comes through the writer the
 * same, byte for byte, since there is one way to say a thing. One thread. */
#include "base/check.h"
#include "client/mmx_aux.h"

#include <string.h>

static uint64_t values[MMX_AUX_MAX / 8];
static uint8_t again[MMX_AUX_MAX];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int good = mmx_aux_check(data, size) == 0, total = 8, n;
    struct mmx_aux a;

    mmx_aux_begin(&a, again, sizeof again);
    for (int tag = 1; tag <= MMX_AUX_EXTRA; tag++) {
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
