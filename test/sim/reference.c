/* reference.c - who should get blocks and space for aux now, and in which
 * order: RULES 5.1 to 5.3, 5.5, 5.8, 5.11 and 5.13 in the plainest code,
 * compared with every step of both brains. To be read beside that page.
 *
 * It works out by itself what a room wants, which rooms wait and in which
 * order, and what is full. It believes the brain about what came from outside
 * (requests, lengths, WANTs, rows, grants), about ages (7.6), about the lives
 * of rooms, and about three things of long ago: that a group was admitted, that
 * an item is a victim, that it asks ahead.
 *
 * A second brain that is stepped beside the first was rejected: it would need
 * the same messages, and what it said would be as hard to read. */
#include "test/sim/reference.h"

/* blocks of a langd */

uint32_t blocks_most(const struct lpool *p, uint8_t mode)
{
    uint32_t most = (uint32_t)p->meta->conf->max_room_blocks;

    if (most || mode == MODE_WHOLE)
        return most ? most : p->p.blocks;
    return min_u32(max_u32(p->p.blocks / 2, STREAM_MIN), p->p.blocks);
}

/* Returns the blocks for the rows for which the room should have places (4.1,
 * 4.3, 5.1, 5.6), as far as one room may hold them. */
static uint32_t needs(const struct lorder *k, const struct lroom *m)
{
    const struct lpool *p = &k->l->pools[m->pool];
    uint64_t rows = m->expected, hold;

    if (m->hopes)
        /* a room that hopes: its rows are lent (6.7), or a grant is asked
         * for */
        return 0;
    if (!rows)
        rows = p->meta->conf->default_blocks * p->block_rows;
    if (m->mode == MODE_STREAM) { /* what the stream was promised (5.20) */
        hold = max_u64(STREAM_MIN, min_u64(p->meta->conf->default_blocks,
                                       blocks_most(p, MODE_STREAM)));
        rows = max_u64(rows, m->base + hold * p->block_rows);
    }
    if (m->total != ROWS_UNKNOWN)
        rows = m->total;
    else if (m->length_known)
        rows = m->want || m->group
                   ? m->max_rows
                   : min_u64(max_u64(rows, m->committed), m->max_rows);
    rows -= min_u64(rows, m->base);
    return (uint32_t)min_u64(
        (rows + p->block_rows - 1) / p->block_rows, blocks_most(p, m->mode));
}

struct gfact group_of(const struct lorder *k, const struct lgroup *g)
{
    struct gfact of = {.known = g->joined == g->size};

    LIST_FOREACH (n, &g->members) {
        const struct lroom *o = LIST_ENTRY(n, struct lroom, in_group);

        of.known &= o->length_known;
        of.lacks_aux |= lroom_lacks_aux(o);
        of.closing |= lroom_closing(o);
        of.hopes |= o->hopes;
        of.needs += needs(k, o);
        of.held += o->held.blocks;
        of.chunks += lroom_lacks_aux(o) ? aux_chunks(o->aux_len) : 0;
    }
    of.needs =
        min_u32(of.needs, blocks_most(&k->l->pools[g->pool], MODE_WHOLE));
    return of;
}

/* A group waits as one, in place of its first member, when all lengths are
 * known: for aux, then for blocks. */
/* RULES 5.5 */
static void see_group(const struct lorder *k, struct lfact *f)
{
    struct gfact of = {.known = false};

    if (f->group->members.next == &f->m->in_group)
        of = group_of(k, f->group);
    f->chunks = of.known ? of.chunks : 0;
    if (!of.known || f->admitted || of.hopes)
        return;
    f->queued = !of.lacks_aux && !of.closing;
    f->lacks = of.needs - min_u32(of.needs, of.held);
}

