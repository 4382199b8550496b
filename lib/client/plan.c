/* plan.c - windows of a prompt for engines: core/window.h over a handle.
 *
 * Invariants. Plans need no handle and no lock. A run checks everything under
 * one hold of the lock, before the first byte; then it takes the lock again
 * for every few pieces and copies without it, as mmx_gather does: rows that
 * were there stay until this engine releases them, which is not due before
 * its own call is over.
 *
 * Rejected: copying the rooms' places into the plan. A plan is made before
 * the rows have landed, often before they are asked for. */
#include "client/client.h"

#include <string.h>

#define SAME(a, b, member)                                                     \
    _Static_assert(offsetof(struct a, member) == offsetof(struct b, member) && \
                       sizeof(((struct a *)0)->member) ==                      \
                           sizeof(((struct b *)0)->member),                    \
        "mmx.h and window.h differ")
#define SAME_SIZE(a, b)                                                        \
    _Static_assert(                                                            \
        sizeof(struct a) == sizeof(struct b), "mmx.h and window.h differ")

SAME_SIZE(placeholder, mmx_placeholder);
SAME(placeholder, mmx_placeholder, offset);
SAME(placeholder, mmx_placeholder, length);
SAME(placeholder, mmx_placeholder, embed);
SAME(placeholder, mmx_placeholder, room);
SAME(placeholder, mmx_placeholder, row_base);
SAME(placeholder, mmx_placeholder, elements);
SAME(placeholder, mmx_placeholder, storage);
SAME(placeholder, mmx_placeholder, flags);
SAME_SIZE(window_segment, mmx_segment);
SAME(window_segment, mmx_segment, row);
SAME(window_segment, mmx_segment, rows);
SAME(window_segment, mmx_segment, at);
SAME_SIZE(window_need, mmx_need);
SAME(window_need, mmx_need, first);
SAME(window_need, mmx_need, end);
SAME(window_need, mmx_need, keep);
SAME_SIZE(window_plan, mmx_plan);
SAME(window_plan, mmx_plan, computed);
SAME(window_plan, mmx_plan, shift);
SAME(window_plan, mmx_plan, positions);
SAME(window_plan, mmx_plan, rows);
SAME(window_plan, mmx_plan, segments_count);
SAME(window_plan, mmx_plan, rooms);
SAME(window_plan, mmx_plan, segments);
SAME(window_plan, mmx_plan, mask);
SAME(window_plan, mmx_plan, needs);
SAME_SIZE(window_trouble, mmx_trouble);
SAME(window_trouble, mmx_trouble, first);
SAME(window_trouble, mmx_trouble, rows);
_Static_assert((int)MMX_INDIVISIBLE == (int)PLACE_INDIVISIBLE &&
                   (int)MMX_ABSENT == (int)PLACE_ABSENT &&
                   (int)MMX_SKIP == (int)WINDOW_SKIP &&
                   (int)MMX_NOW == (int)WINDOW_NOW &&
                   (int)MMX_COMPACT == (int)STORAGE_COMPACT &&
                   (int)MMX_PROMPT == (int)STORAGE_PROMPT,
    "mmx.h and window.h differ");

void mmx_pack_mask(const uint8_t *bytes, uint32_t n, uint64_t *words)
{
    window_pack(bytes, n, words);
}

static bool take_window(const struct mmx_window *opt, int n, struct window *out)
{
    struct mmx_window w;

    if (n < 0 || !CLIENT_TAKE(w, opt))
        return false;
    *out = (struct window){w.computed, w.length, w.shift, w.rooms, w.elements};
    return true;
}

int64_t mmx_plan_bytes(const struct mmx_window *opt,
    const struct mmx_placeholder *p, int n, int *at)
{
    struct window w;
    uint32_t wrong = (uint32_t)n;
    size_t bytes = 0;
    enum err e = ERR_MALFORMED;

    if (take_window(opt, n, &w) && (p || n == 0))
        e = window_bytes(
            &w, (const struct placeholder *)p, (uint32_t)n, &bytes, &wrong);
    if (e != OK && at)
        *at = (int)wrong;
    return e != OK ? -(int64_t)e : (int64_t)bytes;
}

int mmx_plan(const struct mmx_window *opt, const struct mmx_placeholder *p,
    int n, void *mem, size_t mem_bytes, const struct mmx_plan **out, int *at)
{
    struct window w;
    const struct window_plan *plan;
    uint32_t wrong = (uint32_t)n;
    enum err e = ERR_MALFORMED;

    if (take_window(opt, n, &w) && (p || n == 0) && out &&
        (uintptr_t)mem % 8 == 0)
        e = window_plan(&w, (const struct placeholder *)p, (uint32_t)n, mem,
            mem_bytes, &plan, &wrong);
    if (e == OK)
        *out = (const struct mmx_plan *)plan;
    else if (at)
        *at = (int)wrong;
    return -(int)e;
}

struct finder {
    mmx *m;
    const mmx_room *rooms;
    const char *field;
    const char *dtype; /* of the tensor; NULL: nothing is copied */
    bool launch;       /* by a kernel: all rooms on one GPU */
    bool odd;          /* the tensor's rows do not begin at whole words */
    bool found;
    int gpu; /* of the rooms found so far */
};

static enum err find(void *ud, uint32_t room, struct window_source *out)
{
    struct finder *f = ud;
    int gpu, err = client_source(f->m, f->rooms[room], f->field, out, &gpu);

