/* local_fuzz.c - bytes that an engine could send, through the local codec.
 *
 * Holds: every call consumes bytes, so that a packet ends; what is decoded can
 * be encoded into the bytes of one packet, and decodes from them the same.
 * Comparing encodings instead of structs needs no list of fields that could
 * fall behind the table. One thread. */
#include "base/check.h"
#include "wire/wire.h"

/* The largest message, EVENT, is 50 KiB; a packet holds any one message. */
static uint8_t first[LOCAL_PACKET_MAX], second[LOCAL_PACKET_MAX];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const struct local_msg *m)
{
    struct writer a = writer_of(first, sizeof(first));
    struct writer b = writer_of(second, sizeof(second));
    struct local_msg again;
    struct reader r;

    CHECK(local_put(&a, m), "%s does not fit", local_name(m->type));
    r = reader_of(first, a.len);
    CHECK(local_get(&r, &again) == OK, "%s", local_name(m->type));
    CHECK(r.at == r.len, "%zu of %zu", r.at, r.len);
    CHECK(again.type == m->type && again.seq == m->seq, "%d", again.type);
    CHECK(local_put(&b, &again), "%s does not fit", local_name(m->type));
    CHECK(a.len == b.len && memcmp(first, second, a.len) == 0,
        "%s: %zu and %zu bytes", local_name(m->type), a.len, b.len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reader r = reader_of(data, size);
    struct local_msg m;

    while (true) {
        size_t at = r.at;
        enum err e = local_get(&r, &m);

        if (e == ERR_NOT_READY)
            break;
        CHECK(r.at > at && r.at <= r.len, "%zu after %zu", r.at, at);
        if (e == OK)
            round_trip(&m);
        else
            CHECK(e == ERR_MALFORMED || e == ERR_BUSY, "%s", err_name(e));
    }
    return 0;
}