void reference_room(
    const struct lorder *k, const struct lroom *m, struct lfact *f)
{
    bool lacks_aux = lroom_lacks_aux(m);
    bool alone = f->plays && !m->group && !lacks_aux;
    uint32_t n = f->plays ? needs(k, m) : 0;

    f->chunks = f->alive && lacks_aux ? aux_chunks(m->aux_len) : 0;
    f->lacks = n - min_u32(n, m->held.blocks);
    f->queued = alone && m->want && (m->length_known || m->required > 1) &&
                (f->lacks > 0 || !f->firm);
    f->idle = alone && !m->want && m->required <= 1 && f->lacks > 0;
    if (f->group)
        see_group(k, f);
}

/* A room got blocks, or its blocks became firm: no older room with as much
 * right waits. */
/* RULES 5.1, 5.2, 5.3 */
static void see_given(struct lorder *k, const struct lfact *f)
{
    const struct lfact *b = &k->was[f - k->now];
    struct lline *line = &k->line[f->pool];

    if (!lfact_same(b, f) || f->attempt != b->attempt || f->base != b->base ||
        (f->held <= b->held && f->firm <= b->firm))
        return; /* a stream gets blocks for those that it released (5.20) */
    if (b->admitted)
        return; /* blocks that were kept for its group (5.6) */
    if (f->firm)
        line->served = min_u64(line->served, f->age);
    HOLDS(!f->firm || f->group || f->lacks == 0, "firm is all that is needed",
        "%s room %llu lacks %u more", NAMED(f->m->r.id), f->lacks);
    HOLDS(!line->head || (f->firm && line->head->age > f->age),
        "the oldest is served first",
        "%s room %llu (firm %d) has %u blocks, had %u; room %llu waits",
        NAMED(f->m->r.id), f->firm, f->held, b->held,
        (unsigned long long)line->head->m->r.id);
    HOLDS(f->firm || !line->idle || line->idle->age > f->age,
        "the oldest is served first",
        "%s room %llu got blocks, room %llu could use them", NAMED(f->m->r.id),
        (unsigned long long)line->idle->m->r.id);
}

void reference_blocks(struct lorder *k)
{
    for (uint32_t i = 0; i < k->count; i++) {
        const struct lfact *f = k->live[i];
        struct lline *line = &k->line[f->pool];

        if (f->queued && (!line->head || f->age < line->head->age))
            line->head = f;
        if (f->idle && (!line->idle || f->age < line->idle->age))
            line->idle = f;
    }
    for (uint32_t i = 0; i < k->count; i++)
        see_given(k, k->live[i]);
    for (uint32_t i = 0; i < k->l->b.pools_count; i++) {
        const struct lpool *p = &k->l->pools[i];
        struct lline *line = &k->line[i];
        const struct lfact *f = line->head ? line->head : line->idle;

        line->lacks = f ? f->lacks : 0;
        HOLDS(!f || line->lacks + p->spare > p->p.free,
            line->head ? "a head that fits is served"
                       : "what could be used is given",
            "%s room %llu waits for %u blocks, %u are free, %u spare",
            NAMED(f->m->r.id), line->lacks, p->p.free, p->spare);
    }
}

/* space for aux of a langd */

enum aux_class aux_class_of(const struct lroom *m)
{
    if (m->group)
        return m->group->admitted ? AUX_FIRST : AUX_ROWS;
    if (lroom_firm(m) || m->exposed > 0)
        return AUX_FIRST;
    return m->want || m->landed > 0 || m->total == 0 ? AUX_ROWS : AUX_BARE;
}

static bool comes_before(const struct lroom *a, const struct lroom *b)
{
    enum aux_class x = aux_class_of(a), y = aux_class_of(b);

    return x != y ? x < y : a->age < b->age;
}

/* A room got aux space: no room that comes before it waits, except another
 * user's while the room's own user has little. */
/* RULES 5.8 */
static void see_got(
    const struct lorder *k, const struct lfact *f, const struct lroom *head)
{
    const struct share *s = &k->l->b.aux.share;
    bool passes = head->uid != f->m->uid &&
                  share_used(s, f->m->uid) <= (s->total - s->limit) / 2;

    HOLDS(passes || !comes_before(head, f->m) ||
              (f->m->group && f->m->group == head->group),
        "the first gets space for its aux", "%s room %llu, room %llu waits",
        NAMED(f->m->r.id), (unsigned long long)head->r.id);
}

