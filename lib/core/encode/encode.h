/* encode.h - the inside of the encode side's brain, for core/encode only. The
 * outside is brain.h.
 *
 * item  rows in source blocks; shared by the rooms of one key
 * room  one announced delivery of an item, or a record under which destinations
 *       wait for its announce
 * dst   one destination of a room: one generation of one langd (L below). The
 *       shards' send job has the same slot
 *
 * Handlers change fields and put records on a todo list (touch). Settling then
 * compares the state with what was sent before, and sends the difference.
 *
 * Calls go down only, in this order: encode.c; local.c, peer.c; map.c, lend.c,
 * revoke.c; decline.c; room.c; dst.c; fence.c; item.c; queue.c; line.c, life.c,
 * rights.c, show.c. */
#ifndef MMX_CORE_ENCODE_ENCODE_H
#define MMX_CORE_ENCODE_ENCODE_H

#include "base/check.h"
#include "base/heap.h"
#include "base/list.h"
#include "base/table.h"
#include "core/head.h"
#include "core/debt.h"
#include "core/move/pool.h"
#include "core/move/rowmap.h"
#include "core/memory.h"
#include "core/trace/trace.h"

/* States of the records, in the order in which they come. */
enum eroom_life {
#define EROOM(name, to, text) EROOM_##name,
#include "core/encode/life.def"
};
enum dst_state {
#define EDST(name, to, text) DST_##name,
#include "core/encode/life.def"
};
enum dst_job {
#define JOB(name, to, text) JOB_##name,
#include "core/encode/life.def"
};
enum item_life {
#define ITEM(name, to, text) ITEM_##name,
#include "core/encode/life.def"
};

/* Items that get blocks together, and what they add up to. */
struct ebatch {
    struct item *first;
    uint32_t items, blocks, victims, full;
};

/* An item's place among the items of its queue that one langd asked for. */
struct in_line {
    uint32_t langd;       /* number of its peer; NONE: in no line */
    uint64_t there, here; /* the order: by the turn at the langd, then by the
                             turn that was drawn here */
    uint64_t weight;      /* differs for each item */
    struct item *left, *right;
};

struct item {
    uint8_t life; /* enum item_life; item_move changes it */
    uint8_t storage;
    uint16_t pool;
    /* Facts beside its life. keyed: announces find the item by its key; ahead:
     * it was overtaken, and asks for its grants early (item_asks); victim: it
     * was revoked once, and gets blocks only with all grants. */
    bool keyed, ahead, victim;
    bool full;                   /* counts in batch->full */
    struct ebatch *batch;        /* until it has its blocks */
    uint32_t uid, refs, leaving; /* rooms on it; of these, leaving */
    uint32_t unclaimed;          /* its rooms on the pool's list `unclaimed` */
    uint32_t conn;               /* connection whose open batch it is in */
    uint32_t fences; /* destinations whose langd may be copying its rows */
    struct key key;
    struct extent src;           /* its blocks, from HELD on */
    uint32_t max_rows, total;    /* ROWS_UNKNOWN: the total is not known yet */
    uint32_t committed, highest; /* rows [0, committed); end of the highest
                                    range */
    uint32_t length_version;     /* rises when the total becomes known */
    uint8_t queue;               /* index of its queue */
    struct aux aux;
    struct list rooms;
    /* When it was announced, last got blocks or rows, or was revoked. */
    uint64_t moved_ns;
    /* share_turn(), in a batch that of the first item; later changed so that
     * items of one langd keep that langd's order. */
    uint64_t turn;
    struct heap_node in_queue;
    struct in_line in_line; /* of epool.lines */
    struct list in_held;    /* pool->held, while it has blocks */
    struct list in_batch;   /* ring of the items that get blocks together */
};

