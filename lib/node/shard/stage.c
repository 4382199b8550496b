/* stage.c - see stage.h. Owned by one shard's thread; the driver's callback
 * only wakes it.
 *
 * Invariants: a slot is in exactly one state; slots are submitted in the order
 * in which they were filled, unless one waits for its bytes; every entry is
 * reported exactly once; a slot's memory is filled again only when its copies
 * are over and nothing holds it; at least one slot does not wait for bytes, so
 * that bytes that have arrived never wait for the network.
 *
 * A GPU that is lost fails every entry of its rows from then on, and quickly.
 * Rejected: a ring of bytes without slots, in which every piece would need its
 * own mark; and one submission per segment, which costs a GPU more than the
 * bytes do. */
#include "node/shard/stage.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* While BUSY_ENOUGH slots are under way, a new slot is not pushed until a part
 * of it (1 / ENOUGH_OF_SLOT) is used, but at most for PATIENCE turns: a stalled
 * peer may hold the other slots. */
#define BUSY_ENOUGH    2
#define ENOUGH_OF_SLOT 4
#define PATIENCE       16
#define SPARE_OF_SLOTS 4
#define PROBE_NS       (2 * NS_PER_S)

enum slot_state {
    FREE,
    FILLING,
    AWAITING, /* pushed, with bytes still to come */
    COPYING,
    HELD /* reported; its memory is in use */
};

struct stage_slot {
    enum slot_state state;
    uint32_t used, holds, fills, entries;
    uint64_t turn;   /* turn of the submission, to report in that order */
    uint32_t failed; /* GPUs that failed, a bit each */
    uint8_t *memory;
    struct entry {
        uint64_t cookie;
        uint32_t gpus; /* GPUs that copied for it, a bit each */
        bool bad;
    } * entry;
};

/* One GPU, held: its lane, and per slot the copies to submit. */
struct gpu {
    struct cuda *cuda;
    struct cuda_lane *lane;
    struct cuda_batch *batch; /* by slot */
    uint64_t probe_ns;        /* time of the last probe */
    bool probing;             /* the probe has not ended yet */
};

struct stage {
    struct stage_conf c;
    struct stage_slot *slots; /* `most`, of which `count` are used */
    uint32_t count, most;     /* most: as configured, or as memory allows */
    uint32_t filling;         /* NONE: no slot */
    uint64_t turn;
    struct gpu gpus[CUDA_GPUS_MAX];
    uint32_t gpus_count, copying;
    uint32_t touched;  /* GPUs with copies for the next entry */
    uint32_t patience; /* turns that the slot being filled has waited */
};

/* making */

enum err stage_new(struct stage **out, const struct stage_conf *c)
{
    struct stage *s = calloc(1, sizeof(*s));

    if (!s)
        return ERR_NO_BLOCKS;
    CHECK(c->slots > 0 && c->slots <= c->most, "%u slots of %u", c->slots,
        c->most);
    CHECK(c->slot_bytes > 0 && c->entries > 0 && c->copies > 0,
        "%u bytes, %u entries, %u copies", c->slot_bytes, c->entries,
        c->copies);
    s->c = *c;
    s->filling = NONE;
    s->count = c->slots;
    s->most = c->most;
    s->slots = calloc(c->most, sizeof(*s->slots));
    if (!s->slots) {
        stage_free(&s);
        return ERR_NO_BLOCKS;
    }
    *out = s;
    return OK;
}

/* Allocates the three arrays of a batch at once. */
static bool batch_make(const struct stage *s, struct cuda_batch *b)
{
    if (!b->to)
        b->to = calloc(s->c.copies, 2 * sizeof(*b->to) + sizeof(*b->bytes));
    if (!b->to)
        return false;
    b->from = b->to + s->c.copies;
    b->bytes = (size_t *)(b->from + s->c.copies);
    return true;
}

/* Allocates what slot i lacks. What was allocated stays if the rest fails. */
static bool slot_make(struct stage *s, uint32_t i)
{
    struct stage_slot *t = &s->slots[i];
    bool good;

    CHECK(i < s->c.most && s->gpus_count > 0, "slot %u of %u", i, s->c.most);
    if (!t->entry)
        t->entry = calloc(s->c.entries, sizeof(*t->entry));
    if (!t->memory)
        t->memory = cuda_pinned(s->gpus[0].cuda, s->c.slot_bytes);
    good = t->entry && t->memory;
    for (uint32_t g = 0; good && g < s->gpus_count; g++)
        good = batch_make(s, &s->gpus[g].batch[i]);
    return good;
}

