/* large.c - cases of large rooms: all at once, resumed, in pieces while the
 * encoder still works, over several shards and destinations, and by size.
 * Run by both engines, see rooms.c. */
#include "test/bench/bench.h"

#include <time.h>

#define CHOSEN_ROOMS 2000
/* time in which an encoder makes its pieces */
#define OVER_NS (50 * NS_PER_MS)

static void bulk(struct side *x, unsigned round, int series, int cpu)
{
    uint64_t used;

    meet(x);
    used = daemons_cpu(x);
    one_room(x, POOL_ROWS, BULK_ROWS, round == 0, series);
    meet(x);
    if (x->which == LANG && round > 0)
        note(x, cpu, daemons_cpu(x) - used);
}

void bulk_round(struct side *x, unsigned round)
{
    bulk(x, round, S_BULK, S_BULK_CPU);
    if (opt.ucx)
        copy_bulk(x);
    tcp_bulk(x);
    zmq_bulk(x);
}

/* Both pairs have a key; the first one's rows are encrypted. */
void encrypted_round(struct side *x, unsigned round)
{
    bulk(x, round, S_ENCRYPTED, S_ENCRYPTED_CPU);
    x->e = &x->ends[1];
    bulk(x, round, S_PROVED, S_PROVED_CPU);
    x->e = &x->ends[0];
    sealed_bulk(x);
}

static void by_size(struct side *x, unsigned round, int series, int cpu)
{
    static const uint32_t rows[LENT_SIZES] = {8, 256, 3052, BULK_ROWS};
    uint64_t used;

    for (int i = 0; i < LENT_SIZES; i++) {
        meet(x);
        used = daemons_cpu(x);
        one_room(x, POOL_ROWS, rows[i], round == 0, series + i);
        meet(x);
        if (cpu && x->which == LANG && round > 0)
            note(x, cpu + i, daemons_cpu(x) - used);
    }
}

void copied_round(struct side *x, unsigned round)
{
    bulk(x, round, S_COPIED, S_COPIED_CPU);
    copy_bulk(x);
    by_size(x, round, S_HOST, 0);
}

/* Rows are read where the encoder wrote them. The language engine has mapped
 * and populated the encoder's pool before the first room. */
void lent_round(struct side *x, unsigned round)
{
    for (int i = 0; round == 0 && x->which == LANG && i < 400; i++) {
        sweep(x->e);
        usleep(5000);
    }
    by_size(x, round, S_LENT, S_LENT_CPU);
}

static void resume_room(struct side *x, int how, unsigned round)
{
    uint32_t granted = how == EXACT ? RESUME_ROWS : FIRST_ROWS;
    bool known = how != AT_COMMIT;
    uint64_t t;
    mmx_room r;

    next_room(x);
    if (x->which == ENC) {
        r = announce(x->e, POOL_ROWS, x->s->id, known ? RESUME_ROWS : 0,
            known ? 0 : RESUME_ROWS);
        if (round == 0)
            write_rows(x->e, r, RESUME_ROWS);
        send_room(x, r, RESUME_ROWS);
        return;
    }
    r = request(x->e, POOL_ROWS, x->s->id, granted);
    /* by then langd has answered LENGTH with the larger grant, too */
    if (known)
        must(mmx_wait_room(x->e->m, r, MMX_LENGTH, ROOM_MS), "length");
    t = await_room(x, r);
    note(x, S_RESUME + how, t - x->s->stamp);
    if (round == 0)
        check_rows(x->e, r, RESUME_ROWS);
    must(mmx_release(x->e->m, r, MMX_ALL, 0), "release");
}

void resume_round(struct side *x, unsigned round)
{
    for (int how = 0; how < RESUMES; how++)
        resume_room(x, how, round);
}

/* while the encoder works */

static void sleep_to(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / NS_PER_S), (long)(ns % NS_PER_S)};

    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void commit_pieces(struct side *x, mmx_room r)
{
    uint32_t each = SPREAD_ROWS / PIECES_DUE;
    uint64_t begin = now_ns();

    for (uint32_t i = 0; i + 1 < PIECES_DUE; i++) {
        must(mmx_commit(x->e->m, r, i * each, each), "commit");
        sleep_to(begin + (i + 1) * OVER_NS / (PIECES_DUE - 1));
    }
    x->s->stamp = now_ns();
    must(mmx_commit_final(
             x->e->m, r, SPREAD_ROWS - each, each, SPREAD_ROWS, NULL, 0),
        "commit");
}

