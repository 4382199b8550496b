/* small.c - cases of small rooms: latency, rates, beside a large room, beside
 * many that wait, with many peers, read by many ranks. Run by all engines, see
 * rooms.c. */
#include "test/bench/bench.h"

#define RATE_ROOMS   20000
#define MIDDLE_ROOMS 5000
#define OPEN_RATE    5000
#define OPEN_ID      (UINT64_C(1) << 40) /* rooms that nobody commits */

static void pings(struct side *x, unsigned n, int series)
{
    for (unsigned i = 0; i < n; i++)
        one_room(x, POOL_SMALL, 1, false, series);
}

void latency_round(struct side *x, unsigned round)
{
    for (unsigned i = 0; i < PINGS; i++) {
        one_room(x, POOL_SMALL, 1, false, S_ROOM);
        am_ping(x, false, S_AM);
    }
    for (unsigned i = 0; i < PINGS; i++)
        tcp_ping(x);
    for (unsigned i = 0; i < PINGS; i++)
        am_ping(x, true, S_AM_SPIN);
    for (unsigned i = 0; i < PINGS; i++)
        one_room(x, POOL_BLOCK, BLOCK_ROWS, false, S_BLOCK);
    tcp_move(x, BULK_BYTES, 1 << 20, S_TCP + 1);
}

void block_copied_round(struct side *x, unsigned round)
{
    for (unsigned i = 0; i < PINGS; i++) {
        one_room(x, POOL_BLOCK, BLOCK_ROWS, false, S_BLOCK_COPIED);
        am_ping(x, false, S_AM_COPIED);
    }
}

void rate_round(struct side *x, unsigned round)
{
    rate(x, POOL_SMALL, RATE_ROOMS, S_RATE);
    chain(x, RATE_ROOMS);
    if (x->which == LANG)
        note(x, S_PACKET, bare_packets(RATE_ROOMS));
    meet(x);
}

void middle_round(struct side *x, unsigned round)
{
    rate(x, POOL_MIDDLE, MIDDLE_ROOMS, S_MIDDLE);
    tcp_move(x, (size_t)MIDDLE_ROOMS * MIDDLE_BYTES, 1 << 20, S_MIDDLE_TCP);
}

/* beside a large room */

void beside_round(struct side *x, unsigned round)
{
    mmx_room r;
    bool over = false;

    pings(x, 100, S_ALONE);
    next_room(x);
    x->s->go_on = true;
    if (x->which == ENC) {
        r = announce(x->e, POOL_ROWS, x->s->id, BULK_ROWS, 0);
        must(mmx_wait_room(x->e->m, r, MMX_WANTED, ROOM_MS), "wanted");
    } else {
        r = request(x->e, POOL_ROWS, x->s->id, BULK_ROWS);
    }
    meet(x);
    if (x->which == ENC)
        must(mmx_commit_final(x->e->m, r, 0, BULK_ROWS, BULK_ROWS, NULL, 0),
            "commit");
    for (;;) {
        struct mmx_state st;

        if (x->which == LANG)
            x->s->go_on = mmx_poll(x->e->m, &r, 1, &st) != MMX_SUCCESS;
        meet(x);
        over = !x->s->go_on;
        meet(x);
        if (over)
            break;
        one_room(x, POOL_SMALL, 1, false, S_BESIDE);
    }
    /* The encoder has finished long before, and has swept its other rooms. */
    if (x->which == LANG)
        must(mmx_release(x->e->m, r, MMX_ALL, 0), "release");
    sweep(x->e);
    tcp_move(x, BULK_BYTES, 1 << 20, S_TCP + 1);
}

/* ranks */

static mmx_room attach(struct side *x, int pool)
{
    struct mmx_attach a = {.size = sizeof a,
        .id = x->s->id,
        .pool = x->e->pools[pool].id,
        .rights = MMX_READ,
        .encoder = x->e->encoder};
    mmx_room r;

    must(mmx_attach(x->e->m, &a, &r), "attach");
    return r;
}

static mmx_room read_by(struct side *x, int pool, uint32_t rows, uint16_t ranks)
{
    struct mmx_request q = {.size = sizeof q,
        .id = x->s->id,
        .pool = x->e->pools[pool].id,
        .rows = rows,
        .readers = (uint16_t)(ranks - 1),
        .encoder = x->e->encoder};
    mmx_room r;

    if (x->which != LANG)
        return attach(x, pool);
    must(mmx_request(x->e->m, &q, &r), "request");
    return r;
}

static void tp_room(
    struct side *x, int pool, uint32_t rows, uint16_t ranks, int series)
{
    unsigned rank = x->which == LANG ? 0 : (unsigned)(x->which - SIDES + 1);
    uint64_t last = 0;
    mmx_room r;