/* Drops the last GPU. The first one has pinned the memory. */
static void gpu_drop(struct stage *s)
{
    struct gpu *g = &s->gpus[--s->gpus_count];

    cuda_lane_close(&g->lane);
    for (uint32_t i = 0; i < s->c.most; i++) {
        if (s->gpus_count == 0)
            cuda_unpin(g->cuda, s->slots[i].memory);
        if (s->gpus_count == 0)
            s->slots[i].memory = NULL;
        free(g->batch[i].to);
    }
    free(g->batch);
    cuda_close(&g->cuda);
}

static void woken(void *ud)
{
    wake_up(ud);
}

static struct gpu *gpu_of(struct stage *s, const struct cuda *cuda)
{
    for (uint32_t i = 0; i < s->gpus_count; i++)
        if (s->gpus[i].cuda == cuda)
            return &s->gpus[i];
    return NULL;
}

enum err stage_gpu(struct stage *s, struct cuda *cuda)
{
    struct gpu g = {0};
    enum err e;

    if (gpu_of(s, cuda))
        return OK;
    CHECK(s->gpus_count < CUDA_GPUS_MAX, "%u GPUs", s->gpus_count);
    /* A mark per slot, one for the probe. */
    e = cuda_lane_open(&g.lane, cuda, s->c.most + 1, woken, s->c.wake);
    if (e != OK)
        return e;
    g.batch = calloc(s->c.most, sizeof(*g.batch));
    if (!g.batch) {
        cuda_lane_close(&g.lane);
        return ERR_NO_BLOCKS;
    }
    g.cuda = cuda_hold(cuda);
    s->gpus[s->gpus_count++] = g;
    for (uint32_t i = 0; i < s->count; i++)
        if (!slot_make(s, i)) {
            gpu_drop(s);
            return ERR_NO_BLOCKS;
        }
    return OK;
}

bool stage_grow(struct stage *s)
{
    if (s->count == s->most)
        return false;
    if (!slot_make(s, s->count)) {
        s->most = s->count; /* logged once; not tried again */
        return false;
    }
    s->count++;
    return true;
}

bool stage_scarce(const struct stage *s)
{
    uint32_t spare = s->most - s->count;

    for (uint32_t i = 0; i < s->count; i++)
        spare += s->slots[i].state != HELD;
    return spare < s->most / SPARE_OF_SLOTS;
}

void stage_free(struct stage **sp)
{
    struct stage *s = *sp;

    *sp = NULL;
    if (!s)
        return;
    /* Copies of all GPUs end before memory is freed. */
    for (uint32_t i = 0; i < s->gpus_count; i++)
        cuda_lane_close(&s->gpus[i].lane);
    while (s->gpus_count > 0)
        gpu_drop(s);
    for (uint32_t i = 0; s->slots && i < s->c.most; i++)
        free(s->slots[i].entry);
    free(s->slots);
    free(s);
}

uint32_t stage_copying(const struct stage *s)
{
    return s->copying;
}

/* filling */

static struct stage_slot *filling(struct stage *s)
{
    CHECK(s->filling != NONE, "no slot is being filled");
    CHECK(s->slots[s->filling].state == FILLING, "slot %u is in state %d",
        s->filling, s->slots[s->filling].state);
    return &s->slots[s->filling];
}

/* True if the slot is not empty. Copies alone are the first part of an entry
 * that comes with a later slot. */
static bool begun(const struct stage *s, uint32_t slot)
{
    bool any = s->slots[slot].entries > 0;

    for (uint32_t i = 0; i < s->gpus_count; i++)
        any = any || s->gpus[i].batch[slot].count > 0;
    return any;
}

static bool fits(const struct stage *s, uint32_t bytes, uint32_t copies)
{
    const struct stage_slot *t = &s->slots[s->filling];

    if (s->c.slot_bytes - t->used < bytes || t->entries == s->c.entries)
        return false;
    for (uint32_t i = 0; i < s->gpus_count; i++)
        if (s->c.copies - s->gpus[i].batch[s->filling].count < copies)
            return false;
    return true;
}

/* True if another slot may wait for bytes. */
static bool may_await(const struct stage *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->count; i++)
        n += s->slots[i].fills > 0;
    return n + 1 < s->count;
}