void reference_space(struct lorder *k)
{
    const struct lfact *head = NULL;

    for (uint32_t i = 0; i < k->count; i++)
        if (k->live[i]->chunks > 0 &&
            (!head || comes_before(k->live[i]->m, head->m)))
            head = k->live[i];
    k->aux_head = head ? head->m : NULL;
    HOLDS(!head || !share_may(&k->l->b.aux.share, head->m->uid, head->chunks),
        "aux that fits is given space", "%s room %llu waits",
        NAMED(head->m->r.id));
    for (uint32_t i = 0; head && i < k->count; i++) {
        const struct lfact *f = k->live[i], *b = &k->was[f - k->now];

        if (f->aux && f->alive && (!b->aux || b->generation != f->generation))
            see_got(k, f, head->m);
    }
}

/* source blocks of an encoded */

/* True if all destinations of the room have granted firmly; of an open room one
 * is enough. */
static bool room_full(const struct eroom *m)
{
    uint32_t firm = 0, lacking = 0;

    LIST_FOREACH (n, &m->dsts) {
        const struct edst *o = LIST_ENTRY(n, struct edst, in_room);

        firm += o->state == DST_ACTIVE && o->firm == FIRM_YES;
        lacking += o->state == DST_ACTIVE && o->firm != FIRM_YES;
    }
    if (m->flags & FLAG_OPEN && eroom_serves(m))
        return firm > 0;
    return !eroom_failing(m) && firm > 0 && lacking == 0 &&
           (eroom_ended(m) || (m->required && m->asked >= m->required));
}

static bool item_full(const struct item *it)
{
    LIST_FOREACH (n, &it->rooms)
        if (room_full(LIST_ENTRY(n, struct eroom, in_item)))
            return true;
    return false;
}

/* Finds who asked first for one of the item's rooms, and with which turn. */
static void see_asked(const struct item *it, struct efact *f)
{
    LIST_FOREACH (n, &it->rooms)
        LIST_FOREACH (i, &LIST_ENTRY(n, struct eroom, in_item)->dsts) {
            const struct edst *o = LIST_ENTRY(i, struct edst, in_room);

            if (f->langd || o->state != DST_ACTIVE)
                continue;
            f->langd = (uint64_t)o->peer + 1;
            f->there = o->turn;
        }
}

/* A batch waits for blocks as one, in place of its first item. */
void reference_item(
    const struct eorder *k, const struct item *it, struct efact *f)
{
    const struct efact *b = &k->was[f - k->now];
    const struct item *o = it;
    bool victim = false, ahead = false;

    see_asked(it, f);
    f->own_full = item_full(it);
    f->got = !f->waits && it->src.blocks > 0 && (!efact_same(b, f) || b->waits);
    f->batch = it->batch;
    f->queued = it->life == ITEM_QUEUED;
    if (!f->queued) {
        f->full = f->waits && efact_same(b, f) && b->full;
        return;
    }
    do {
        f->lacks += div_up(o->max_rows, k->e->pools[it->pool].block_rows);
        f->full |= o->total != 0 && item_full(o);
        victim |= o->victim;
        ahead |= o->ahead;
        o = LIST_ENTRY(o->in_batch.next, struct item, in_batch);
    } while (o != it);
    f->barred = victim && !f->full;
    f->plain = !f->full && !victim && !ahead;
}

/* True if f comes before an item of that turn: full ones by turn, then the
 * others by turn. */
/* RULES 5.11 */
static bool earlier(const struct efact *f, bool full, uint64_t turn)
{
    return f->full != full ? f->full : f->turn < turn;
}

/* `by` got blocks: no item that is before it in the order waits without being
 * barred. */
