/* reference_encoded.c - who gets source blocks, and which item is ended for
 * another: RULES 5.11 to 5.15 and 5.21 in the plainest words, held against
 * every step of the brain, as in reference_langd.c. The brain's word it takes
 * for what came from outside, for ages and the lives of rooms, and for what an
 * item was marked as: a victim, or one that asks ahead. */
#include "test/sim/sim.h"

#include "core/encode/encode.h"

/* What waits for blocks as one, by its first item: all of a batch. */
struct batch {
    const struct item *first;
    uint32_t blocks;
    bool full, victim, ahead;
};

struct ewas {
    uint64_t age, turn; /* age + 1; 0: no item */
    uint32_t pool;
    uint64_t moved_ns;
    uint32_t passed, older; /* while plain */
    uint32_t blocks;        /* unless they came back already */
    uint64_t kept_ns, room; /* until when; the last of its rooms */
    uint32_t name;
    bool kept; /* all of its rooms are KEPT */
    bool waits, full, plain, ahead, lacks, complete, ended;
};

struct ebook {
    uint32_t life;
    const struct daemon *d;
    struct encoded *e;
    struct ewas *items;
    /* By room: since when no langd asks for its rows, and for none of its
     * item's; 0: one does. */
    struct {
        uint64_t opened_ns, room_ns, item_ns, age; /* of its item */
        const struct item *item;
    } * bare;
    struct {
        uint64_t head, head_ns; /* the full head's turn + 1, since when */
        uint64_t stuck_ns;      /* since when an item is to be ended; 0: none */
        uint64_t lacks_ns; /* from when on the head lacks blocks, and none come;
                              TIME_NEVER: not by time alone */
        bool ends;         /* all that ends leaves it without them */
        /* In this step: most blocks of one kept item that was let go of; blocks
         * of others that came back; an item left the queue without any. */
        uint32_t gone, back;
        bool left;
    } pools[CONF_POOLS_MAX];
    uint64_t unclaimed, revoked, table_full, dropped, after_ns;
    bool *fresh; /* by item: plain, and was not */
};

/* full */

/* True if all destinations of the room have granted firmly; one is enough of an
 * open room (5.11). */
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

static struct batch batch_of(const struct ebook *k, const struct item *it)
{
    uint32_t rows = k->e->pools[it->pool].block_rows;
    struct batch b = {it, div_up(it->max_rows, rows),
        it->total != 0 && item_full(it), it->victim, it->ahead};

    LIST_FOREACH (n, &it->in_batch) {
        const struct item *o = LIST_ENTRY(n, struct item, in_batch);

        b.blocks += div_up(o->max_rows, rows);
        b.full |= o->total != 0 && item_full(o);
        b.victim |= o->victim;
        b.ahead |= o->ahead;
    }
    return b;
}

/* the queue */

/* True if a comes before one of that turn: full ones by age, then the others by
 * age (5.11). */
static bool earlier(const struct batch *a, bool full, uint64_t turn)
{
    return a->full != full ? a->full : a->first->turn < turn;
}

/* The first that may have blocks: a victim only once it is full (5.13). */
static struct batch head_of(const struct ebook *k, uint32_t pool)
{
    struct batch head = {.first = NULL};

    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        const struct item *it = &k->e->items[i];
        struct batch b;

        if (it->life != ITEM_QUEUED || it->pool != pool)
            continue;
        b = batch_of(k, it);
        if ((b.full || !b.victim) &&
            (!head.first || earlier(&b, head.full, head.first->turn)))
            head = b;
    }
    return head;
}

/* True if item i got blocks in this step, as the first of its batch here. */
static bool served(const struct ebook *k, uint32_t i)
{
    const struct item *it = &k->e->items[i];

    if (it->life == ITEM_FREE || !item_held(it) || it->src.blocks == 0 ||
        (k->items[i].age == it->age + 1 && !k->items[i].waits))
        return false;
    for (uint32_t n = 0; n < i; n++)
        if (k->e->items[n].turn == it->turn && served(k, n))
            return false;
    return true;
}

/* Item `by` got blocks: none that came before it waits, and one that it passed
 * by more right was not passed too often: each time the oldest that does not
 * ask ahead begins to (5.14). */
