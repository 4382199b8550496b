/* room.c - both engines of one room in one process, as users of the library
 * alone: what it does when one of its calls fails (test_each_call.py).
 *
 *   room ENCODED LANGD ENCODER ID     the sockets, a name and a room
 *
 * Exit status 0: every row came. 1: a call of the library has failed; stderr
 * says which, and why. 2: a row is wrong, or the process kept a descriptor of
 * the library's after its handles were closed. One thread. */
#include "client/mmx.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS      300
#define ROW_BYTES 64
#define LIMIT_MS  5000
#define TURN_MS   50

enum { ENC, LM };

struct engine {
    mmx *m;
    struct mmx_pool pool;
    mmx_room room;
};

static uint8_t rows[ROWS][ROW_BYTES], came[ROWS][ROW_BYTES];

/* Reports a call that failed. True if it did not. */
static bool ok(const struct engine *e, const char *call, int err)
{
    char why[256] = "";

    if (err >= 0)
        return true;
    if (e->m)
        mmx_error_text(e->m, why, sizeof why);
    fprintf(stderr, "%s: %s: %s: %m\n", call, mmx_reason(err, NULL, NULL), why);
    return false;
}

/* Waits for the room of one engine, and meanwhile sends what either socket has
 * kept back. */
static bool wait(struct engine both[2], int at, uint32_t what, const char *call)
{
    int err = -MMX_E_TIMEOUT;

    for (int i = 0; err == -MMX_E_TIMEOUT && i < LIMIT_MS / TURN_MS; i++) {
        mmx_cork(both[!at].m);
        mmx_uncork(both[!at].m);
        err = mmx_wait_room(both[at].m, both[at].room, what, TURN_MS);
    }
    return ok(&both[at], call, err);
}

static bool join(struct engine *e, int role, const char *socket)
{
    char why[256] = "";
    struct mmx_opt o = {.size = sizeof o,
        .role = role,
        .socket = socket,
        .engine = "each",
        .timeout_ms = LIMIT_MS,
        .why = why,
        .why_size = sizeof why};
    int err = mmx_open(&o, &e->m);

    if (err < 0) {
        fprintf(
            stderr, "mmx_open: %s: %s: %m\n", mmx_reason(err, NULL, NULL), why);
        return false;
    }
    e->pool.size = sizeof e->pool;
    return ok(e, "mmx_pool", mmx_pool(e->m, NULL, NULL, LIMIT_MS, &e->pool));
}

static bool announce(struct engine *e, uint64_t id)
{
    struct mmx_announce a = {.size = sizeof a,
        .id = id,
        .pool = e->pool.id,
        .rows = ROWS,
        .aux = "grid",
        .aux_len = 4};

    return ok(e, "mmx_announce", mmx_announce(e->m, &a, &e->room));
}

static bool encode(struct engine *e)
{
    return ok(e, "mmx_scatter",
               mmx_scatter(e->m, e->room, NULL, 0, ROWS, rows, 0)) &&
           ok(e, "mmx_commit_final",
               mmx_commit_final(e->m, e->room, 0, ROWS, ROWS, NULL, 0));
}

static bool ask(struct engine *e, uint64_t id, const char *encoder)
{
    struct mmx_request q = {
        .size = sizeof q, .id = id, .pool = e->pool.id, .encoder = encoder};

    return ok(e, "mmx_request", mmx_request(e->m, &q, &e->room));
}

static bool take(struct engine *e)
{
    return ok(e, "mmx_gather",
               mmx_gather(e->m, e->room, NULL, 0, ROWS, came, 0)) &&
           ok(e, "mmx_release", mmx_release(e->m, e->room, MMX_ALL, 0));
}

static uint32_t descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    uint32_t n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    struct engine both[2] = {{0}};
    uint32_t before = descriptors();
    uint64_t id = argc == 5 ? strtoull(argv[4], NULL, 0) : 0;
    bool whole;

    if (!id)
        return 64;
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < ROW_BYTES; i++)
            rows[r][i] = (uint8_t)(id * 31 + (uint64_t)r * 7 + i);
    whole = join(&both[ENC], MMX_ENCODED, argv[1]) &&
            join(&both[LM], MMX_LANGD, argv[2]) &&
            ask(&both[LM], id, argv[3]) && announce(&both[ENC], id) &&
            wait(both, ENC, MMX_GRANTED, "wait for the grant") &&
            encode(&both[ENC]) &&
            wait(both, LM, MMX_READY, "wait for the rows") && take(&both[LM]) &&
            wait(both, ENC, MMX_DONE, "wait for the end");
    mmx_close(&both[ENC].m);
    mmx_close(&both[LM].m);
    if (whole && memcmp(rows, came, sizeof rows) != 0) {
        fprintf(stderr, "a row is wrong\n");
        return 2;
    }
    if (descriptors() != before) {
        fprintf(stderr, "%u descriptors, before %u\n", descriptors(), before);
        return 2;
    }
    return whole ? 0 : 1;
}
