/* encode.h - the inside of the encode side's brain, for core/encode only. The
 * outside is brain.h.
 *
 * item  rows in source blocks; shared by the rooms of one key
 * room  one announced delivery of an item, or a record under which destinations
 *       wait for its announce
 * dst   one destination of a room: one generation of one langd (L below). Its
 *       slot is the slot of the shards' send jobs
 *
 * Handlers change fields and put records on a todo list (touch); settling then
 * compares what is with what was sent, and sends the difference.
 *
 * Calls go down only, in this order: encode.c; local.c, peer.c; map.c,
 * revoke.c; decline.c; room.c; dst.c; item.c; queue.c; life.c, rights.c,
 * declines.c, show.c. */
#ifndef MMX_CORE_ENCODE_ENCODE_H
#define MMX_CORE_ENCODE_ENCODE_H

#include "base/check.h"
#include "base/heap.h"
#include "base/list.h"
#include "base/table.h"
#include "core/head.h"
#include "core/debt.h"
#include "core/encode/declines.h"
#include "core/move/pool.h"
#include "core/move/rowmap.h"
#include "core/tombs.h"
#include "core/trace/trace.h"

/* States, in the order in which a record goes through them. */
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

struct item {
    uint8_t life; /* enum item_life; item_move changes it */
    uint8_t storage;
    uint16_t pool;
    /* Beside its life: whether announces find it by its key; how it asks for
     * its grants (item_asks): it was overtaken in the queue; it was ended once,
     * and gets blocks only with all grants. */
    bool keyed, ahead, victim;
    uint32_t uid, refs, leaving; /* rooms that refer to it; that let go soon */
    uint32_t unclaimed;          /* rooms on the pool's list of that name */
    uint32_t conn;               /* whose open batch it may be in */
    uint32_t fences; /* destinations whose langd may be copying its rows */
    struct key key;
    struct extent src;           /* its blocks, while it is held */
    uint32_t max_rows, total;    /* ROWS_UNKNOWN: the total is not known yet */
    uint32_t committed, highest; /* rows [0, committed); end of the highest */
    uint32_t length_version;     /* rises when the total becomes known */
    struct aux aux;
    struct list rooms;
    uint64_t age; /* its turn: share_turn() */
    /* When it was announced, last got blocks or rows, or was ended. */
    uint64_t moved_ns;
    uint8_t queue; /* the one that in_queue is in */
    uint64_t turn; /* age of its batch */
    struct heap_node in_queue;
    struct list in_held;  /* of the pool, while it has blocks */
    struct list in_batch; /* a ring of the items that get blocks together */
};

struct eroom {
    struct room r; /* first */
    uint8_t life;  /* enum eroom_life; eroom_move changes it */
    /* Beside its life: whether the item's rows were there when it was
     * announced, so that its engine writes none. */
    bool have;
    /* True while the room counts in item->leaving: its blocks were found to
     * come back without waiting. It stays so in a quarantine that begins after
     * that, so it is no state. */
    bool leaving;
    uint16_t due; /* EVENT_ bits to notify its attachments of */
    uint8_t flags;
    uint8_t fail_reason; /* OK: nothing of it has failed */
    uint32_t name;       /* of its secret: brain_name() */
    struct secret secret;
    uint16_t required; /* destinations; 0: not known, or an open room */
    uint32_t asked, active, served, failed; /* destinations */
    uint32_t before;     /* of `served`: served before the room was revoked */
    uint32_t reserved;   /* places for destinations that have not asked */
    uint32_t said_total; /* of its own announce; ROWS_UNKNOWN: none */
    struct item *item;   /* &encoded.nothing: none, before LIVE and in GONE */
    struct list in_item; /* of the item's rooms */
    struct list in_kept; /* of the pool; linked: KEPT */
    struct list in_unclaimed; /* of the pool */
    uint64_t unclaimed_ns;    /* since when it is there */
    struct list dsts;
    uint64_t bootstrap_ns, kept_ns; /* deadlines; TIME_NEVER: not running */
    struct heap_node timer;
    struct ended history;
    uint64_t who; /* the user of e->share that pays for it */
};

/* Messages that are pending at L until it answers. */
enum eowe { OWE_LENGTH = 1, OWE_WANT = 2, OWE_FAILED = 4, OWE_BROKEN = 8 };

struct edst {
    uint8_t state; /* enum dst_state; edst_move changes it */
    uint8_t job;   /* enum dst_job; edst_move_job changes it */
    /* Beside these, at any time: it does not count in room->asked; L has
     * aborted it, and DRAINED is sent when its record goes. */
    bool refused, drained_due;
    uint8_t reason; /* of FAILED */
    uint32_t a, b;  /* numbers that belong to it */
    struct eroom *room;
    uint32_t peer;
    uint64_t generation, asked_ns;
    struct list in_room, in_peer, todo;

