/* peer_fuzz.c - bytes that another daemon could send, through the peer codec.
 *
 * Holds: as in local_fuzz.c, and the header's epochs, room and generation
 * survive as well. One thread. */
#include "base/check.h"
#include "wire/wire.h"

static uint8_t first[PEER_PACKET_MAX], second[PEER_PACKET_MAX];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const struct peer_msg *m)
{
    struct writer a = writer_of(first, sizeof(first));
    struct writer b = writer_of(second, sizeof(second));
    struct peer_msg again;
    struct reader r;

    CHECK(peer_put(&a, m), "%s does not fit", peer_name(m->type));
    r = reader_of(first, a.len);
    CHECK(peer_get(&r, &again) == OK, "%s", peer_name(m->type));
    CHECK(r.at == r.len, "%zu of %zu", r.at, r.len);
    CHECK(again.type == m->type && again.seq == m->seq, "%d", again.type);
    CHECK(again.from_epoch == m->from_epoch && again.to_epoch == m->to_epoch,
        "%s", peer_name(m->type));
    CHECK(again.room == m->room && again.generation == m->generation, "%s",
        peer_name(m->type));
    CHECK(peer_put(&b, &again), "%s does not fit", peer_name(m->type));
    CHECK(a.len == b.len && memcmp(first, second, a.len) == 0,
        "%s: %zu and %zu bytes", peer_name(m->type), a.len, b.len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reader r = reader_of(data, size);
    struct peer_msg m;

    while (true) {
        size_t at = r.at;
        enum err e = peer_get(&r, &m);

        if (e == ERR_NOT_READY)
            break;
        CHECK(r.at > at && r.at <= r.len, "%zu after %zu", r.at, at);
        if (e == OK)
            round_trip(&m);
        else
            CHECK(e == ERR_MALFORMED || e == ERR_BUSY || e == ERR_VERSION, "%s",
                err_name(e));
    }
    return 0;
}