struct eroom {
    struct room r; /* must be the first member */
    uint8_t life;  /* enum eroom_life; eroom_move changes it */
    /* A fact beside its life: the rows were there at the announce, so the
     * engine writes none. */
    bool have;
    /* True while the room counts in item->leaving: its blocks will come back
     * without waiting. Stays true in a later quarantine, so it is not a state.
     */
    bool leaving;
    uint8_t flags;
    uint8_t fail_reason; /* OK: no destination failed */
    uint16_t due;        /* EVENT_ bits that its attachments are to get */
    uint16_t required;   /* destinations; 0: unknown, or an open room */
    uint32_t name;       /* hash of its secret: brain_name() */
    struct secret secret;
    uint32_t asked, active, served, failed; /* destinations */
    uint32_t before;     /* part of `served`: before the room was revoked */
    uint32_t reserved;   /* places kept for destinations that have not asked */
    uint32_t said_total; /* total in its announce; ROWS_UNKNOWN */
    struct item *item;   /* &encoded.nothing: no item (before LIVE, in GONE) */
    struct list in_item; /* item->rooms */
    struct list in_kept; /* pool->kept; linked iff KEPT */
    struct list in_unclaimed; /* pool->unclaimed */
    uint64_t unclaimed_ns;    /* when the room was put on that list */
    struct list dsts;
    uint64_t bootstrap_ns, kept_ns; /* deadlines; TIME_NEVER: not set */
    struct heap_node timer;
    struct history history;
    uint64_t who; /* the user in e->share who pays for the room */
};

/* Messages to L, each pending until L answers. */
enum eowe {
    OWE_LENGTH = 1,
    OWE_WANT = 2,
    OWE_FAILED = 4,
    OWE_BROKEN = 8,
    OWE_LEND = 16
};

/* A value of edst.map: L is dead, but engines that may read its lent rows
 * live. */
#define MAP_ORPHAN (NONE - 1)

struct edst {
    uint8_t state; /* enum dst_state; edst_move changes it */
    uint8_t job;   /* enum dst_job; edst_move_job changes it */
    /* Facts beside its states. refused: not counted in room->asked;
     * drained_due: L aborted it, and DRAINED is sent when its record is
     * freed. */
    bool refused, drained_due;
    uint8_t reason;     /* of FAILED */
    uint32_t peer, run; /* L, and which of its runs: peer.e.run */
    uint32_t pools;     /* bit i: may get rows of pool i, by rights_of() */
    struct eroom *room;
    uint64_t generation, asked_ns;
    struct list in_room, in_peer, todo, in_fence;

    /* The grant in force: rows [from, granted). */
    uint32_t attempt, granted, from, unit_rows, part_rows;
    uint16_t required; /* required_dst of its INIT */
    uint8_t storage, flags;
    uint64_t layout;
    uint64_t turn; /* its turn at L */
    struct key key;
    uint8_t firm; /* FIRM_* */

    /* The send job at the shards. */
    bool copy;    /* L copies the rows itself, in this attempt */
    uint32_t map; /* the fence: connection of the L that may be copying
                     rows of this generation; NONE: no fence */
    uint32_t limit, job_attempt; /* as last sent to the shards */
    uint32_t closing_left; /* JOB_CLOSING: shards that have not answered */
    uint64_t map_epoch;    /* epoch of the L that may lift the fence */
    bool lent; /* the fence is for engines of L, to which LEND goes */

    /* What L was sent, and what it has answered. */
    uint32_t length_sent, length_acked; /* item->length_version then */
    bool back; /* BROKEN only asks for the grant's blocks back */
    /* L answered LENGTH, but lacks space for the aux; or LEND, and waits for
     * the other rooms of its group. */
    bool aux_waits;
    bool want_open;  /* a WANT was sent and no STATE answered it */
    bool want_older; /* an older WANT is open too: STATE answers it first */
    bool want_known; /* L has answered WANT for these numbers: */
    uint32_t want_granted, want_attempt, want_committed;
    uint32_t broken_attempt; /* attempt of the last BROKEN; NONE */
    uint64_t answer_ns; /* when STATE answers INIT, unless LENGTH goes first */
    struct debt debt;   /* pending messages to L: enum eowe */
    uint64_t silent_ns; /* when FAILING ends if L never answers */
    struct heap_node timer;
    char *text; /* the text of its struct why */
};

/* ACKs of one L, to be answered by one ACKED. */
#define ACKED_MAX 16
#define ACKED_NS  (5 * NS_PER_MS) /* how long the first waits */
struct acked {
    struct list pending; /* of encoded */
    uint64_t epoch;      /* epoch of L in those ACKs */
    uint32_t count;
    uint64_t generations[ACKED_MAX];
};

/* The queues in which items wait for source blocks. */
enum queue {
    QUEUE_PLAIN,
    QUEUE_AHEAD, /* asks its destinations for grants while it waits */
    QUEUE_FIRM,  /* full: one of its rooms has all its grants, firm */
    QUEUES
};