    /* The grant in force: rows [from, granted). */
    uint32_t attempt, granted, from, unit_rows, part_rows;
    uint8_t firm; /* FIRM_* */
    uint64_t layout;
    uint8_t storage, flags;
    uint16_t required; /* as its INIT said */
    struct key key;
    uint32_t pools; /* bit i: it may have rows of pool i: rights_of() */

    /* The job of the shards. */
    bool copy;          /* L copies the rows itself, in this attempt */
    uint32_t map;       /* the fence: connection of the L that may be copying
                           rows of this generation; NONE: no fence */
    uint64_t map_epoch; /* of the run of L that may lift the fence */
    uint32_t limit, job_attempt; /* sent to the shards */
    uint32_t closing_left; /* JOB_CLOSING: shards that have not answered */

    /* What L knows. */
    uint32_t length_sent, length_acked; /* item->length_version then */
    bool want_open;  /* a WANT was said, no STATE has answered it */
    bool want_older; /* so was one before it: the next STATE is of that one */
    bool want_known; /* L has answered WANT for these: */
    uint32_t want_granted, want_attempt, want_committed;
    uint32_t broken_attempt; /* the last that BROKEN is about; NONE */
    bool back;      /* nothing broke: BROKEN asks for the grant's blocks back */
    bool aux_waits; /* L answered LENGTH, but has no space for its aux */
    uint64_t answer_ns; /* its INIT is answered then: no LENGTH went first */
    struct debt debt;   /* to L, of eowe */
    uint64_t silent_ns; /* when FAILING ends without an answer of L */
    struct heap_node timer;
    char text[128];
};

/* ACKs of one L that ACKED will answer. */
#define ACKED_MAX 16
#define ACKED_NS  (5 * NS_PER_MS) /* how long the first of them waits */
struct acked {
    struct list pending; /* of encoded */
    uint64_t epoch;      /* of the run of L that said them */
    uint32_t count;
    uint64_t generations[ACKED_MAX];
};

/* The queues in which items wait for source blocks. */
enum queue {
    QUEUE_PLAIN,
    QUEUE_AHEAD, /* asks its destinations for their grants meanwhile */
    QUEUE_FIRM,  /* is full: one of its rooms has all grants, for good */
    QUEUES
};

struct epool {
    struct pool_meta *meta;
    struct pool p;
    struct rowmap committed;
    struct heap queues[QUEUES]; /* items that may get blocks, by age */
    uint32_t waiting;       /* items that are QUEUED, in a heap or in none */
    uint64_t head_age;      /* of the full head that does not fit */
    uint64_t head_since_ns; /* since when it does not; TIME_NEVER */
    uint64_t revoke_ns;     /* when an item may be ended for it */
    uint64_t stands_ns;     /* since when no head fits; TIME_NEVER */
    struct list held;       /* items that have blocks, oldest first */
    struct list kept;       /* KEPT rooms, longest not asked for first */
    uint32_t block_rows;
    struct list unclaimed; /* complete rooms that no langd asks for, by age */
    uint32_t coming;       /* blocks of items all of whose rooms are leaving */
    uint32_t lacking;      /* as many must come for the head of the queue */
    uint32_t copied;       /* blocks of items with fences */
};

struct encoded {
    struct brain b;           /* first */
    struct tombs ended_rooms; /* (room, name) */
    struct tombs ended_gens;  /* (generation, run of the peer) */
    struct tombs victims;     /* (room or hash of key, uid) */
    struct declines declines;
    struct table ids;  /* (room, name) -> room */
    struct table gens; /* (generation, peer) -> dst */
    struct table keys; /* (hash of key and uid, pool) -> item */
    struct eroom *rooms;
    struct edst *dsts;
    struct item *items;
    struct item nothing;      /* what a room without an item refers to */
    struct item **open_batch; /* by connection: first of its batch; NULL */
    struct acked *acked;      /* by peer */
    struct list acked_pending;
    uint64_t acked_ns; /* when those that are pending are said; TIME_NEVER */
    struct slots room_slots, dst_slots, item_slots;
    struct share share;     /* of rooms: engines' announces, peers' requests */
    struct share dst_share; /* of destinations, by peer */
    uint32_t rooms_max, rooms_used, open;
    uint32_t dsts_used;
    uint32_t fenced;    /* destinations whose map is not NONE */
    uint32_t for_users; /* bit i: pool i names users or groups */
    struct epool pools[CONF_POOLS_MAX];
    struct heap room_timers, dst_timers;
    struct list room_todo, dst_todo;
    struct eroom *announced; /* whose announce is being taken; NULL */
    uint8_t scratch[AUX_MAX];
};