/* RULES 5.11, 5.13 */
static void see_served(const struct ebook *k, uint32_t by)
{
    const struct item *it = &k->e->items[by];
    bool was = k->items[by].age == it->age + 1, full = false;

    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        full |= k->e->items[i].life != ITEM_FREE &&
                k->e->items[i].turn == it->turn && item_full(&k->e->items[i]);
    HOLDS(!it->victim || full || k->items[by].full, "once",
        "%s item %u of age %llu is a victim", k->d->conf->name, by,
        (unsigned long long)it->age);
    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        const struct item *o = &k->e->items[i];
        struct ewas *b = &k->items[i];
        struct batch a;

        if (o->life != ITEM_QUEUED || o->pool != it->pool || !b->waits ||
            b->age != o->age + 1)
            continue;
        a = batch_of(k, o);
        HOLDS((a.victim && !a.full) || a.full != b->full ||
                  (was && k->items[by].full != full) ||
                  !earlier(&a, full, it->turn),
            "the oldest gets source blocks",
            "%s item %u of age %llu, full %d, got %u blocks, item %u of age "
            "%llu, full %d, waits",
            k->d->conf->name, by, (unsigned long long)it->age, full,
            it->src.blocks, i, (unsigned long long)o->age, a.full);
        if (!b->plain || a.full || a.victim || a.ahead || o->turn > it->turn)
            continue;
        b->passed++;
        HOLDS(b->passed <= b->older, "none is passed too often",
            "%s item %u of age %llu was passed %u times, %u older ones waited",
            k->d->conf->name, i, (unsigned long long)o->age, b->passed,
            b->older);
    }
}

/* victims */

/* True if the langd of one of the room's destinations has it in its queue, or
 * one has not asked. */
static bool room_lacks(const struct eroom *m)
{
    LIST_FOREACH (n, &m->dsts) {
        const struct edst *o = LIST_ENTRY(n, struct edst, in_room);

        if (o->state == DST_ACTIVE && o->firm != FIRM_YES && o->want_known &&
            edst_rows_wait(o))
            return true;
    }
    return !eroom_ended(m) && !(m->flags & FLAG_OPEN) &&
           m->asked < max_u32(m->required, 1);
}

/* What is true of all rooms, or of one, of an item that holds blocks. */
struct look {
    bool lacks, active, ends, ended;
    bool bare, held; /* none asks for its rows, and nothing reads them; one
                        does, or reads them elsewhere */
};

/* True if a destination of the room may still read its rows; sends: or sends
 * of ours. */
static bool read_on(const struct eroom *m, bool sends)
{
    LIST_FOREACH (n, &m->dsts) {
        const struct edst *o = LIST_ENTRY(n, struct edst, in_room);

        if (o->state != DST_ENDED || o->map != NONE ||
            (sends && o->job != JOB_NONE))
            return true;
    }
    return false;
}

static struct look look_at(const struct item *it)
{
    struct look l = {.ends = true, .bare = true};

    LIST_FOREACH (n, &it->rooms) {
        const struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);
        bool gone = eroom_failing(m) || m->life >= EROOM_RELEASING;
        bool asks_none = m->life == EROOM_LIVE && item_done(it) &&
                         m->served == 0 && list_empty(&m->dsts);

        l.lacks |= room_lacks(m);
        l.active |= m->active > 0;
        l.ends &= eroom_failing(m) || (gone && m->active == 0);
        l.ended |= eroom_failing(m) && m->fail_reason == ERR_NO_BLOCKS;
        l.bare &= asks_none || (gone && !read_on(m, true));
        l.held |= !asks_none && (!gone || read_on(m, false));
    }
    return l;
}

static bool rested(const struct ebook *k, uint64_t moved_ns)
{
    return k->d->now_ns - moved_ns >= k->e->b.c.conf->timeout_progress;
}

/* True if it stands, by what it was before the step and the time that it is
 * (5.12). */
static bool stood(const struct ebook *k, const struct ewas *b)
{
    return b->age && b->lacks && (b->complete || rested(k, b->moved_ns));
}

/* The item was ended for the full head: it had waited, and this was the
 * youngest that stood. */
