/* life.c - the states of life.def, and what every other file of the encode side
 * does to rooms, destinations and items: finds them, puts them on todo lists,
 * and releases ended rooms. Calls none of the other files. Owned by the loop's
 * thread. */
#include "core/encode/encode.h"

struct eroom *eroom_find(
    const struct encoded *e, uint64_t id, const struct secret *secret)
{
    uint32_t i = table_get(&e->ids, id, brain_name(&e->b, secret));

    CHECK(i == NONE || (e->rooms[i].r.id == id && eroom_found(&e->rooms[i])),
        "slot %u is found under ..%08x, has room ..%08x of state %u", i,
        (uint32_t)id, (uint32_t)e->rooms[i].r.id, e->rooms[i].life);
    return i == NONE || !secret_eq(&e->rooms[i].secret, secret) ? NULL
                                                                : &e->rooms[i];
}

void eroom_touch(struct encoded *e, struct eroom *m)
{
    CHECK(m->r.used, "room ..%08x is touched and not used", (uint32_t)m->r.id);
    if (!list_linked(&m->r.todo))
        list_push_tail(&e->room_todo, &m->r.todo);
}

void edst_touch(struct encoded *e, struct edst *d)
{
    CHECK(d->state != DST_FREE, "destination %u is touched and free",
        edst_slot(e, d));
    if (!list_linked(&d->todo))
        list_push_tail(&e->dst_todo, &d->todo);
}

void edsts_touch(struct encoded *e, struct eroom *m)
{
    LIST_FOREACH (n, &m->dsts)
        edst_touch(e, LIST_ENTRY(n, struct edst, in_room));
}

void item_touch(struct encoded *e, const struct item *it)
{
    LIST_FOREACH (n, &it->rooms) {
        struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);

        eroom_touch(e, m);
        edsts_touch(e, m);
    }
}

/* steps */

struct step {
    const char *name, *text;
    uint32_t to; /* bit i: state i may come next */
};

static const struct step eroom_steps[] = {
#define TO(name)              (UINT32_C(1) << EROOM_##name)
#define EROOM(name, to, text) [EROOM_##name] = {#name, text, to},
#include "core/encode/life.def"
};

static const struct step edst_steps[] = {
#define TO(name)             (UINT32_C(1) << DST_##name)
#define EDST(name, to, text) [DST_##name] = {#name, text, to},
#include "core/encode/life.def"
};

static const struct step job_steps[] = {
#define TO(name)            (UINT32_C(1) << JOB_##name)
#define JOB(name, to, text) [JOB_##name] = {#name, text, to},
#include "core/encode/life.def"
};

static const struct step item_steps[] = {
#define TO(name)             (UINT32_C(1) << ITEM_##name)
#define ITEM(name, to, text) [ITEM_##name] = {#name, text, to},
#include "core/encode/life.def"
};

static void check_step(const struct step *steps, uint32_t from, uint32_t to,
    const char *what, uint64_t id)
{
    CHECK(steps[from].to >> to & 1, "%s %llu becomes %s, was %s (%s)", what,
        (unsigned long long)id, steps[to].name, steps[from].name,
        steps[from].text);
}

void eroom_move(struct encoded *e, struct eroom *m, enum eroom_life to)
{
    bool found = eroom_found(m), running = eroom_running(m);

    check_step(eroom_steps, m->life, to, "room", m->r.id);
    if (m->life == EROOM_KEPT) {
        m->kept_ns = TIME_NEVER;
        list_remove(&m->in_kept);
    }
    m->life = (uint8_t)to;
    CHECK((to == EROOM_KEPT) == (m->kept_ns != TIME_NEVER),
        "room ..%08x becomes %s, kept until %llu", (uint32_t)m->r.id,
        eroom_steps[to].name, (unsigned long long)m->kept_ns);
    if (to == EROOM_KEPT)
        list_push_tail(&eroom_pool(e, m)->kept, &m->in_kept);
    if (found && !eroom_found(m))
        table_remove(&e->ids, m->r.id, m->name);
    e->open += eroom_running(m) - (uint32_t)running;
    e->rooms_used += (to == EROOM_AWAITED) - (uint32_t)(to == EROOM_FREE);
}

void edst_move(struct encoded *e, struct edst *d, enum dst_state to)
{
    bool active = d->state != DST_FREE && !edst_ended(d);

    check_step(edst_steps, d->state, to, "destination", edst_slot(e, d));
    CHECK((to == DST_FENCED) == (to >= DST_FENCED && d->map != NONE),
        "destination %u becomes %s with a fence of connection %u",
        edst_slot(e, d), edst_steps[to].name, d->map);
    d->state = (uint8_t)to;
    d->room->active += (to != DST_FREE && !edst_ended(d)) - (uint32_t)active;
    e->dsts_used += (to == DST_NEW) - (uint32_t)(to == DST_FREE);
}

void edst_move_job(const struct encoded *e, struct edst *d, enum dst_job to)
{
    check_step(job_steps, d->job, to, "job of destination", edst_slot(e, d));
    d->job = (uint8_t)to;
    d->closing_left = to == JOB_CLOSING ? e->b.c.shards : 0;
}

void item_move(struct encoded *e, struct item *it, enum item_life to)
{
    struct epool *p = &e->pools[it->pool];

    CHECK(it >= e->items && it < e->items + e->rooms_max,
        "an item outside the table becomes %s", item_steps[to].name);
    check_step(item_steps, it->life, to, "item", (uint64_t)(it - e->items));
    p->waiting += (to == ITEM_QUEUED) - (uint32_t)(it->life == ITEM_QUEUED);
    it->life = (uint8_t)to;
}

/* rooms that ended */

void eroom_unlink(struct encoded *e, struct eroom *m, enum err reason)
{
    bool over = m->r.state == ROOM_SUCCESS || m->r.state == ROOM_FAILED;
    enum eroom_life to = over ? EROOM_RELEASING : EROOM_REVOKED;
    struct tomb *t;

    CHECK(eroom_announced(m), "room ..%08x loses its id in state %u",
        (uint32_t)m->r.id, m->life);
    if (eroom_found(m)) {
        t = tomb_put(&e->ended_rooms, e->b.now_ns, m->r.id, m->name,
            m->item->uid, m->r.state, (uint8_t)reason);
        t->owner = over ? m->r.session : NONE;
        t->end_reason = m->r.reason;
    }
    if (m->life < to) /* otherwise the id was freed earlier */
        eroom_move(e, m, to);
    eroom_touch(e, m);
}

void eroom_give_place(struct encoded *e, unsigned counter)
{
    e->b.stats[counter]++;
    for (uint32_t i = 0; i < e->b.pools_count; i++)
        LIST_FOREACH (n, &e->pools[i].kept) {
            struct eroom *m = LIST_ENTRY(n, struct eroom, in_kept);

            if (m->active > 0)
                continue;
            eroom_unlink(e, m, ERR_GONE);
            return;
        }
}

bool eroom_read_elsewhere(const struct eroom *m)
{
    LIST_FOREACH (n, &m->dsts)
        if (LIST_ENTRY(n, struct edst, in_room)->map != NONE)
            return true;
    return false;
}

/* keys of items */

uint64_t item_key_hash(const struct key *key, uint32_t uid)
{
    return span_hash(span_of(key->b, sizeof(key->b))) ^ uid;
}