static inline bool eroom_announced(const struct eroom *m)
{
    return m->life > EROOM_AWAITED;
}

/* True if a langd asked for the room, and waits for its announce. */
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

/* True if the room's engine has its final state. */
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

/* Returns the room around `r`; NULL for NULL. Safe for each room that the
 * engines of this brain know: it came from eroom_new, and r is its first
 * member. */
static inline struct eroom *to_eroom(struct room *r)
{
    return r ? CONTAINER_OF(r, struct eroom, r) : NULL;
}

/* True if it no longer counts in room->active. */
static inline bool edst_ended(const struct edst *d)
{
    return d->state >= DST_FENCED;
}

static inline uint32_t edst_slot(const struct encoded *e, const struct edst *d)
{
    return (uint32_t)(d - e->dsts);
}

/* Sends a message to the destination's langd. rows: that it is about. */
static inline void edst_tell(struct encoded *e, struct out *out,
    const struct edst *d, struct peer_msg *msg, uint32_t rows)
{
    peer_send(&e->b.peers, out, &e->b.peers.peers[d->peer], msg);
    happened_message(&e->b, HAPPENED_SENT, msg, (uint32_t)d->room->history.who,
        d->peer, rows);
}

/* encode/life.c */

/* Returns the room that is found under the id and secret, or NULL. A message
 * with another secret is about another room (RULES 10.1). */
struct eroom *eroom_find(
    const struct encoded *e, uint64_t id, const struct secret *secret);
/* Puts the room, or the destination, on its list to settle. */
void eroom_touch(struct encoded *e, struct eroom *m);
void edst_touch(struct encoded *e, struct edst *d);
/* Touches all destinations of the room. */
void edsts_touch(struct encoded *e, struct eroom *m);
/* Touches all rooms of the item and their destinations. */
void item_touch(struct encoded *e, const struct item *it);
/* Takes a step of the room's life, which life.def must allow, with the tables,
 * lists and counts that depend on it. The caller sets kept_ns before KEPT. */
void eroom_move(struct encoded *e, struct eroom *m, enum eroom_life to);
/* The same for a destination, for what the shards have of it, and an item. */
void edst_move(struct encoded *e, struct edst *d, enum dst_state to);
void edst_move_job(const struct encoded *e, struct edst *d, enum dst_job to);
void item_move(struct encoded *e, struct item *it, enum item_life to);
/* Frees the id of a room that failed or ended: a later INIT fails as `reason`.
 */
void eroom_unlink(struct encoded *e, struct eroom *m, enum err reason);
/* Counts that limits.rooms is reached, and lets go of one kept room, so that a
 * repeated request may find a place. */
void eroom_table_full(struct encoded *e);
/* True if a langd of this host may be copying rows of the room. */
bool eroom_read_elsewhere(const struct eroom *m);
uint64_t item_key_hash(const struct key *key, uint32_t uid);

/* encode/rights.c */

/* Whose engine sends a message through a langd, as the langd says. */
struct claim {
    uint32_t who;
    struct span gids;
    const struct secret *secret;
};
/* True if the user of the langd on conn may take rows of pool i itself. */
bool langd_trusted(const struct encoded *e, uint32_t conn, uint32_t i);
/* True if the langd, which has just come, may still show its user, and that
 * decides about room m, or may: NULL is one that nothing is known of. */
bool rights_wait(
    const struct encoded *e, const struct peer *p, const struct eroom *m);
/* Returns the pools, as bits, of whose rooms the engine may have rows. */
uint32_t rights_of(
    const struct encoded *e, const struct peer *p, const struct claim *a);

/* encode/room.c */

/* Returns a new AWAITED room in the share of `who`; NULL: e->share.why. */
struct eroom *eroom_new(
    struct encoded *e, uint64_t id, const struct secret *secret, uint64_t who);
/* Fails an announced room and its destinations; it ends when all of them have
 * answered. Does nothing once it is failing or ended. */
void eroom_fail(
    struct encoded *e, struct eroom *m, enum err reason, const char *text);
/* Takes the release by the room's owner: an open room takes no more
 * destinations, any other fails unless it has ended. */
void eroom_withdraw(struct encoded *e, struct eroom *m);
/* Takes the total of an item that has become known: rooms that were announced
 * with another one fail. */