/* RULES 5.12 */
static void see_ended(struct ebook *k, const struct ewas *b)
{
    HOLDS(stood(k, b), "what is ended stands", "%s item of age %llu",
        k->d->conf->name, (unsigned long long)b->age);
    HOLDS(k->pools[b->pool].head &&
              k->pools[b->pool].lacks_ns <= k->d->now_ns &&
              k->d->now_ns - k->pools[b->pool].head_ns >=
                  k->e->b.c.conf->timeout_revoke_after,
        "a full head waits before one is ended for it", "%s item of age %llu",
        k->d->conf->name, (unsigned long long)b->age);
    k->pools[b->pool].stuck_ns = 0;
    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        const struct item *o = &k->e->items[i];

        HOLDS(k->items[i].age != o->age + 1 || o->pool != b->pool ||
                  o->age < b->age || !stood(k, &k->items[i]) ||
                  !look_at(o).lacks || item_full(o),
            "the youngest that stands is ended", "%s age %llu, not %llu",
            k->d->conf->name, (unsigned long long)b->age,
            (unsigned long long)o->age + 1);
    }
}

/* Looks at what was ended in this step, `left` of them: those that are gone
 * already are these if there are no more of them. */
static void see_all_ended(struct ebook *k, uint64_t left)
{
    uint32_t gone = 0;

    for (int round = 0; left > 0 && round < 3; round++)
        for (uint32_t i = 0; i < k->e->rooms_max; i++) {
            const struct item *it = &k->e->items[i];
            const struct ewas *b = &k->items[i];
            bool here = it->life != ITEM_FREE && b->age == it->age + 1;

            if (!b->age || b->ended || b->waits || (here && round > 0))
                continue;
            if (round == 0 && here && look_at(it).ended) {
                see_ended(k, b);
                left--;
            }
            gone += !here && round == 1;
            if (!here && round == 2 && gone <= left)
                see_ended(k, b);
        }
}

/* Of kept items no more were let go of than for what was served and for the
 * head: the last of them was needed. left: blocks that are free, or come back.
 */
/* RULES 5.21 */
static void see_let_go(
    struct ebook *k, uint32_t pool, uint32_t head_blocks, uint64_t left)
{
    uint32_t gone = k->pools[pool].gone, back = k->pools[pool].back;
    bool other = k->table_full != k->e->b.stats[STAT_table_full] ||
                 k->dropped != k->e->b.stats[STAT_dropped] ||
                 k->pools[pool].left;

    HOLDS(!gone || other || left < (uint64_t)gone + back + head_blocks,
        "no more is let go of than is needed",
        "%s: %u blocks, %u others came back, there are %u for %u",
        k->d->conf->name, gone, back, (uint32_t)left, head_blocks);
    k->pools[pool].gone = k->pools[pool].back = 0;
    k->pools[pool].left = false;
}

/* The full head waits: the youngest is ended in time, unless blocks come back
 * by themselves (5.12). */
/* RULES 5.11, 5.12 */
static void see_head(struct ebook *k, uint32_t pool)
{
    struct batch head = head_of(k, pool);
    uint64_t coming = k->e->pools[pool].p.free, leaving = coming, turn,
             left = coming, rests_ns = TIME_NEVER;
    bool drains = false, stands = false, goes = false;
    bool looks = head.first || k->pools[pool].gone;

    HOLDS(!head.first || head.blocks > coming, "a head that fits is served",
        "%s item of age %llu waits for %u blocks, %llu are free",
        k->d->conf->name, (unsigned long long)head.first->age, head.blocks,
        (unsigned long long)coming);
    for (uint32_t i = 0; looks && i < k->e->rooms_max; i++) {
        const struct item *it = &k->e->items[i];
        bool idle = rested(k, it->moved_ns), full;
        struct look l;

        if (!item_held(it) || it->pool != pool || it->src.blocks == 0)
            continue;
        l = look_at(it);
        full = item_full(it);
        leaving += l.ends ? it->src.blocks : 0;
        left += it->leaving == it->refs ? it->src.blocks : 0;
        coming += l.ends && !idle ? it->src.blocks : 0;
        if (!l.ends && l.active && it->committed > 0 && !l.lacks) {
            goes |= item_complete(it);
            drains |= full && !idle;
        }
        if (!idle)
            rests_ns = min_u64(
                rests_ns, it->moved_ns + k->e->b.c.conf->timeout_progress);
        stands |= !l.ends && !full && l.lacks && (item_complete(it) || idle);
    }
    see_let_go(k, pool, head.first ? head.blocks : 0, left);
    turn = head.first && head.full ? head.first->turn + 1 : 0;
    if (turn != k->pools[pool].head)
        k->pools[pool].head_ns = k->d->now_ns;
    if (turn != k->pools[pool].head || !turn || goes || drains || !stands ||
        coming >= head.blocks)
        k->pools[pool].stuck_ns = 0;
    else if (!k->pools[pool].stuck_ns)
        k->pools[pool].stuck_ns = k->d->now_ns;
    k->pools[pool].head = turn;
    k->pools[pool].lacks_ns = !head.first || goes               ? TIME_NEVER
                              : drains || coming >= head.blocks ? rests_ns
                                                                : 0;
    k->pools[pool].ends = head.first && leaving < head.blocks;
    k->after_ns =
        max_u64(k->after_ns, max_u64(MS, k->e->b.c.conf->timeout_revoke_after));
    HOLDS(!k->pools[pool].stuck_ns || k->d->last != EV_TIME ||
              k->d->now_ns - k->pools[pool].stuck_ns <= k->after_ns,
        "a full head gets its blocks", "%s item of age %llu waits",
        k->d->conf->name, (unsigned long long)head.first->age);
}

