/* rooms.c - one room, as both engines run it. Both call every function here;
 * `which` says which part of it they do. They meet before each step, so neither
 * needs to know how far the other is. If one calls die(), the parent notices
 * and ends all. One thread each.
 *
 * What is moved is compared: large rooms in the first round, small ones
 * always, since their number is in their rows. Rejected: comparing every large
 * room, which would leave the caches in a state that no engine has. */
#include "test/bench/bench.h"

static uint64_t word_at(uint64_t row, uint64_t column)
{
    return row * UINT64_C(0x9e3779b97f4a7c15) + column;
}

void sweep(struct end *e)
{
    struct mmx_event ev[16];

    while (must(mmx_step(e->m, ev, 16), "step") > 0)
        ;
}

void next_room(struct side *x)
{
    meet(x);
    if (x->which == ENC)
        x->s->id++;
    meet(x);
}

void write_rows(struct end *e, mmx_room r, uint32_t rows)
{
    uint64_t line[ROW_BYTES / 8];

    for (uint32_t i = 0; i < rows; i++) {
        for (uint32_t c = 0; c < ARRAY_LEN(line); c++)
            line[c] = word_at(i, c);
        must(mmx_scatter(e->m, r, NULL, i, 1, line, 0), "scatter");
    }
}

void check_rows(struct end *e, mmx_room r, uint32_t rows)
{
    uint64_t line[ROW_BYTES / 8];

    for (uint32_t i = 0; i < rows; i++) {
        must(mmx_gather(e->m, r, NULL, i, 1, line, 0), "gather");
        for (uint32_t c = 0; c < ARRAY_LEN(line); c++)
            if (line[c] != word_at(i, c))
                die("row %u, word %u has %016llx", i, c,
                    (unsigned long long)line[c]);
    }
}

/* Returns the first word of a small room, which has the room's number, and in
 * *last its last word, which has it, too. */
static uint64_t *ends_of(struct end *e, mmx_room r, uint64_t **last)
{
    struct mmx_view v;
    uint8_t *p;

    must(mmx_view(e->m, r, NULL, 0, MMX_ALL, &v), "view");
    p = v.data;
    *last = (uint64_t *)(void *)(p + v.rows * v.stride - 8);
    return v.data;
}

static void sign(struct end *e, mmx_room r, uint64_t id)
{
    uint64_t *last, *first = ends_of(e, r, &last);

    *first = *last = id;
}

static void check_sign(struct end *e, mmx_room r, uint64_t id)
{
    uint64_t *last, *first = ends_of(e, r, &last);

    if (*first != id || *last != id)
        die("room %llu has the rows of %llu and %llu", (unsigned long long)id,
            (unsigned long long)*first, (unsigned long long)*last);
}

mmx_room announce(
    struct end *e, int pool, uint64_t id, uint32_t rows, uint32_t max_rows)
{
    struct mmx_announce a = {.size = sizeof a,
        .id = id,
        .pool = e->pools[pool].id,
        .rows = rows,
        .max_rows = max_rows};
    mmx_room r;

    must(mmx_announce(e->m, &a, &r), "announce");
    must(mmx_wait_room(e->m, r, MMX_GRANTED, ROOM_MS), "granted");
    return r;
}

mmx_room request(struct end *e, int pool, uint64_t id, uint32_t rows)
{
    struct mmx_request q = {.size = sizeof q,
        .id = id,
        .pool = e->pools[pool].id,
        .rows = rows,
        .encoder = e->encoder};
    mmx_room r;

    must(mmx_request(e->m, &q, &r), "request");
    return r;
}

void send_room(struct side *x, mmx_room r, uint32_t rows)
{
    must(mmx_wait_room(x->e->m, r, MMX_WANTED, ROOM_MS), "wanted");
    meet(x);
    gap(x);
    x->s->stamp = now_ns();
    must(mmx_commit_final(x->e->m, r, 0, rows, rows, NULL, 0), "commit");
    must(mmx_wait_room(x->e->m, r, MMX_DONE, ROOM_MS), "done");
    sweep(x->e);
}