struct epool {
    struct pool_meta *meta;
    struct pool p;
    struct rowmap committed;
    struct heap queues[QUEUES]; /* items that may get blocks, by turn */
    struct item *lines[QUEUES]; /* the same, by langd */
    uint32_t waiting;           /* number of QUEUED items, in a heap or not */
    uint64_t head_age;          /* age of the full head that does not fit */
    uint64_t head_since_ns;     /* since when it does not fit; TIME_NEVER */
    uint64_t revoke_ns;         /* when revoking for that head may begin */
    uint64_t stands_ns; /* since when no head of a queue fits; TIME_NEVER */
    struct list held;   /* items with blocks, oldest first */
    struct list kept;   /* KEPT rooms, longest not asked for first */
    uint32_t block_rows;
    struct list unclaimed; /* complete rooms that no langd asked for, by age */
    uint32_t coming;       /* blocks of items with all rooms leaving */
    uint32_t lacking;      /* blocks that must come back for the queue's head */
    uint32_t copied;       /* blocks of items with fences */
    uint32_t lent, orphaned; /* blocks that destinations have lent, and those
                                of MAP_ORPHAN */
};

/* The value of decline.langd if no langd, but a program of this host withdrew
 * the room. */
#define WITHDRAWN 0u

/* A room that a langd gave up, before its announce or as a destination. */
struct decline {
    struct memo memo;  /* (room, hash of its secret) */
    struct key key;    /* of the item; zero: not given */
    uint32_t langd;    /* its peer's who */
    uint32_t who;      /* uid + 1 of the declining engine; 0: unknown */
    uint32_t pools;    /* bit i: a room of pool i may count it */
    uint16_t required; /* required_dst of its INIT; 0: no INIT came */
    uint8_t reason;
    bool counted; /* the announced room counts it as failed, or served */
    bool served;  /* its langd has the rows: a later decline is ignored */
};

/* A process that may read rows lent to one run of a langd. */
struct ereader {
    uint32_t run;     /* peer.e.run of the langd; 0: not such a connection */
    uint32_t offered; /* bit i: the process was given pool i */
};

struct encoded {
    struct brain b;          /* first */
    struct ereader *readers; /* by connection */
    struct list *fences;     /* destinations by `map`; last: of MAP_ORPHAN */
    /* Tombs of (room, name), and (generation, run of the peer); owner: the
     * peer's number. */
    struct memory ended_rooms, ended_gens;
    struct memory victims;  /* tombs of (room or hash of key, uid); owner: how
                               many destinations had been served */
    struct memory declines; /* struct decline of (room, name) */
    struct table ids;       /* (room, name) -> room */
    struct table gens;      /* (generation, peer) -> dst */
    struct table keys;      /* (hash of key and uid, pool) -> item */
    struct eroom *rooms;
    struct why *room_whys, *dst_whys;
    struct edst *dsts;
    struct item *items;
    struct item nothing;      /* stands for the item of a room that has none */
    struct item **open_batch; /* by connection: first item of its open batch;
                                 NULL */
    struct acked *acked;      /* by peer */
    struct list acked_pending;
    uint64_t acked_ns; /* when the pending ACKED are sent; TIME_NEVER */
    struct ebatch *batches;
    uint64_t weights; /* the last drawn, for item.in_line */
    struct slots room_slots, dst_slots, item_slots, batch_slots;
    struct share share;     /* of rooms: per user that announces, per peer that
                               asks */
    struct share dst_share; /* of destinations, by peer */
    uint32_t rooms_max, rooms_used, open;
    uint32_t dsts_used;
    uint32_t for_users; /* bit i: pool i is restricted to users or groups */
    struct epool pools[CONF_POOLS_MAX];
    struct heap room_timers, dst_timers;
    struct list room_todo, dst_todo;
    bool offers_due;         /* a pool is ready: who maps others gets it */
    struct eroom *announced; /* room whose announce is being handled; NULL */
    uint8_t scratch[AUX_MAX];
};

static inline bool eroom_announced(const struct eroom *m)
{
    return m->life > EROOM_AWAITED;
}

/* True if a langd asked for the room and it is not announced yet. */
static inline bool eroom_awaited(const struct eroom *m)
{
    return m->life == EROOM_AWAITED && m->active > 0;
}

/* True if the room was announced and has neither failed nor ended. */
static inline bool eroom_serves(const struct eroom *m)
{
    return m->life == EROOM_LIVE || m->life == EROOM_CLOSED;
}