void eroom_measured(struct encoded *e, struct item *it);
/* Draws the consequences of what changed; to be called with m off the todo
 * list. The room may be forgotten by it. */
void eroom_settle(struct encoded *e, struct out *out, struct eroom *m);
/* Keeps the rows of a KEPT room no longer than destinations have them. */
void eroom_let_go(struct encoded *e, struct eroom *m);
/* Handles the deadlines of the room that have passed. */
void eroom_expired(struct encoded *e, struct eroom *m);

/* encode/item.c */

static inline bool item_has_key(const struct item *it)
{
    static const struct key none;

    return !key_eq(&it->key, &none);
}

/* True if the item asks for its grants by its length, ahead of its rows. */
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

/* True if the rows need no engine any more: all are committed, for good. */
static inline bool item_done(const struct item *it)
{
    return it->life == ITEM_FINAL && item_complete(it);
}

void items_init(struct encoded *e);
/* Returns the item of this key, pool and user, or NULL. */
struct item *item_find(const struct encoded *e, const struct key *key,
    uint32_t pool, uint32_t uid);
/* Returns a new item in no queue, without rooms; NULL: limits.rooms. */
struct item *item_new(
    struct encoded *e, const struct local_announce *n, uint32_t uid);
/* Binds a room without an item to this one. */
void item_join(struct encoded *e, struct item *it, struct eroom *m);
/* Frees the item and its blocks. No room may refer to it. */
void item_discard(struct encoded *e, struct item *it);
/* Takes the room off its item. The last room frees it and serves its pool. */
void item_leave(struct encoded *e, struct eroom *m);
/* Returns n: rows [0, n) can be sent in units of unit_rows. */
uint32_t item_sendable(const struct item *it, uint32_t unit_rows);
/* Takes the item out of the table of keys: no announce finds it. */
void item_hide(struct encoded *e, struct item *it);

/* encode/queue.c */

/* Queues the item for blocks, together with the open batch of conn. more: the
 * batch goes on. On error (too large, another pool) it is in no queue. */
MUST_CHECK enum err item_queue(
    struct encoded *e, struct item *it, uint32_t conn, bool more);
/* Ends the open batch of conn, if there is one: it gets blocks in its turn. */
void item_close_batch(struct encoded *e, uint32_t conn);
/* Adds to the item's rooms, and to those of them that are leaving. Once all are
 * leaving its blocks count as coming back, so that no more kept rooms are let
 * go of than are needed. */
void queue_refer(
    struct encoded *e, struct item *it, int32_t rooms, int32_t leaving);
/* Takes the item out of its batch and queue; it becomes `to`. */
void queue_leave(struct encoded *e, struct item *it, enum item_life to);
/* Moves the item's batch to the queue that its grants call for, and serves. */
void queue_place(struct encoded *e, struct item *it);
/* Gives blocks to the items at the head of the queue while they fit, and lets
 * go of kept rooms for one that does not. */
void epool_serve(struct encoded *e, struct epool *p);
/* Puts the room on the list of those whose rows are all there, while no langd
 * asks for it and none has had them, or takes it off. */
void queue_unclaimed(struct encoded *e, struct eroom *m);
/* Returns when the first of them shall give way; TIME_NEVER: no item waits. */
uint64_t queue_yield_ns(const struct encoded *e, const struct epool *p);
/* True if rows can be sent to one of the item's rooms until it has all of
 * them: every destination of that room has granted all it needs, for good. */
bool item_firm(const struct item *it);
/* Returns the lowest turn of those that wait for blocks. */
uint64_t queue_turn(const struct epool *p);
/* Returns the first of the full items that wait for blocks, or NULL. */
struct item *queue_firm(const struct epool *p);
/* Returns how many blocks `first` and the rest of its batch need. */
uint32_t queue_blocks(const struct epool *p, const struct item *first);
/* True if the room or the key of the announce was ended by epool_revoke. */
bool queue_remembers(
    const struct encoded *e, const struct local_announce *n, uint32_t uid);
/* Counts as served the destinations that had the rows when the room was ended
 * by epool_revoke. */
void queue_counts(const struct encoded *e, struct eroom *m);
/* Forgets the victim: its rows have arrived everywhere. */
void queue_forgets(struct encoded *e, uint64_t room, const struct item *it);

/* encode/revoke.c */

/* Ends an item when the full head of the queue has waited for its blocks for
 * timeouts.revoke_after and not enough of them come back without that. */
void epool_revoke(struct encoded *e, struct epool *p);
/* Ends rooms that no langd asked for within timeouts.unclaimed, oldest first,
 * until the head of the queue has its blocks. */
void epool_yield(struct encoded *e, struct epool *p);

