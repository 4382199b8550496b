/* cases.c - what is measured. Both engines run every function here; `which`
 * says which part of it. They meet before each step, so neither needs to know
 * how far the other is. A die() in one ends both: the parent watches.
 *
 * Every case compares what it moved: the large rooms in the first round, the
 * small ones always, since their number is in their rows. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

static uint64_t word_at(uint64_t row, uint64_t column)
{
    return row * UINT64_C(0x9e3779b97f4a7c15) + column;
}

void sweep(struct side *x)
{
    struct mmx_event ev[16];

    while (must(mmx_step(x->m, ev, 16), "step") > 0)
        ;
}

static void write_rows(struct side *x, mmx_room r, uint32_t rows)
{
    uint64_t line[ROW_BYTES / 8];

    for (uint32_t i = 0; i < rows; i++) {
        for (uint32_t c = 0; c < ARRAY_LEN(line); c++)
            line[c] = word_at(i, c);
        must(mmx_scatter(x->m, r, NULL, i, 1, line, 0), "scatter");
    }
}

static void check_rows(struct side *x, mmx_room r, uint32_t rows)
{
    uint64_t line[ROW_BYTES / 8];

    for (uint32_t i = 0; i < rows; i++) {
        must(mmx_gather(x->m, r, NULL, i, 1, line, 0), "gather");
        for (uint32_t c = 0; c < ARRAY_LEN(line); c++)
            if (line[c] != word_at(i, c))
                die("row %u, word %u has %016llx", i, c,
                    (unsigned long long)line[c]);
    }
}

static mmx_room announce(
    struct side *x, const struct mmx_pool *p, uint32_t rows, uint32_t max_rows)
{
    struct mmx_announce a = {.size = sizeof a,
        .id = x->s->id,
        .pool = p->id,
        .rows = rows,
        .max_rows = max_rows};
    mmx_room r;

    must(mmx_announce(x->m, &a, &r), "announce");
    must(mmx_wait_room(x->m, r, MMX_GRANTED, ROOM_MS), "granted");
    return r;
}

static mmx_room request(
    struct side *x, const struct mmx_pool *p, uint64_t id, uint32_t rows)
{
    struct mmx_request q = {.size = sizeof q,
        .id = id,
        .pool = p->id,
        .rows = rows,
        .encoder = "bench-enc"};
    mmx_room r;

    must(mmx_request(x->m, &q, &r), "request");
    return r;
}

/* The encoder's part of one room, from a granted room to its end. */
static void send_room(
    struct side *x, mmx_room r, uint32_t rows, uint64_t *stamp)
{
    must(mmx_wait_room(x->m, r, MMX_WANTED, ROOM_MS), "wanted");
    meet(x);
    gap(x);
    *stamp = now_ns();
    must(mmx_commit_final(x->m, r, 0, rows, rows, NULL, 0), "commit");
    must(mmx_wait_room(x->m, r, MMX_DONE, ROOM_MS), "done");
    sweep(x);
}

/* The language side's part; returns when READY was seen. */
static uint64_t await_room(struct side *x, mmx_room r)
{
    uint64_t t;

    meet(x);
    must(mmx_wait_room(x->m, r, MMX_READY, ROOM_MS), "ready");
    t = now_ns();
    sweep(x);
    return t;
}

static void next_room(struct side *x)
{
    meet(x);
    if (x->which == ENC)
        x->s->id++;
    meet(x);
}

static void bulk_round(struct side *x, unsigned round)
{
    mmx_room r;

    next_room(x);
    if (x->which == ENC) {
        r = announce(x, &x->rows, BULK_ROWS, 0);
        if (round == 0)
            write_rows(x, r, BULK_ROWS);
        send_room(x, r, BULK_ROWS, &x->s->stamp[0]);
    } else {
        r = request(x, &x->rows, x->s->id, BULK_ROWS);
        x->s->bulk[round] = await_room(x, r) - x->s->stamp[0];
        if (round == 0)
            check_rows(x, r, BULK_ROWS);
        must(mmx_release(x->m, r, MMX_ALL, 0), "release");
    }
    meet(x);
    if (opt.same_host)
        copy_bulk(x, round);
    else
        tcp_bulk(x, round);
}

static void small_room(struct side *x, unsigned i, uint64_t *out)
{
    uint64_t line[SMALL_BYTES / 8] = {0};
    mmx_room r;

    next_room(x);
    line[0] = x->s->id;
    if (x->which == ENC) {
        r = announce(x, &x->small, 1, 0);
        must(mmx_scatter(x->m, r, NULL, 0, 1, line, 0), "scatter");
        send_room(x, r, 1, &x->s->stamp[i]);
        return;
    }
    r = request(x, &x->small, x->s->id, 1);
    *out = await_room(x, r) - x->s->stamp[i];
    must(mmx_gather(x->m, r, NULL, 0, 1, line, 0), "gather");
    if (line[0] != x->s->id)
        die("room %llu has the rows of %llu", (unsigned long long)x->s->id,
            (unsigned long long)line[0]);
    must(mmx_release(x->m, r, MMX_ALL, 0), "release");
}

static void latency_round(struct side *x, unsigned round)
{
    for (unsigned i = 0; i < PINGS; i++)
        small_room(x, i, &x->s->room[round * PINGS + i]);
    for (unsigned i = 0; i < PINGS; i++)
        tcp_ping(x, i, &x->s->ping[round * PINGS + i]);
    for (unsigned i = 0; i < PINGS; i++)
        am_ping(x, i, &x->s->am[round * PINGS + i]);
}

