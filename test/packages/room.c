/* room.c - a room by the installed C library, both sides in one program; as its
 * manual says: cc room.c $(pkg-config --cflags --libs mmx). Exit status 0 when
 * the rows that were read are those that were written. */
#include <mmx.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 500
#define ROW  2352
#define WAIT 30000

static uint16_t rows[ROWS * ROW], got[ROWS * ROW];

/* Returns what a call returned, or ends the program with its reason. */
static int sure(const char *call, int n)
{
    if (n < 0) {
        fprintf(stderr, "%s: %s\n", call, mmx_reason(n, NULL, NULL));
        exit(1);
    }
    return n;
}

static mmx *opened(int role, struct mmx_pool *pool)
{
    struct mmx_opt o = {.size = sizeof o, .role = role, .timeout_ms = 5000};
    mmx *m;

    sure("open", mmx_open(&o, &m));
    sure("pool", mmx_pool(m, "vit", "embedding:bf16:2352", 5000, pool));
    return m;
}

int main(int argc, char **argv)
{
    struct mmx_pool from = {.size = sizeof from}, to = {.size = sizeof to};
    mmx *enc = opened(MMX_ENCODED, &from), *lm = opened(MMX_LANGD, &to);
    uint64_t id = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    struct mmx_announce a = {
        .size = sizeof a, .id = id, .rows = ROWS, .pool = from.id};
    struct mmx_request q = {
        .size = sizeof q, .id = id, .encoder = "encoded-0", .pool = to.id};
    mmx_room source, room;

    for (size_t i = 0; i < ROWS * ROW; i++)
        rows[i] = (uint16_t)(i * 31);
    sure("request", mmx_request(lm, &q, &room));
    sure("announce", mmx_announce(enc, &a, &source));
    sure("granted", mmx_wait_room(enc, source, MMX_GRANTED, WAIT));
    sure("scatter", mmx_scatter(enc, source, NULL, 0, ROWS, rows, 0));
    sure("commit", mmx_commit_final(enc, source, 0, ROWS, ROWS, NULL, 0));
    sure("ready", mmx_wait_room(lm, room, MMX_READY, WAIT));
    sure("gather", mmx_gather(lm, room, "embedding", 0, ROWS, got, 0));
    sure("release", mmx_release(lm, room, MMX_ALL, 0));
    sure("done", mmx_wait_room(enc, source, MMX_DONE, WAIT));
    sure("release", mmx_release(enc, source, MMX_ALL, 0));
    mmx_close(&lm);
    mmx_close(&enc);
    return memcmp(rows, got, sizeof rows) != 0;
}