    if (err || !f->dtype)
        return (enum err) - err;
    /* Copies of a GPU change no dtype, and a tensor is in one place. */
    if (gpu >= 0 && !f->launch && strcmp(f->dtype, out->dtype) != 0)
        return ERR_INCOMPATIBLE_LAYOUT;
    if ((f->found && gpu != f->gpu) || (f->launch && gpu < 0))
        return ERR_MALFORMED;
    /* A kernel widens word by word. */
    if (f->launch && f->odd && strcmp(f->dtype, out->dtype) != 0)
        return ERR_MALFORMED;
    f->found = true;
    f->gpu = gpu;
    return OK;
}

static int copy(int gpu, const struct window_piece *p, uint32_t count)
{
    if (gpu < 0)
        window_copy(p, count);
    for (uint32_t i = 0; gpu >= 0 && i < count; i++) {
        int err =
            client_gpu_copy(gpu, (struct client_rows){p[i].to, p[i].stride},
                (struct client_rows){p[i].from, p[i].row_bytes}, p[i].rows,
                p[i].row_bytes);

        if (err)
            return err;
    }
    return 0;
}

static bool take_tensor(const struct mmx_tensor *opt, struct window_tensor *out)
{
    struct mmx_tensor t;

    if (!CLIENT_TAKE(t, opt) || !t.dtype ||
        strlen(t.dtype) >= sizeof out->dtype)
        return false;
    *out = (struct window_tensor){.data = t.data,
        .rows = t.rows,
        .stride = t.stride,
        .elements = t.elements,
        .packed = t.packed != 0};
    memcpy(out->dtype, t.dtype, strlen(t.dtype));
    return true;
}

/* One run, from its arguments on. */
struct run {
    struct finder finder;
    struct window_sources from;
    struct window_tensor to;
    const struct window_plan *plan;
};

static int check(
    struct run *r, const struct mmx_tensor *to, struct mmx_trouble *trouble)
{
    struct window_trouble t = {NONE, 0, 0};
    int err;

    r->from = (struct window_sources){find, &r->finder};
    if (!r->plan || (!r->finder.rooms && r->plan->rooms) ||
        (to && !take_tensor(to, &r->to)))
        return -MMX_E_MALFORMED;
    if (to) {
        r->finder.dtype = r->to.dtype;
        r->finder.odd = ((uintptr_t)r->to.data | r->to.stride) % 4 != 0;
    }
    err = client_lock(r->finder.m);
    if (err)
        return err;
    err = -(int)window_check(r->plan, &r->from, to ? &r->to : NULL, &t);
    client_unlock(r->finder.m);
    if (err && trouble)
        memcpy(trouble, &t, sizeof t);
    return err;
}

int mmx_plan_check(mmx *m, const struct mmx_plan *plan, const mmx_room *rooms,
    const char *field, const struct mmx_tensor *to, struct mmx_trouble *trouble)
{
    struct run r = {
        .finder = {.m = m, .rooms = rooms, .field = field, .gpu = -1},
        .plan = (const struct window_plan *)plan};

    return check(&r, to, trouble);
}

/* The next pieces, by a hold of the lock; *count 0: there are no more. */
static int next_pieces(struct run *r, struct window_cursor *c,
    struct window_piece *out, uint32_t max, uint32_t *count)
{
    int err = client_lock(r->finder.m);

    if (err)
        return err;
    err = -(int)window_pieces(r->plan, &r->from, &r->to, c, out, max, count);
    client_unlock(r->finder.m);
    return err;
}

int mmx_plan_run(mmx *m, const struct mmx_plan *plan, const mmx_room *rooms,
    const char *field, const struct mmx_tensor *to, struct mmx_trouble *trouble)
{
    struct run r = {
        .finder = {.m = m, .rooms = rooms, .field = field, .gpu = -1},
        .plan = (const struct window_plan *)plan};
    struct window_cursor c = {0};
    struct window_piece pieces[32];
    uint32_t count = 1;
    int err = to ? check(&r, to, trouble) : -MMX_E_MALFORMED;

    while (!err && count > 0) {
        err = next_pieces(&r, &c, pieces, ARRAY_LEN(pieces), &count);
        if (!err)
            err = copy(r.finder.gpu, pieces, count);
    }
    return err;
}

static int launch_failed(mmx *m, int err, const char *why)
{
    if (client_lock(m) == 0) {
        client_error(m, "plan: %s", why);
        client_unlock(m);
    }
    return err;
}

int mmx_plan_launch(mmx *m, const struct mmx_plan *plan, const mmx_room *rooms,
    const char *field, const struct mmx_tensor *to, void *stream,
    struct mmx_trouble *trouble)
{
    struct run r = {.finder = {.m = m,
                        .rooms = rooms,
                        .field = field,
                        .launch = true,
                        .gpu = -1},
        .plan = (const struct window_plan *)plan};
    struct window_cursor c = {0};
    struct window_piece pieces[64]; /* of one launch */
    const char *why = NULL;
    uint32_t count = 1;
    int err = to ? check(&r, to, trouble) : -MMX_E_MALFORMED;

    while (!err && count > 0) {
        err = next_pieces(&r, &c, pieces, ARRAY_LEN(pieces), &count);
        if (!err && count > 0)
            err = client_gpu_launch(r.finder.gpu, pieces, count, stream, &why);
    }
    return why ? launch_failed(m, err, why) : err;
}
