/* plan.c - windows of a prompt for engines: client/window.h over a handle.
 *
 * Invariants. Plans need no handle and no lock. A run takes the lock once to
 * check everything, before the first byte is copied. Then it takes the lock
 * again for every few pieces, and copies without it, as mmx_gather does:
 * readable rows stay until this engine releases them, which it must not do
 * during the call.
 *
 * Rejected: copying the rooms' runs into the plan. A plan is made before the
 * rows have landed, often before they are requested. */
#include "client/client.h"

#include <string.h>

void mmx_pack_mask(const uint8_t *bytes, uint32_t n, uint64_t *words)
{
    window_pack(bytes, n, words);
}

int64_t mmx_plan_bytes(const struct mmx_window *opt,
    const struct mmx_placeholder *p, int n, int *at)
{
    struct mmx_window w;
    uint32_t wrong = (uint32_t)n;
    size_t bytes = 0;
    enum err e = ERR_MALFORMED;

    if (n >= 0 && CLIENT_TAKE(w, opt) && (p || n == 0))
        e = window_bytes(&w, p, (uint32_t)n, &bytes, &wrong);
    if (e != OK && at)
        *at = (int)wrong;
    return e != OK ? -(int64_t)e : (int64_t)bytes;
}

int mmx_plan(const struct mmx_window *opt, const struct mmx_placeholder *p,
    int n, void *mem, size_t mem_bytes, const struct mmx_plan **out, int *at)
{
    struct mmx_window w;
    uint32_t wrong = (uint32_t)n;
    enum err e = ERR_MALFORMED;

    if (n >= 0 && CLIENT_TAKE(w, opt) && (p || n == 0) && out &&
        (uintptr_t)mem % 8 == 0)
        e = window_plan(&w, p, (uint32_t)n, mem, mem_bytes, out, &wrong);
    if (e != OK && at)
        *at = (int)wrong;
    return -(int)e;
}

struct finder {
    mmx *m;
    const mmx_room *rooms;
    const char *field;
    const char *dtype; /* the tensor's; NULL: nothing is copied */
    bool found;
    int gpu; /* of the rooms found so far */
};

/* Finds a room for the window planner; refuses what this run cannot copy. */
static enum err find(void *ud, uint32_t room, struct window_source *out)
{
    struct finder *f = ud;
    int gpu, err = client_source(f->m, f->rooms[room], f->field, out, &gpu);

    if (err || !f->dtype)
        return (enum err) - err;
    /* A GPU's copies do not convert, and a tensor lies in one memory. */
    if (gpu >= 0 && strcmp(f->dtype, out->dtype) != 0)
        return ERR_INCOMPATIBLE_LAYOUT;
    if (f->found && gpu != f->gpu)
        return ERR_MALFORMED;
    assert(gpu >= -1);
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

/* One call of mmx_plan_run or mmx_plan_check. */
struct run {
    struct finder finder;
    struct window_sources from;
    struct mmx_tensor to;
    const struct mmx_plan *plan;
};

static int check(
    struct run *r, const struct mmx_tensor *to, struct mmx_trouble *trouble)
{
    struct mmx_trouble t = {NONE, 0, 0};
    int err;

    r->from = (struct window_sources){find, &r->finder};
    if (!r->plan || (!r->finder.rooms && r->plan->rooms) ||
        (to && (!CLIENT_TAKE(r->to, to) || !r->to.dtype)))
        return -MMX_E_MALFORMED;
    if (to)
        r->finder.dtype = r->to.dtype;
    err = CLIENT_LOCKED(r->finder.m,
        -(int)window_check(r->plan, &r->from, to ? &r->to : NULL, &t));
    if (err && trouble)
        *trouble = t;
    return err;
}

int mmx_plan_check(mmx *m, const struct mmx_plan *plan, const mmx_room *rooms,
    const char *field, const struct mmx_tensor *to, struct mmx_trouble *trouble)
{
    struct run r = {
        .finder = {.m = m, .rooms = rooms, .field = field, .gpu = -1},
        .plan = plan};

    return check(&r, to, trouble);
}

/* Finds the next pieces under the lock; *count 0: the end. */
static int next_pieces(struct run *r, struct window_cursor *c,
    struct window_piece *out, uint32_t max, uint32_t *count)
{
    int err = CLIENT_LOCKED(r->finder.m,
        -(int)window_pieces(r->plan, &r->from, &r->to, c, out, max, count));

    assert(err || *count <= max);
    return err;
}

int mmx_plan_run(mmx *m, const struct mmx_plan *plan, const mmx_room *rooms,
    const char *field, const struct mmx_tensor *to, struct mmx_trouble *trouble)
{
    struct run r = {
        .finder = {.m = m, .rooms = rooms, .field = field, .gpu = -1},
        .plan = plan};
    struct window_cursor c = {0};
    struct window_piece pieces[64];
    uint32_t count = 1;
    int err = to ? check(&r, to, trouble) : -MMX_E_MALFORMED;

    while (!err && count > 0) {
        err = next_pieces(&r, &c, pieces, ARRAY_LEN(pieces), &count);
        if (!err)
            err = copy(r.finder.gpu, pieces, count);
    }
    return err;
}