/* RULES 5.11, 5.13 */
static void see_served(const struct eorder *k, const struct efact *by)
{
    const struct efact *was = &k->was[by - k->now];
    bool full = false;

    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        full |= k->now[i].turn == by->turn && k->now[i].own_full;
    HOLDS(!by->it->victim || full || was->full, "once",
        "%s item of turn %llu is a victim", NAMED(by->turn));
    if (efact_same(was, by) && was->full != full)
        return; /* `full` changed in this step: its old place says nothing */
    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        const struct efact *f = &k->now[i], *b = &k->was[i];

        HOLDS(!f->queued || f->pool != by->pool || !b->waits ||
                  !efact_same(b, f) || f->barred || f->full != b->full ||
                  !earlier(f, full, by->turn),
            "the oldest gets source blocks",
            "%s item of turn %llu, full %d, got them, one of turn %llu waits",
            NAMED(by->turn), full, (unsigned long long)f->turn);
    }
}

/* `by` got blocks: so did all of its batch, unless the blocks that are left are
 * too scattered. */
/* RULES 5.11 */
static void see_batch(const struct eorder *k, const struct efact *by)
{
    const struct efact *was = &k->was[by - k->now];

    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        const struct efact *f = &k->now[i], *b = &k->was[i];

        HOLDS(!efact_same(was, by) || !efact_same(b, f) || !f->waits ||
                  b->batch != was->batch ||
                  k->e->pools[f->pool].p.scattered != NONE,
            "a batch gets blocks as one",
            "%s item of turn %llu got them, one of turn %llu waits",
            NAMED(by->turn), (unsigned long long)f->turn);
    }
}

/* Of a langd's items that wait alike, the one that is first at that langd has
 * the lowest turn. */
/* RULES 5.11 */
static void see_ticket(const struct eorder *k, const struct efact *head)
{
    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        const struct efact *f = &k->now[i];

        HOLDS(!f->queued || f->barred || f->pool != head->pool ||
                  f->full != head->full || f->ahead != head->ahead ||
                  f->langd != head->langd || !f->langd ||
                  f->there >= head->there,
            "a langd's turns go by its own",
            "%s item of turn %llu is next, one of turn %llu is first there",
            NAMED(head->turn), (unsigned long long)f->turn);
    }
}

/* The item has another turn than before: one that an item of the same langd
 * had. */
/* RULES 5.11 */
static void see_moved(const struct eorder *k, uint32_t i)
{
    const struct efact *f = &k->now[i], *b = &k->was[i];

    if (!efact_same(b, f) || !b->queued || f->turn == b->turn ||
        f->langd != b->langd)
        return;
    for (uint32_t n = 0; n < k->e->rooms_max; n++)
        HOLDS(k->was[n].turn != f->turn || !k->was[n].queued ||
                  k->was[n].langd == f->langd || k->now[n].langd == f->langd,
            "turns stay with their langd", "%s item of turn %llu had %llu",
            NAMED(f->turn), (unsigned long long)b->turn);
}

void reference_sources(struct eorder *k)
{
    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        const struct efact *f = &k->now[i], **head = &k->line[f->pool].head;

        see_moved(k, i);
        if (f->queued && !f->barred &&
            (!*head || earlier(f, (*head)->full, (*head)->turn)))
            *head = f;
        if (!f->got)
            continue;
        for (uint32_t n = i + 1; n < k->e->rooms_max; n++)
            k->now[n].got &= k->now[n].turn != f->turn; /* once for a batch */
        see_batch(k, f);
        see_served(k, f);
    }
    for (uint32_t i = 0; i < k->e->b.pools_count; i++) {
        const struct efact *head = k->line[i].head;

        if (head)
            see_ticket(k, head);
        k->line[i].lacks = head ? head->lacks : 0;
        HOLDS(!head || head->lacks > k->e->pools[i].p.free,
            "a head that fits is served",
            "%s item of turn %llu waits for %u blocks, %u are free",
            NAMED(head->turn), head->lacks, k->e->pools[i].p.free);
    }
}