static bool find_room(
    struct stage *s, uint32_t bytes, uint32_t copies, bool fill)
{
    CHECK(bytes <= s->c.slot_bytes && copies <= s->c.copies,
        "%u bytes, %u copies", bytes, copies);
    if (s->filling != NONE && begun(s, s->filling) &&
        (fill != (s->slots[s->filling].fills > 0) || !fits(s, bytes, copies)))
        stage_push(s);
    if (fill && (s->filling == NONE || !begun(s, s->filling)) && !may_await(s))
        return false; /* the last slot is kept for bytes that are there */
    for (uint32_t i = 0; s->filling == NONE && i < s->count; i++)
        if (s->slots[i].state == FREE)
            s->filling = i;
    if (s->filling == NONE)
        return false;
    s->slots[s->filling].state = FILLING;
    return true;
}

bool stage_room(struct stage *s, uint32_t bytes, uint32_t copies)
{
    return find_room(s, bytes, copies, false);
}

bool stage_room_fill(struct stage *s, uint32_t bytes, uint32_t copies)
{
    return find_room(s, bytes, copies, true);
}

uint8_t *stage_take(struct stage *s, uint32_t bytes)
{
    struct stage_slot *t = filling(s);
    uint8_t *p = t->memory + t->used;

    CHECK(bytes <= s->c.slot_bytes - t->used, "%u bytes", bytes);
    t->used += bytes;
    return p;
}

void stage_copy(struct stage *s, struct cuda *cuda, const void *to,
    const void *from, uint64_t bytes)
{
    struct gpu *g = gpu_of(s, cuda);
    cuda_address a = (uintptr_t)to, b = (uintptr_t)from;
    struct cuda_batch *batch;
    uint32_t last;

    CHECK(g && s->filling != NONE, "rows of an unknown GPU");
    s->touched |= UINT32_C(1) << (g - s->gpus);
    batch = &g->batch[s->filling];
    last = batch->count - 1;
    if (batch->count > 0 && batch->to[last] + batch->bytes[last] == a &&
        batch->from[last] + batch->bytes[last] == b) {
        batch->bytes[last] += bytes;
        return;
    }
    CHECK(batch->count < s->c.copies, "%u copies", batch->count);
    batch->to[batch->count] = a;
    batch->from[batch->count] = b;
    batch->bytes[batch->count++] = bytes;
}

uint32_t stage_entry(struct stage *s, uint64_t cookie)
{
    struct stage_slot *t = filling(s);

    CHECK(t->entries < s->c.entries, "%u entries", t->entries);
    t->entry[t->entries] = (struct entry){cookie, s->touched, false};
    s->touched = 0;
    return t->entries++;
}

uint32_t stage_filling(const struct stage *s)
{
    return s->filling;
}

uint32_t stage_hold(struct stage *s)
{
    filling(s)->holds++;
    return s->filling;
}

uint32_t stage_fill(struct stage *s)
{
    filling(s)->fills++;
    return s->filling;
}

void stage_bad(struct stage *s, uint32_t slot, uint32_t entry)
{
    CHECK(slot < s->count && entry < s->slots[slot].entries,
        "entry %u of slot %u", entry, slot);
    s->slots[slot].entry[entry].bad = true;
}

/* copying */

static void submit(struct stage *s, uint32_t slot)
{
    struct stage_slot *t = &s->slots[slot];

    CHECK(t->state == FILLING || t->state == AWAITING,
        "slot %u is submitted in state %d", slot, t->state);
    CHECK(t->fills == 0, "slot %u waits for %u fetches", slot, t->fills);
    t->state = COPYING;
    t->turn = s->turn++;
    s->copying++;
    for (uint32_t i = 0; i < s->gpus_count; i++) {
        struct gpu *g = &s->gpus[i];

        if (g->batch[slot].count &&
            cuda_lane_submit(g->lane, &g->batch[slot], slot) != OK)
            t->failed |= UINT32_C(1) << i;
    }
}

void stage_push(struct stage *s)
{
    uint32_t slot = s->filling;

    if (slot == NONE || !begun(s, slot))
        return;
    s->filling = NONE;
    s->patience = 0;
    if (s->slots[slot].fills)
        s->slots[slot].state = AWAITING;
    else
        submit(s, slot);
}

void stage_push_due(struct stage *s)
{
    uint32_t busy = 0;

    if (s->filling == NONE)
        return;
    for (uint32_t i = 0; i < s->count; i++)
        busy += s->slots[i].state != FREE && i != s->filling;
    if (busy < BUSY_ENOUGH ||
        s->slots[s->filling].used >= s->c.slot_bytes / ENOUGH_OF_SLOT ||
        ++s->patience > PATIENCE)
        stage_push(s);
}