/* rows that no langd asks for (5.21) */

static bool unclaimed(const struct eroom *m)
{
    return m->life == EROOM_LIVE && item_done(m->item) &&
           m->item->src.blocks > 0 && m->served == 0 && list_empty(&m->dsts);
}

/* RULES 5.21 */
static void see_unclaimed(struct ebook *k, uint32_t i, bool ended)
{
    const struct eroom *m = &k->e->rooms[i];
    uint64_t opened = m->life == EROOM_FREE ? 0 : m->history.opened_ns + 1;
    bool was = k->bare[i].room_ns && k->bare[i].opened_ns == opened;
    uint64_t patience = k->e->b.c.conf->timeout_unclaimed;
    bool one = opened && unclaimed(m), all = one && look_at(m->item).bare;
    bool gave_way =
        was && ended && !eroom_serves(m) && m->fail_reason == ERR_GONE;

    HOLDS(!gave_way || k->d->now_ns - k->bare[i].room_ns + 1 >= patience,
        "rows that none asked for stay a while", "%s room %llu ends",
        k->d->conf->name, (unsigned long long)m->r.id);
    HOLDS(!gave_way || !look_at(k->bare[i].item).held ||
              k->bare[i].item->age != k->bare[i].age,
        "rows stay whose blocks would not come", "%s room %llu ends",
        k->d->conf->name, (unsigned long long)m->r.id);
    if (!one || !was)
        k->bare[i].room_ns = one ? k->d->now_ns + 1 : 0;
    if (!all || !was || !k->bare[i].item_ns)
        k->bare[i].item_ns = all ? k->d->now_ns + 1 : 0;
    k->bare[i].opened_ns = opened;
    if (one) {
        k->bare[i].item = m->item;
        k->bare[i].age = m->item->age;
    }
    HOLDS(!all || k->d->last != EV_TIME || !k->pools[m->item->pool].ends ||
              brain_deadline(&k->e->b) <= k->d->now_ns || /* at once */
              k->d->now_ns - k->bare[i].item_ns + 1 < patience,
        "rows that none asked for give way", "%s room %llu stays",
        k->d->conf->name, (unsigned long long)m->r.id);
}

/* Counts what came back of an item in this step: of kept rows that were let go
 * of before their time (5.21), or else. */
static void count_back(struct ebook *k, uint32_t i)
{
    const struct item *it = &k->e->items[i];
    const struct ewas *b = &k->items[i];
    bool here = it->life != ITEM_FREE && it->age + 1 == b->age;
    bool back = b->blocks && (!here || it->leaving == it->refs);
    const struct tomb *t =
        b->kept && b->kept_ns > k->d->now_ns
            ? memory_get(&k->e->ended_rooms, k->d->now_ns, b->room, b->name)
            : NULL;

    if (back && t && t->reason == ERR_GONE)
        k->pools[b->pool].gone = max_u32(k->pools[b->pool].gone, b->blocks);
    else if (back)
        k->pools[b->pool].back += b->blocks;
    k->pools[b->pool].left |= b->waits && !here;
}

/* each step */