static inline bool eroom_failing(const struct eroom *m)
{
    return m->life == EROOM_FAILING || m->life == EROOM_REVOKED;
}

/* True if the room's engine sees its final state. */
static inline bool eroom_ended(const struct eroom *m)
{
    return m->life >= EROOM_KEPT;
}

/* True if the room was announced and has not ended: it counts in e->open. */
static inline bool eroom_running(const struct eroom *m)
{
    return eroom_serves(m) || eroom_failing(m);
}

/* True if eroom_find finds the room under its id. */
static inline bool eroom_found(const struct eroom *m)
{
    return (m->life >= EROOM_AWAITED && m->life < EROOM_REVOKED) ||
           m->life == EROOM_KEPT || m->life == EROOM_EXPIRED;
}

static inline struct epool *eroom_pool(struct encoded *e, const struct eroom *m)
{
    return &e->pools[m->item->pool];
}

/* Returns the eroom that contains `r`; NULL for NULL. Valid for every room of
 * this brain's engines: eroom_new made it, and r is its first member. */
static inline struct eroom *to_eroom(struct room *r)
{
    return r ? CONTAINER_OF(r, struct eroom, r) : NULL;
}

/* True if the destination no longer counts in room->active. */
static inline bool edst_ended(const struct edst *d)
{
    return d->state >= DST_FENCED;
}

static inline uint32_t edst_slot(const struct encoded *e, const struct edst *d)
{
    return (uint32_t)(d - e->dsts);
}

/* Sends a message to the destination's langd. rows: the rows it is about. */
static inline void edst_tell(struct encoded *e, struct out *out,
    const struct edst *d, struct peer_msg *msg, uint32_t rows)
{
    peer_send(&e->b.peers, out, &e->b.peers.peers[d->peer], msg);
    happened_message(&e->b, HAPPENED_SENT, msg, (uint32_t)d->room->history.who,
        d->peer, rows);
}

/* encode/life.c */

/* Returns the room with this id and secret, or NULL. The same id with another
 * secret is another room (RULES 10.1). */
struct eroom *eroom_find(
    const struct encoded *e, uint64_t id, const struct secret *secret);
/* Puts the room, or the destination, on its todo list. */
void eroom_touch(struct encoded *e, struct eroom *m);
void edst_touch(struct encoded *e, struct edst *d);
/* Touches all destinations of the room. */
void edsts_touch(struct encoded *e, struct eroom *m);
/* Touches all rooms of the item and their destinations. */
void item_touch(struct encoded *e, const struct item *it);
/* Moves the room to a state that life.def allows, and updates the tables, lists
 * and counts that depend on it. The caller sets kept_ns before KEPT. */
void eroom_move(struct encoded *e, struct eroom *m, enum eroom_life to);
/* Likewise for a destination, for its job at the shards, and for an item. */
void edst_move(struct encoded *e, struct edst *d, enum dst_state to);
void edst_move_job(const struct encoded *e, struct edst *d, enum dst_job to);
void item_move(struct encoded *e, struct item *it, enum item_life to);
/* Frees the id of a failed or ended room. A later INIT fails as `reason`. */
void eroom_unlink(struct encoded *e, struct eroom *m, enum err reason);
/* Counts that limits.rooms is reached, and stops keeping one KEPT room, so that
 * the next request gets its record. */
void eroom_give_place(struct encoded *e, unsigned counter);
/* True if a langd of this host may be copying rows of the room. */
bool eroom_read_elsewhere(const struct eroom *m);
/* True if all destinations that the room waits for have ended: it ends when it
 * is settled. */
bool eroom_complete(const struct eroom *m);
uint64_t item_key_hash(const struct key *key, uint32_t uid);

/* encode/rights.c */

/* The engine behind a message, as its langd describes it. */
struct claim {
    uint32_t who;
    struct span gids;
    const struct secret *secret;
};
/* True if the user of the langd on conn may itself take rows of pool i. */
bool langd_trusted(const struct encoded *e, uint32_t conn, uint32_t i);
/* True if the langd connected just now and may still prove its user, and the
 * right to room m depends on that. m NULL: a room that is not known. */
bool rights_wait(
    const struct encoded *e, const struct peer *p, const struct eroom *m);
/* Returns as bits the pools whose rooms the engine may have. */
uint32_t rights_of(
    const struct encoded *e, const struct peer *p, const struct claim *a);