void stage_filled(struct stage *s, uint32_t slot)
{
    struct stage_slot *t = &s->slots[slot];

    CHECK(slot < s->count && t->fills > 0, "slot %u", slot);
    t->fills--;
    if (t->fills == 0 && t->state == AWAITING)
        submit(s, slot);
}

static void slot_free(struct stage *s, uint32_t slot)
{
    struct stage_slot *t = &s->slots[slot];

    CHECK(t->holds == 0 && t->fills == 0, "slot %u has %u holds, %u fills",
        slot, t->holds, t->fills);
    t->state = FREE;
    t->used = t->entries = 0;
    t->failed = 0;
    for (uint32_t i = 0; i < s->gpus_count; i++)
        s->gpus[i].batch[slot].count = 0;
}

void stage_drop(struct stage *s, uint32_t slot)
{
    struct stage_slot *t = &s->slots[slot];

    CHECK(slot < s->count && t->holds > 0, "slot %u", slot);
    t->holds--;
    if (t->holds == 0 && t->state == HELD)
        slot_free(s, slot);
}

/* Returns OK if the copies of the slot have ended, well or not (`failed` says),
 * ERR_BUSY before. */
static enum err look(struct stage *s, uint32_t slot, bool wait)
{
    enum err all = OK;

    for (uint32_t i = 0; i < s->gpus_count; i++) {
        struct gpu *g = &s->gpus[i];
        enum err e;

        if (g->batch[slot].count == 0)
            continue;
        e = wait ? cuda_lane_wait(g->lane, slot)
                 : cuda_lane_look(g->lane, slot);
        if (e == ERR_BUSY)
            all = ERR_BUSY;
        else if (e != OK)
            s->slots[slot].failed |= UINT32_C(1) << i;
    }
    return all;
}

static uint32_t report(struct stage *s, uint32_t slot)
{
    struct stage_slot *t = &s->slots[slot];
    uint32_t n = t->entries;

    CHECK(t->state == COPYING && s->copying > 0, "slot %u is in state %d", slot,
        t->state);
    t->state = HELD;
    t->holds++;
    s->copying--;
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *e = &t->entry[i];

        s->c.over(s->c.ud, slot, e->cookie, !(t->failed & e->gpus) && !e->bad);
    }
    stage_drop(s, slot);
    return n;
}

static uint32_t oldest(const struct stage *s)
{
    uint32_t found = NONE;

    for (uint32_t i = 0; i < s->count; i++)
        if (s->slots[i].state == COPYING &&
            (found == NONE || s->slots[i].turn < s->slots[found].turn))
            found = i;
    return found;
}

uint32_t stage_progress(struct stage *s)
{
    uint32_t n = 0, slot;

    while (
        s->copying && (slot = oldest(s)) != NONE && look(s, slot, false) == OK)
        n += report(s, slot);
    return n;
}

bool stage_due(struct stage *s)
{
    uint32_t slot = s->copying ? oldest(s) : NONE;

    if (s->filling != NONE && begun(s, s->filling))
        return true;
    return slot != NONE && look(s, slot, false) == OK;
}

/* Submits an empty batch and looks at the last one: a lost GPU never completes
 * it. */
static enum err probe(struct stage *s, struct gpu *g, uint64_t now_ns)
{
    static const struct cuda_batch nothing;
    enum err e = OK;

    if (g->probing)
        e = cuda_lane_look(g->lane, s->c.most);
    if (e != OK)
        return e;
    g->probing = false;
    if (now_ns - g->probe_ns < PROBE_NS)
        return OK;
    g->probe_ns = now_ns;
    g->probing = true;
    return cuda_lane_submit(g->lane, &nothing, s->c.most);
}

bool stage_probe(struct stage *s, uint64_t now_ns)
{
    bool lost = false;

    for (uint32_t i = 0; i < s->gpus_count; i++) {
        struct gpu *g = &s->gpus[i];

        if ((g->probing || now_ns - g->probe_ns >= PROBE_NS) &&
            !cuda_lost(g->cuda))
            (void)probe(s, g, now_ns);
        lost |= cuda_lost(g->cuda) != NULL;
    }
    return lost;
}

bool stage_wait(struct stage *s)
{
    uint32_t slot = oldest(s);

    if (slot == NONE)
        return false;
    (void)look(s, slot, true);
    report(s, slot);
    return true;
}