/* encode/dst.c */

/* Keeps as many places as destinations are missing while others of the room
 * are active, else none. */
void edst_reserve(struct encoded *e, struct eroom *m);
/* Returns a NEW destination of a room that is found under its id. With the
 * first of `required` there are places for all, or none: else rooms would wait
 * for each other's places. NULL: none (e->dst_share.why). */
struct edst *edst_new(struct encoded *e, struct eroom *m, uint32_t peer,
    uint64_t generation, uint32_t required);
/* True if rows can be sent that its grant does not cover. */
bool edst_rows_wait(const struct edst *d);
/* Fails the destination here: FAILED is pending until L decides. Does nothing
 * when it is failing or ended. */
void edst_fail(
    struct encoded *e, struct edst *d, enum err reason, const char *text);
/* Ends the generation for ever; its outcome is remembered for
 * timeouts.tombstone. */
void gens_end(struct encoded *e, const struct peer *p, uint64_t generation,
    uint8_t state, enum err reason);
/* True if the generation has ended, so that an INIT of it is late. */
bool gens_over(
    const struct encoded *e, const struct peer *p, uint64_t generation);
/* Stops counting it as a destination of its room. */
void edst_refuse(struct edst *d);
/* Ends the destination: L has decided (OK: it has all rows), or is lost. Does
 * nothing when it has ended. */
void edst_end(struct encoded *e, struct edst *d, enum err outcome);
/* Answers a message of L with the present state. */
void edst_say_state(
    struct encoded *e, struct out *out, struct edst *d, enum peer_type answers);
/* Sends what L and the shards lack; to be called with d off the todo list. The
 * destination may be forgotten by it. */
void edst_settle(struct encoded *e, struct out *out, struct edst *d);
/* Returns OK if the destination fits the announced item, else the reason and
 * its text. */
extern const char eroom_not_for[]; /* the text of ERR_NOT_OWNER */
enum err edst_check(struct encoded *e, const struct eroom *m,
    const struct edst *d, char *text, size_t size);

/* Lifts the fence: no process behind d->map reads rows of it any more. */
void edst_unfence(struct encoded *e, struct edst *d);
/* Closes conn if it has ended, holds nothing and fences nothing, so that its
 * number does not wait for its process to die. */
void edst_conn_quiet(struct encoded *e, struct out *out, uint32_t conn);
/* Lifts the fence by an answer of L, if it is of the run that is fenced. */
void edst_answered(struct encoded *e, struct out *out, struct edst *d);
/* True if rows of this attempt are sent by `shard`. */
bool edst_goes_by(
    const struct encoded *e, const struct edst *d, uint32_t shard);
/* Makes BROKEN pending, once an attempt: the way to L is lost, and L is to
 * begin a new attempt. */
void edst_broken(struct encoded *e, struct edst *d);

/* encode/map.c */

/* Takes MAP: conn is a langd of this host that copies rows itself. */
void encoded_map(
    void *brain, struct out *out, uint32_t conn, const struct local_msg *m);
/* Offers the pools that are ready to every langd that maps and lacks them. */
void encoded_map_offer(struct encoded *e, struct out *out);
/* Ends the mapping by conn: no new rows are copied. Fences stay. */
void encoded_map_end(struct encoded *e, uint32_t conn);
/* Lifts the fences of conn, whose process is dead. */
void encoded_map_dead(struct encoded *e, uint32_t conn);

/* encode/decline.c */

/* Takes DECLINE: no engine of p will ask for the room. */
void encoded_on_decline(
    struct encoded *e, struct peer *p, const struct peer_msg *msg);
/* Takes DECLINE of an engine of this host, which has the room's secret: it is
 * for no destination any more. */
void encoded_withdraw(
    struct encoded *e, const struct local_decline *n, uint32_t uid);
/* Takes an ABORT of a generation whose INIT has not come. */
void encoded_never_asked(
    struct encoded *e, struct peer *p, const struct peer_msg *msg);
/* Counts langds that gave the room up before it was announced as destinations
 * that failed. */
void eroom_count_declines(struct encoded *e, struct eroom *m);
/* Makes the declines of a room that will be announced again count then, too. */
void eroom_keep_declines(struct encoded *e, const struct eroom *m);
/* Returns what is remembered of this langd; NULL: it did not give the room
 * up. */
struct decline *eroom_declined_by(
    const struct encoded *e, const struct eroom *m, const struct peer *p);

/* encode/peer.c, encode/local.c, encode/show.c */

extern const struct peers_ops encoded_peers;
/* Says each ACKED that is pending, while out has room. */
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