static void remember(struct ebook *k, uint32_t i)
{
    const struct item *it = &k->e->items[i];
    struct ewas was = k->items[i], *b = &k->items[i];
    bool same = it->life != ITEM_FREE && was.age == it->age + 1;
    struct batch a;
    struct look l;

    *b = (struct ewas){.age = it->life == ITEM_FREE ? 0 : it->age + 1};
    if (!b->age)
        return;
    l = look_at(it);
    b->turn = it->turn;
    b->pool = it->pool;
    b->moved_ns = it->moved_ns;
    b->complete = item_complete(it);
    b->ended = l.ended;
    b->ahead = it->ahead;
    b->blocks = it->leaving == it->refs ? 0 : it->src.blocks;
    b->kept = true;
    b->kept_ns = TIME_NEVER;
    LIST_FOREACH (n, &it->rooms) {
        const struct eroom *m = LIST_ENTRY(n, struct eroom, in_item);

        b->kept &= m->life == EROOM_KEPT && m->active == 0;
        b->kept_ns = min_u64(b->kept_ns, m->kept_ns);
        b->room = m->r.id;
        b->name = m->name;
    }
    b->lacks = it->src.blocks > 0 && l.lacks && !l.ends && !item_full(it);
    b->waits = it->life < ITEM_HELD;
    if (it->life != ITEM_QUEUED) {
        b->full = b->waits && same && was.full;
        return;
    }
    a = batch_of(k, it);
    b->full = a.full;
    b->plain = !a.full && !a.victim && !a.ahead;
    if (same && was.plain && b->plain) {
        b->passed = was.passed;
        b->older = was.older;
    }
}

/* Counts, of each that does not ask ahead, those before it in the queue that do
 * not either, each once. */
/* RULES 5.14 */
static void count_older(struct ebook *k)
{
    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        for (uint32_t n = 0; k->items[i].plain && n < k->e->rooms_max; n++)
            k->items[i].older += k->items[n].plain &&
                                 (k->fresh[n] || k->fresh[i]) &&
                                 k->e->items[n].pool == k->e->items[i].pool &&
                                 k->items[n].turn < k->items[i].turn;
}

/* An item that waited as full may have been plain for an instant of this step,
 * been passed, and have begun to ask ahead or have gone: it was before those
 * that are younger, too. */
static void count_short(struct ebook *k, uint32_t n)
{
    const struct item *it = &k->e->items[n];
    const struct ewas *b = &k->items[n];
    bool here = it->life == ITEM_QUEUED && b->age == it->age + 1;

    if (!b->waits || b->plain || b->ahead || (here && !it->ahead))
        return;
    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        k->items[i].older += k->items[i].plain && k->items[i].pool == b->pool &&
                             k->items[i].turn > b->turn;
}

static struct ebook *ebook_of(struct daemon *d)
{
    static struct ebook *of[DAEMONS_MAX];
    struct ebook *k = of[d->index];

    if (k && k->life == d->life)
        return k;
    k = of[d->index] = must_alloc(1, sizeof(*k));
    k->life = d->life;
    k->d = d;
    k->e = d->brain;
    k->items = must_alloc(k->e->rooms_max, sizeof(*k->items));
    k->fresh = must_alloc(k->e->rooms_max, sizeof(bool));
    k->bare = must_alloc(k->e->rooms_max, sizeof(*k->bare));
    return k;
}

void reference_encoded(struct daemon *d)
{
    struct ebook *k = ebook_of(d);
    uint64_t gone = k->e->b.stats[STAT_unclaimed];
    bool any = false;

    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        count_short(k, i);
    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        if (served(k, i))
            see_served(k, i);
    see_all_ended(k, k->e->b.stats[STAT_sources_revoked] - k->revoked);
    k->revoked = k->e->b.stats[STAT_sources_revoked];
    for (uint32_t i = 0; i < k->e->rooms_max; i++)
        count_back(k, i);
    for (uint32_t i = 0; i < k->e->b.pools_count; i++)
        see_head(k, i);
    k->table_full = k->e->b.stats[STAT_table_full];
    k->dropped = k->e->b.stats[STAT_dropped];
    for (uint32_t i = 0; i < k->e->rooms_max; i++) {
        see_unclaimed(k, i, gone != k->unclaimed);
        k->fresh[i] = !k->items[i].plain;
        remember(k, i);
        k->fresh[i] &= k->items[i].plain;
        any |= k->fresh[i];
    }
    if (any)
        count_older(k);
    k->unclaimed = gone;
}