/* encode/room.c */

/* Returns a new AWAITED room that counts to `who`; NULL: e->share.why. */
struct eroom *eroom_new(
    struct encoded *e, uint64_t id, const struct secret *secret, uint64_t who);
/* Fails an announced room and its destinations. It ends when all destinations
 * have answered. No effect once it is failing or ended. */
void eroom_fail(
    struct encoded *e, struct eroom *m, enum err reason, const char *text);
/* Handles the release by the room's owner. An open room takes no more
 * destinations; any other room fails unless it has ended. */
void eroom_withdraw(struct encoded *e, struct eroom *m);
/* Sets the item's total, now known. Rooms that were announced with another
 * total fail. */
void eroom_measured(struct encoded *e, struct item *it);
/* Applies what changed since the last settle. m must not be on the todo list.
 * May free the room. */
void eroom_settle(struct encoded *e, struct out *out, struct eroom *m);
/* Stops keeping a KEPT room; its rows stay while destinations read them. */
void eroom_let_go(struct encoded *e, struct eroom *m);
/* Handles the deadlines of the room that have passed. */
void eroom_expired(struct encoded *e, struct eroom *m);

/* encode/item.c */

static inline bool item_has_key(const struct item *it)
{
    static const struct key none;

    return !key_eq(&it->key, &none);
}

/* True if the item asks for all its grants ahead of its rows. */
static inline bool item_asks(const struct item *it)
{
    return it->ahead || it->victim;
}

static inline bool item_held(const struct item *it)
{
    return it->life >= ITEM_HELD;
}

static inline bool item_complete(const struct item *it)
{
    return it->total != ROWS_UNKNOWN && it->committed >= it->total;
}

/* True if no engine writes the rows any more: all are committed, for good. */
static inline bool item_done(const struct item *it)
{
    return it->life == ITEM_FINAL && item_complete(it);
}

void items_init(struct encoded *e);
/* Returns the item of this key, pool and user, or NULL. */
struct item *item_find(const struct encoded *e, const struct key *key,
    uint32_t pool, uint32_t uid);
/* Returns a new item, in no queue, without rooms; NULL: limits.rooms reached.
 */
struct item *item_new(
    struct encoded *e, const struct local_announce *n, uint32_t uid);
/* Binds a room that has no item to this item. */
void item_join(struct encoded *e, struct item *it, struct eroom *m);
/* Frees the item and its blocks. It must have no rooms. */
void item_discard(struct encoded *e, struct item *it);
/* Takes the room off its item. The last room to leave frees the item and serves
 * its pool. */
void item_leave(struct encoded *e, struct eroom *m);
/* Returns n: rows [0, n) can be sent now in units of unit_rows. */
uint32_t item_sendable(const struct item *it, uint32_t unit_rows);
/* Takes the item out of the table of keys: announces no longer find it. */
void item_hide(struct encoded *e, struct item *it);

/* encode/line.c */

/* Puts the item into the line of its queue; it must not be in it. item.in_line
 * must not change until the item is taken out. */
void line_put(struct item **line, struct item *it);
void line_take(struct item **line, struct item *it);
/* Returns the first item of the langd; NULL: there is none. */
struct item *line_first(struct item *line, uint32_t langd);

/* encode/queue.c */

/* Queues the item for blocks, together with the open batch of conn. more: the
 * batch stays open. On error (too large, another pool) it is in no queue. */
MUST_CHECK enum err item_queue(
    struct encoded *e, struct item *it, uint32_t conn, bool more);
/* Ends the open batch of conn, if there is one: it is queued. */
void item_close_batch(struct encoded *e, uint32_t conn);
/* Adds to the number of the item's rooms and of those of them that are leaving.
 * While all are leaving, its blocks count as coming back, so that no more kept
 * rooms are ended than needed. */
void queue_refer(
    struct encoded *e, struct item *it, int32_t rooms, int32_t leaving);
/* Takes the item out of its batch and queue, and moves it to state `to`. */
void queue_leave(struct encoded *e, struct item *it, enum item_life to);
/* Moves the item's batch to the queue that its grants call for, and serves the
 * pool. */
void queue_place(struct encoded *e, struct item *it);
/* Gives blocks to the items at the head of the queue while they fit. Reclaims
 * kept rooms for an item that does not fit. */