uint64_t await_room(struct side *x, mmx_room r)
{
    uint64_t t;

    meet(x);
    must(mmx_wait_room(x->e->m, r, MMX_READY, ROOM_MS), "ready");
    t = now_ns();
    sweep(x->e);
    return t;
}

void one_room(struct side *x, int pool, uint32_t rows, bool verify, int series)
{
    mmx_room r;
    uint64_t t;

    next_room(x);
    if (x->which == ENC) {
        r = announce(x->e, pool, x->s->id, rows, 0);
        if (verify)
            write_rows(x->e, r, rows);
        else
            sign(x->e, r, x->s->id);
        send_room(x, r, rows);
        return;
    }
    r = request(x->e, pool, x->s->id, rows);
    t = await_room(x, r);
    note(x, series, t - x->s->stamp);
    if (verify)
        check_rows(x->e, r, rows);
    else
        check_sign(x->e, r, x->s->id);
    must(mmx_release(x->e->m, r, MMX_ALL, 0), "release");
}

/* many rooms */

static void no_failure(const struct mmx_event *ev)
{
    if (ev->what & (MMX_FAILED | MMX_REFUSED))
        die("room %llu: %s: %s", (unsigned long long)ev->id,
            mmx_reason(-ev->reason, NULL, NULL), ev->text);
}

/* Each commit is a packet of its own, as it is when an encoder finishes one
 * item after the other; what a scheduler does once per step is corked. */
static void rate_encode(struct end *e, int pool, uint64_t first, unsigned rooms)
{
    struct mmx_announce a = {
        .size = sizeof a, .pool = e->pools[pool].id, .rows = 1, .id = first};
    unsigned done = 0, room_for = IN_FLIGHT;
    struct mmx_event ev[IN_FLIGHT];
    mmx_room r;

    while (done < rooms) {
        int n;

        must(mmx_cork(e->m), "cork");
        for (; room_for && a.id < first + rooms; room_for--, a.id++)
            must(mmx_announce(e->m, &a, &r), "announce");
        must(mmx_uncork(e->m), "uncork");
        n = must(mmx_wait(e->m, ev, IN_FLIGHT, ROOM_MS), "wait");
        for (int i = 0; i < n; i++) {
            no_failure(&ev[i]);
            if (ev[i].what & MMX_GRANTED) {
                sign(e, ev[i].room, ev[i].id);
                must(mmx_commit_final(e->m, ev[i].room, 0, 1, 1, NULL, 0),
                    "commit");
            }
            if (ev[i].what & MMX_DONE) {
                done++;
                room_for++;
            }
        }
    }
}

static void rate_language(
    struct end *e, int pool, uint64_t first, unsigned rooms)
{
    uint64_t id = first;
    unsigned ready = 0, room_for = IN_FLIGHT;
    struct mmx_event ev[IN_FLIGHT];

    while (ready < rooms) {
        int n;

        for (; room_for && id < first + rooms; room_for--)
            (void)request(e, pool, id++, 1);
        must(mmx_uncork(e->m), "uncork");
        n = must(mmx_wait(e->m, ev, IN_FLIGHT, ROOM_MS), "wait");
        must(mmx_cork(e->m), "cork");
        for (int i = 0; i < n; i++) {
            no_failure(&ev[i]);
            if (!(ev[i].what & MMX_READY))
                continue;
            check_sign(e, ev[i].room, ev[i].id);
            must(mmx_release(e->m, ev[i].room, MMX_ALL, 0), "release");
            ready++;
            room_for++;
        }
    }
    must(mmx_uncork(e->m), "uncork");
}

void rate(struct side *x, int pool, unsigned rooms, int series)
{
    uint64_t first, t;

    next_room(x);
    first = x->s->id;
    meet(x);
    t = now_ns();
    if (x->which == ENC) {
        rate_encode(x->e, pool, first, rooms);
        x->s->id += rooms;
    } else {
        rate_language(x->e, pool, first, rooms);
        note(x, series, (now_ns() - t) / rooms);
    }
    meet(x);
}