static void piecewise(struct side *x, unsigned round)
{
    uint64_t t;
    mmx_room r;

    next_room(x);
    if (x->which == ENC) {
        r = announce(x->e, POOL_ROWS, x->s->id, SPREAD_ROWS, 0);
        if (round == 0)
            write_rows(x->e, r, SPREAD_ROWS);
        must(mmx_wait_room(x->e->m, r, MMX_WANTED, ROOM_MS), "wanted");
        meet(x);
        commit_pieces(x, r);
        must(mmx_wait_room(x->e->m, r, MMX_DONE, ROOM_MS), "done");
        sweep(x->e);
        return;
    }
    r = request(x->e, POOL_ROWS, x->s->id, SPREAD_ROWS);
    t = await_room(x, r);
    note(x, S_PIECEWISE, t - x->s->stamp);
    if (round == 0)
        check_rows(x->e, r, SPREAD_ROWS);
    must(mmx_release(x->e->m, r, MMX_ALL, 0), "release");
}

void overlap_round(struct side *x, unsigned round)
{
    one_room(x, POOL_ROWS, SPREAD_ROWS, round == 0, S_WHOLE);
    piecewise(x, round);
}

/* shards and destinations */

static void spread_encode(struct side *x, uint32_t n)
{
    uint32_t rows = SPREAD_ROWS / n;
    mmx_room r[16];

    for (uint32_t i = 0; i < n; i++)
        r[i] = announce(x->e, POOL_ROWS, x->s->id + i, rows, 0);
    for (uint32_t i = 0; i < n; i++)
        must(mmx_wait_room(x->e->m, r[i], MMX_WANTED, ROOM_MS), "wanted");
    meet(x);
    gap(x);
    x->s->stamp = now_ns();
    must(mmx_cork(x->e->m), "cork");
    for (uint32_t i = 0; i < n; i++)
        must(mmx_commit_final(x->e->m, r[i], 0, rows, rows, NULL, 0), "commit");
    must(mmx_uncork(x->e->m), "uncork");
    for (uint32_t i = 0; i < n; i++)
        must(mmx_wait_room(x->e->m, r[i], MMX_DONE, ROOM_MS), "done");
    sweep(x->e);
    meet(x);
    x->s->id += n;
}

/* Moves one room to each of n destinations, from ends[at] on. */
static void spread(struct side *x, unsigned at, uint32_t n, int series)
{
    uint32_t rows = SPREAD_ROWS / n;
    mmx_room r[16];

    next_room(x);
    if (x->which == ENC) {
        spread_encode(x, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        r[i] = request(&x->ends[at + i], POOL_ROWS, x->s->id + i, rows);
    meet(x);
    for (uint32_t i = 0; i < n; i++)
        must(mmx_wait_room(x->ends[at + i].m, r[i], MMX_READY, ROOM_MS),
            "ready");
    note(x, series, now_ns() - x->s->stamp);
    for (uint32_t i = 0; i < n; i++) {
        must(mmx_release(x->ends[at + i].m, r[i], MMX_ALL, 0), "release");
        sweep(&x->ends[at + i]);
    }
    meet(x);
}

void spread_round(struct side *x, unsigned round)
{
    for (int i = 0; i < SPREADS_SHARDS; i++) {
        x->e = &x->ends[i];
        one_room(x, POOL_ROWS, SPREAD_ROWS, round == 0, S_SPREAD + i);
    }
    x->e = &x->ends[0];
    spread(x, SPREADS_SHARDS, 4, S_SPREAD + DST_4);
    spread(x, SPREADS_SHARDS, 16, S_SPREAD + DST_16);
}

/* by carrier: in turns as short as can be, and each is first as often */

void chosen_round(struct side *x, unsigned round)
{
    for (unsigned k = 0; k < 3 * CHOICES; k++) {
        int by = (int)((k + round) % CHOICES);

        x->e = &x->ends[by];
        one_room(x, POOL_ROWS, SPREAD_ROWS, round == 0, S_CHOSEN + by);
    }
    for (unsigned k = 0; k < PINGS / 2 * CHOICES; k++) {
        int by = (int)((k + round) % CHOICES);

        x->e = &x->ends[by];
        one_room(x, POOL_SMALL, 1, false, S_CHOSEN_ROOM + by);
    }
    for (unsigned k = 0; k < 4 * CHOICES; k++) {
        int by = (int)((k + round) % CHOICES);

        x->e = &x->ends[by];
        rate(x, POOL_SMALL, CHOSEN_ROOMS, S_CHOSEN_RATE + by);
    }
    x->e = &x->ends[0];
}

/* by size */

const uint32_t size_rows[SIZES] = {1, 4, 16, 64, 512, 4096, BULK_ROWS};

void sizes_round(struct side *x, unsigned round)
{
    for (int i = 0; i < SIZES; i++) {
        one_room(x, POOL_ROWS, size_rows[i], false, S_SIZE + i);
        tcp_move(x, (size_t)size_rows[i] * ROW_BYTES, 1 << 20, S_SIZE_TCP + i);
    }
}