void epool_serve(struct encoded *e, struct epool *p);
/* Puts the room on the list `unclaimed` or takes it off. It belongs there when
 * all its rows are committed and no langd asks for it or has them. */
void queue_unclaimed(struct encoded *e, struct eroom *m);
/* Returns when epool_yield may end the next room; TIME_NEVER: no need to. */
uint64_t queue_yield_ns(const struct encoded *e, const struct epool *p);
/* True if one of the item's rooms can be sent completely: every destination of
 * that room has firm grants for all it needs. */
bool item_firm(const struct item *it);
/* Returns the lowest turn among the items that wait for blocks. */
uint64_t queue_turn(const struct epool *p);
/* Returns the first full item that waits for blocks, or NULL. */
struct item *queue_firm(const struct epool *p);
/* True if epool_revoke ended this room, or an item with this key. */
bool queue_remembers(
    const struct encoded *e, const struct local_announce *n, uint32_t uid);
/* Counts as served those destinations that had the rows when epool_revoke ended
 * the room. */
void queue_counts(const struct encoded *e, struct eroom *m);
/* Notes in what is remembered of a revoked room how many destinations it has
 * served since. */
void queue_served(struct encoded *e, const struct eroom *m);
/* Forgets the victim: all its destinations have the rows. */
void queue_forgets(struct encoded *e, uint64_t room, const struct item *it);

/* encode/revoke.c */

/* Ends an item if the full head of the queue has waited for
 * timeouts.revoke_after and too few blocks come back without that. */
void epool_revoke(struct encoded *e, struct epool *p);
/* Ends rooms that no langd asked for within timeouts.unclaimed, oldest first,
 * until the head of the queue gets its blocks. */
void epool_yield(struct encoded *e, struct epool *p);

/* encode/dst.c */

/* Reserves places for the room's missing destinations while others of its
 * destinations are active; otherwise gives the places back. */
void edst_reserve(struct encoded *e, struct eroom *m);
/* Returns a NEW destination of a room found by its id. The first of `required`
 * destinations takes places for all of them or none, so that rooms do not wait
 * for each other's places. NULL: no place is free (e->dst_share.why). */
struct edst *edst_new(struct encoded *e, struct eroom *m, uint32_t peer,
    uint64_t generation, uint32_t required);
/* True if rows beyond the destination's grant are ready to be sent. */
bool edst_rows_wait(const struct edst *d);
/* Fails the destination here: FAILED is pending until L decides. No effect when
 * it is failing or ended. */
void edst_fail(
    struct encoded *e, struct edst *d, enum err reason, const char *text);
/* Ends the generation for good. Its outcome is remembered for
 * TOMB_KEEP_NS. */
void gens_end(struct encoded *e, const struct peer *p, uint64_t generation,
    enum err reason);
/* True if the generation has ended: an INIT of it comes too late. */
bool gens_over(
    const struct encoded *e, const struct peer *p, uint64_t generation);
/* Counts the destination no longer among those that have asked for its room. */
void edst_refuse(struct edst *d);
/* Ends the destination: L has decided (OK: it has all rows), or L is lost. No
 * effect when it has ended. */
void edst_end(struct encoded *e, struct edst *d, enum err outcome);
/* Answers a message of L with the present state. */
void edst_say_state(
    struct encoded *e, struct out *out, struct edst *d, enum peer_type answers);
/* Sends to L and to the shards what they lack. d must not be on the todo list.
 * May free the destination. */
void edst_settle(struct encoded *e, struct out *out, struct edst *d);
/* Returns OK if the destination fits the announced item, else the reason and
 * its text. */
extern const char eroom_not_for[]; /* the text of ERR_NOT_OWNER */
enum err edst_check(struct encoded *e, const struct eroom *m,
    const struct edst *d, char *text, size_t size);

/* True if rows of this attempt are sent by `shard`. */
bool edst_goes_by(
    const struct encoded *e, const struct edst *d, uint32_t shard);
/* Makes BROKEN pending, once per attempt: the endpoint of L is lost, and L must
 * begin a new attempt. */
void edst_broken(struct encoded *e, struct edst *d);

/* encode/fence.c */

/* True if all that may read the room's rows are engines of langds that live. */
bool eroom_lent(const struct eroom *m);

/* Raises the fence: the langd maps our pools, and it, or (lend) its engines,
 * may read the item's rows from now on. False: the langd would have more than
 * its share of the pool, or more than half of the pool would be lent. */