    next_room(x);
    if (x->which == ENC) {
        r = announce(x->e, pool, x->s->id, rows, 0);
        send_room(x, r, rows);
    } else if (rank < ranks) {
        r = read_by(x, pool, rows, ranks);
        x->s->ready[rank] = await_room(x, r);
        must(mmx_release(x->e->m, r, MMX_ALL, 0), "release");
    } else {
        meet(x);
    }
    meet(x);
    for (unsigned i = 0; i < ranks; i++)
        if (x->s->ready[i] > last)
            last = x->s->ready[i];
    if (x->which == LANG)
        note(x, series, last - x->s->stamp);
}

void tp_round(struct side *x, unsigned round)
{
    tp_room(x, POOL_ROWS, TP_ROWS, 1, S_TP);
    tp_room(x, POOL_ROWS, TP_ROWS, RANKS, S_TP + 2);
    for (int i = 0; i < 50; i++) {
        tp_room(x, POOL_SMALL, 1, 1, S_TP + 1);
        tp_room(x, POOL_SMALL, 1, RANKS, S_TP + 3);
    }
}

/* beside many that wait */

const uint32_t open_steps[STEPS] = {10, 100, 1000, OPEN_MAX};
static mmx_room waiting[OPEN_MAX];

/* Takes the answers after each 1,024 rooms: libmmx keeps 8,192 messages without
 * one. */
static void pace(struct side *x, uint32_t i)
{
    struct mmx_event ev[IN_FLIGHT];

    if (i % 1024 == 0)
        while (must(mmx_wait(x->e->m, ev, IN_FLIGHT, 20), "wait") > 0)
            ;
}

/* Requests and announces rooms that get no further. */
static void open_more(struct side *x, uint64_t base, uint32_t from, uint32_t to)
{
    next_room(x);
    for (uint32_t i = from; i < to; i++) {
        if (x->which == ENC) {
            waiting[i] = announce(x->e, POOL_OPEN, base + i, 1, 0);
            continue;
        }
        pace(x, i);
        waiting[i] = request(x->e, POOL_OPEN, base + i, 1);
    }
    for (uint32_t i = from; i < to; i++)
        must(mmx_wait_room(x->e->m, waiting[i],
                 x->which == ENC ? MMX_WANTED : MMX_LENGTH, ROOM_MS),
            "an open room");
    sweep(x->e);
    meet(x);
}

/* Gives the rooms up: first the language side, then the encoder, for which some
 * have ended already. */
static void close_all(struct side *x)
{
    for (int side = SIDES - 1; side >= 0; side--) {
        for (uint32_t i = 0; x->which == side && i < OPEN_MAX; i++) {
            pace(x, i);
            (void)mmx_release(x->e->m, waiting[i], MMX_ALL, 0);
        }
        pace(x, 0);
        meet(x);
    }
}

void open_round(struct side *x, unsigned round)
{
    uint32_t from = 0;

    for (int i = 0; i < STEPS; i++) {
        uint64_t used;

        open_more(x, OPEN_ID + round * OPEN_MAX, from, open_steps[i]);
        from = open_steps[i];
        pings(x, 200, S_OPEN_ROOM + i);
        meet(x);
        used = daemons_cpu(x);
        rate(x, POOL_SMALL, OPEN_RATE, S_OPEN_RATE + i);
        if (x->which == LANG)
            note(x, S_OPEN_CPU + i, (daemons_cpu(x) - used) / OPEN_RATE);
    }
    if (x->which == LANG && round == 0)
        for (int i = 0; i < SIDES; i++)
            x->s->rss_open[i] = rss_outside(x->s->pids[i]);
    meet(x);
    close_all(x);
}

/* with many peers */

/* The first encoder has all destinations except the last one, which has the
 * second encoder for itself. */
void peers_round(struct side *x, unsigned round)
{
    unsigned last = x->w->langs - 1;

    for (unsigned i = 1; round == 0 && i < last; i++) {
        if (x->which == LANG)
            x->e = &x->ends[i];
        pings(x, 1, S_PEER_ROOM);
    }
    if (round == 0 && x->which == LANG)
        x->s->series[S_PEER_ROOM].count = 0;
    for (int many = 1; many >= 0; many--) {
        x->e = &x->ends[many ? 0 : x->which == ENC ? 1 : last];
        pings(x, 200, S_PEER_ROOM + many);
        rate(x, POOL_SMALL, OPEN_RATE, S_PEER_RATE + many);
    }
    if (x->which == LANG)
        x->s->rss_peers = rss_outside(x->s->pids[0]);
    x->e = &x->ends[0];
}

/* for instructions */

unsigned counted_rooms;

void count_round(struct side *x, unsigned round)
{
    rate(x, POOL_SMALL, counted_rooms, S_COUNTED);
}