static void no_failure(const struct mmx_event *ev)
{
    if (ev->what & (MMX_FAILED | MMX_REFUSED))
        die("room %llu: %s", (unsigned long long)ev->id, ev->text);
}

/* A row that begins with the number of its room. */
static const uint64_t *line_of(const struct mmx_event *ev)
{
    static uint64_t line[SMALL_BYTES / 8];

    line[0] = ev->id;
    return line;
}

/* Whole lives, many at a time. Each commit is a packet of its own, as it is
 * when an encoder finishes one item after the other; what a scheduler does
 * once per step is corked. */
static void rate_encode(struct side *x, uint64_t first)
{
    struct mmx_announce a = {
        .size = sizeof a, .pool = x->small.id, .rows = 1, .id = first};
    unsigned done = 0, room_for = IN_FLIGHT;
    struct mmx_event ev[IN_FLIGHT];
    mmx_room r;

    while (done < RATE_ROOMS) {
        int n;

        must(mmx_cork(x->m), "cork");
        for (; room_for && a.id < first + RATE_ROOMS; room_for--, a.id++)
            must(mmx_announce(x->m, &a, &r), "announce");
        must(mmx_uncork(x->m), "uncork");
        n = must(mmx_wait(x->m, ev, IN_FLIGHT, ROOM_MS), "wait");
        for (int i = 0; i < n; i++) {
            no_failure(&ev[i]);
            if (ev[i].what & MMX_GRANTED) {
                must(mmx_scatter(
                         x->m, ev[i].room, NULL, 0, 1, line_of(&ev[i]), 0),
                    "scatter");
                must(mmx_commit_final(x->m, ev[i].room, 0, 1, 1, NULL, 0),
                    "commit");
            }
            if (ev[i].what & MMX_DONE) {
                done++;
                room_for++;
            }
        }
    }
}

static void rate_language(struct side *x, uint64_t first)
{
    uint64_t id = first, got[SMALL_BYTES / 8];
    unsigned ready = 0, room_for = IN_FLIGHT;
    struct mmx_event ev[IN_FLIGHT];

    while (ready < RATE_ROOMS) {
        int n;

        for (; room_for && id < first + RATE_ROOMS; room_for--)
            (void)request(x, &x->small, id++, 1);
        must(mmx_uncork(x->m), "uncork");
        n = must(mmx_wait(x->m, ev, IN_FLIGHT, ROOM_MS), "wait");
        must(mmx_cork(x->m), "cork");
        for (int i = 0; i < n; i++) {
            no_failure(&ev[i]);
            if (!(ev[i].what & MMX_READY))
                continue;
            must(mmx_gather(x->m, ev[i].room, NULL, 0, 1, got, 0), "gather");
            if (got[0] != ev[i].id)
                die("room %llu has the rows of %llu",
                    (unsigned long long)ev[i].id, (unsigned long long)got[0]);
            must(mmx_release(x->m, ev[i].room, MMX_ALL, 0), "release");
            ready++;
            room_for++;
        }
    }
    must(mmx_uncork(x->m), "uncork");
}

static void rate_round(struct side *x, unsigned round)
{
    uint64_t first, t;

    next_room(x);
    first = x->s->id;
    meet(x);
    t = now_ns();
    if (x->which == ENC) {
        rate_encode(x, first);
        x->s->id += RATE_ROOMS;
    } else {
        rate_language(x, first);
        x->s->rate[round] = now_ns() - t;
    }
    meet(x);
    if (x->which == LANG)
        x->s->packets[round] = bare_packets();
    meet(x);
}

static void resume_room(struct side *x, int how, unsigned round)
{
    uint32_t granted = how == EXACT ? RESUME_ROWS : FIRST_ROWS;
    bool known = how != AT_COMMIT;
    mmx_room r;

    next_room(x);
    if (x->which == ENC) {
        r = announce(
            x, &x->rows, known ? RESUME_ROWS : 0, known ? 0 : RESUME_ROWS);
        if (round == 0)
            write_rows(x, r, RESUME_ROWS);
        send_room(x, r, RESUME_ROWS, &x->s->stamp[0]);
        return;
    }
    r = request(x, &x->rows, x->s->id, granted);
    if (known) /* its answer, the larger grant, has then been sent too */
        must(mmx_wait_room(x->m, r, MMX_LENGTH, ROOM_MS), "length");
    x->s->resume[how][round] = await_room(x, r) - x->s->stamp[0];
    if (round == 0)
        check_rows(x, r, RESUME_ROWS);
    must(mmx_release(x->m, r, MMX_ALL, 0), "release");
}

static void resume_round(struct side *x, unsigned round)
{
    for (int how = 0; how < RESUMES; how++)
        resume_room(x, how, round);
}

static void poll_round(struct side *x, unsigned round)
{
    struct mmx_state st;
    mmx_room r;
    uint64_t t;

    (void)round;
    meet(x);
    if (x->which == LANG) {
        r = request(x, &x->small, ++x->s->id, 1);
        sweep(x);
        t = now_ns();
        for (unsigned i = 0; i < POLLS; i++)
            if (mmx_poll(x->m, &r, 1, &st) == MMX_SUCCESS)
                die("a room without rows is ready");
        x->s->polls = now_ns() - t;
        must(mmx_release(x->m, r, MMX_ALL, 0), "release");
    }
    meet(x);
}

const struct bench_case bench_cases[] = {
    {"bulk", bulk_round},
    {"latency", latency_round},
    {"rate", rate_round},
    {"resume", resume_round},
    {"poll", poll_round},
};

const size_t bench_cases_count = ARRAY_LEN(bench_cases);