bool edst_fence(struct encoded *e, struct edst *d, bool lend);
/* Lifts the fence: the process behind d->map no longer reads the destination's
 * rows. */
void edst_unfence(struct encoded *e, struct edst *d);
/* Closes conn if it has ended, owns nothing and no fence waits for it. Its
 * number is then free before its process dies. */
void edst_conn_quiet(struct encoded *e, struct out *out, uint32_t conn);
/* Lifts the fence because L answered, if L is still in the epoch that raised
 * it. held: L shows the rows to its engines, as far as they are lent. */
void edst_answered(
    struct encoded *e, struct out *out, struct edst *d, bool held);
/* encode/lend.c */

/* Takes back the rows that the destination was lent: L has said that it shows
 * them to no engine, or that no engine reads them. No effect unless they are
 * lent. */
void edst_unlend(struct encoded *e, struct out *out, struct edst *d);
/* Lends the room's rows to L, once all are written, if L has asked for that and
 * the pool and its share allow it. Else L is asked for a grant. */
void edst_lend(struct encoded *e, struct edst *d);
/* Fills in LEND. bytes: memory for its runs. */
void edst_fill_lend(const struct encoded *e, const struct edst *d,
    struct peer_lend *n, uint8_t bytes[POOL_RUNS_MAX * 8]);
/* True if engines of this run of a langd may read the pool. */
bool readers_of(const struct encoded *e, uint32_t run, uint32_t pool);
/* Handles MAP of an engine: conn reads pools for the langd that its token
 * names. False: the token names none. */
bool encoded_map_reader(struct encoded *e, struct out *out, uint32_t conn,
    const struct local_msg *m);
/* Offers ready pools to readers that may have them and do not have them yet,
 * while `out` has room. */
void readers_offer(struct encoded *e, struct out *out);
/* Ends the reader on conn: its process reads nothing more. */
void reader_gone(struct encoded *e, uint32_t conn);

/* encode/map.c */

/* Handles MAP: conn is a langd of this host that copies rows itself. */
void encoded_map(
    void *brain, struct out *out, uint32_t conn, const struct local_msg *m);
/* Offers ready pools to langds that map pools and lack the offer, and then to
 * readers, while `out` has room. */
void encoded_map_offer(struct encoded *e, struct out *out);
/* Ends the mapping by conn: no copies begin any more. Fences stay up. */
void encoded_map_end(struct encoded *e, uint32_t conn);
/* Lifts the fences of conn, whose process is dead. */
void encoded_map_dead(struct encoded *e, uint32_t conn);

/* encode/decline.c */

/* Returns the decline of the room by this langd; NULL: none. Valid until the
 * next is remembered. */
struct decline *decline_find(
    const struct encoded *e, uint64_t room, uint32_t name, uint32_t langd);
/* Remembers a decline, in place of an earlier one of the same room and langd,
 * for its holder: a langd, or the user that withdrew the room. */
void decline_put(struct encoded *e, const struct decline *g, uint32_t holder);
/* Handles DECLINE: no engine of p will ask for the room. */
void encoded_on_decline(
    struct encoded *e, struct peer *p, const struct peer_msg *msg);
/* Handles DECLINE of an engine of this host that has the room's secret: no
 * destination will ask for it. */
void encoded_withdraw(
    struct encoded *e, const struct local_decline *n, uint32_t uid);
/* Handles an ABORT of a generation whose INIT has not come. */
void encoded_never_asked(
    struct encoded *e, struct peer *p, const struct peer_msg *msg);
/* Counts each decline from before the announce as a destination that failed. */
void eroom_count_declines(struct encoded *e, struct eroom *m);
/* Makes the declines of a revoked room count again at its next announce. */
void eroom_keep_declines(struct encoded *e, const struct eroom *m);

/* encode/peer.c, encode/local.c, encode/show.c */

extern const struct peers_ops encoded_peers;
/* Sends the pending ACKED while `out` has space. */
void encoded_say_acked(struct encoded *e, struct out *out);
bool encoded_peer(
    void *brain, struct out *out, struct peer *p, const struct peer_msg *m);
extern const struct engines_ops encoded_engines;
bool encoded_local(
    void *brain, struct out *out, uint32_t conn, const struct local_msg *m);
bool encoded_fill_event(void *brain, const struct attachment *att,
    struct local_event *n, struct writer *w);
extern const struct show_ops encoded_shows;
void encoded_check(const void *brain);

#endif
