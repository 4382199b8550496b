/* lang.h - the inside of the language side's brain, for lang/ only. The outside
 * is brain.h.
 *
 * A room keeps one slot from REQUEST until nothing of it is left (life.def).
 * Handlers change its fields and put it on the todo list. Settling a room then
 * applies what follows from the change, and sorts the room into the queues.
 * When all rooms are settled, the queues are served, which may change rooms
 * again. In the end engines and encoders are sent what changed since the last
 * message.
 *
 * The files have this order; calls go up the list only:
 *   life.c             the states of a room
 *   ticket.c           sequence ids
 *   grant.c aux.c      blocks, and space for aux, of one room
 *   group.c            rooms that are admitted together
 *   admit.c            the queues of a pool
 *   lend.c             rooms that are read in the encoder's pool
 *   say.c decline.c    messages to encoders
 *   room.c             one room: its start, settling, notifying, its end
 *   named.c            which encoders requests may name
 *   peer.c local.c     messages of encoders and engines
 *   show.c lang.c      reports; events and their order */
#ifndef MMX_CORE_LANG_LANG_H
#define MMX_CORE_LANG_LANG_H

#include "base/check.h"
#include "base/heap.h"
#include "base/list.h"
#include "base/table.h"
#include "core/head.h"
#include "core/debt.h"
#include "core/move/pool.h"
#include "core/move/rowmap.h"
#include "core/share.h"
#include "core/lang/ticket.h"
#include "core/memory.h"
#include "core/trace/trace.h"

#define ATTEMPTS_MAX 3 /* outages that do not end a room */
#define STALE_MAX    3 /* the first may be of an epoch before the last HELLO */
/* How long a lost peer is still owed messages. Longer than any
 * control.lost_after, because the peer may not have noticed the loss. */
#define FORGET_NS (120 * NS_PER_S)
/* The same for a room whose encoder never got its INIT. */
#define GIVE_UP_NS (5 * NS_PER_S)
#define ABORTS_MAX 8 /* sends to a silent encoder: 7 s */
#define STREAM_MIN 3 /* blocks that a stream can always hold */

/* Bits of lroom.debt.owe: messages that are repeated until answered. */
enum ldebt {
    OWE_GRANT = 1, /* INIT, or RESUME after INIT was confirmed */
    OWE_ACK = 2,
    OWE_ABORT = 4,
    OWE_AUX = 8,    /* STATE asking for the aux: there is space now */
    OWE_RETURN = 16 /* no engine reads its lent rows */
};

/* The life of a room: see life.def. Only lroom_move changes it. */
enum life {
#define LIFE(name, next, text) LIFE_##name,
#include "core/lang/life.def"
#undef LIFE
    LIFE_COUNT
};

/* Whether a grant may be taken back when an older room lacks blocks (RULES 5.2
 * to 5.4). It only rises, until the room has lost all its blocks. */
enum grade {
    GRADE_SPECULATIVE, /* taken back first, while nothing has landed */
    GRADE_KEPT,        /* a head of the queue keeps its blocks */
    GRADE_FIRM         /* covers all that the room needs; never taken back */
};

/* Progress of INIT. It only rises, until the encoder is lost. */
enum init {
    INIT_DUE,
    INIT_SENT,     /* at least once: the encoder may know the room */
    INIT_CONFIRMED /* the encoder knows the generation: RESUME from now on */
};

/* The room's aux, known by LENGTH. */
enum laux {
    LAUX_UNKNOWN,
    LAUX_LACKING, /* aux_len bytes that have no space here, or lost it */
    LAUX_STORED   /* complete; also if the room has none */
};

/* What members add to their group's sums (grant_count): blocks once all rows
 * are there, blocks held, rows known, their blocks, chunks of aux, chunks that
 * lack space. Then 1 for a member whose length is not known, for one that keeps
 * the group from being admitted, for one that may take spare blocks, and for
 * one that has no LEND, or no aux. */
enum group_sum {
    OF_MOST,
    OF_HELD,
    OF_ROWS,
    OF_LEAST,
    OF_AUX,
    OF_LACKS,
    OF_UNKNOWN,
    OF_UNREADY,
    OF_GROWS,
    OF_UNLENT,
    GROUP_SUMS
};

struct lgroup {
    bool used;
    uint32_t uid; /* of its members */
    uint16_t pool, size, joined;
    uint32_t session;
    uint64_t id, age;     /* age: of its first member */
    bool lost;            /* a member lost its place: all fail, late ones too */
    bool copied;          /* no member hopes to be lent (any more) */
    bool admitted;        /* all members have blocks, or a share in `spare` */
    bool capped;          /* it may not hold all max_rows; `spare` is used */
    uint32_t spare;       /* blocks reserved for its members */
    uint32_t gone;        /* blocks of READY members */
    struct lroom *queued; /* the member in the pool's queue for all; or NULL */
    struct list members;
    uint64_t sums[GROUP_SUMS]; /* over members */
    struct list in_place;      /* langd.groups_idle or groups_free */
    uint64_t idle_ns;          /* since when it has no members */
    struct lroom *aux_queued;  /* the member in langd.aux_queue for all */
    bool aux_whole; /* all lengths known, no member lacks space for aux */
};

/* Three enums have a room's state: r.state (wire/room.def) is what engines see,
 * `life` what the room has of its pool, `init` what its encoder knows. Each
 * bool is a fact that can hold in several of these states. */
struct lroom {
    struct room r;          /* must be the first member */
    struct list in_settled; /* of langd */
    uint32_t peer;          /* NONE: null encoder */
    uint32_t scope;         /* key in langd.keys: lroom_scope() */
    uint32_t uid;           /* of the requesting engine */
    struct list in_peer;
    uint64_t generation, age; /* its turn: share_turn() */
    uint16_t pool;
    uint8_t mode, storage, flags;
    uint8_t life;         /* enum life */
    uint16_t required;    /* destinations of the item */
    struct lgroup *group; /* NULL: none */
    struct list in_group, in_drawing;
    uint32_t counts[GROUP_SUMS]; /* in group->sums */
    struct key key;
    struct secret secret;

    /* Readers: announced in REQUEST; released or dead. */
    uint16_t readers, readers_done;
    uint8_t missing; /* announced readers no longer waited for */
    bool no_readers; /* ATTACH of others gets gone; may be set before the end */
    bool owner_done; /* the owner released or its session ended; any state */

    /* As reported by its encoder. */
    bool length_known; /* LENGTH was handled; r.state follows when it settles */
    bool want;         /* rows wait for a larger grant */
    uint8_t item_storage;
    uint32_t expected, total, max_rows, committed;
    uint8_t aux_state; /* enum laux */
    uint32_t aux_len;
    struct aux aux;

    /* The grant. Rows [base, granted) have blocks. */
    struct extent held;
    uint32_t base, granted, from, attempt, broken;
    uint8_t grade;         /* enum grade */
    bool total_sent;       /* the shards have the total; stays over attempts */
    struct extent closing; /* blocks that the shards may still land into */
    uint32_t closing_left; /* shards to answer: LIFE_TRIMMING, LIFE_CLOSING */

    /* Rows that engines read in the encoder's pool. hopes: the encoder is asked
     * to lend the rows, and no block is taken meanwhile. lent: it lent them,
     * and engines may know the runs, in the pool of number lent_pool. late:
     * attachments wait until their connections map that pool. */
    bool hopes, lent, late;
    uint16_t lent_pool;
    struct aux lent_runs;

    /* What has landed. */
    uint32_t landed; /* rows beyond `from` */
    uint32_t prefix, exposed, released;
    uint32_t highest; /* end of the highest landed rows */

    /* What its encoder was sent and is owed. */
    struct debt debt;
    uint8_t init;       /* enum init */
    bool refused;       /* by a run that ends: the next one is asked */
    bool answer_due;    /* the encoder awaits the end: sent when lroom_still */
    uint8_t aborts;     /* ABORTs sent since the last HELLO */
    uint8_t stale;      /* NACKs (stale) in a row */
    uint64_t answer_ns; /* when STATE answers LENGTH if no ACK went */
    uint32_t sent_attempt, sent_granted; /* of the last INIT or RESUME */
    uint8_t sent_firm;

    /* Outages of the data endpoint. */
    uint64_t broken_ns, counted_ns; /* last break; last break that counted */
    uint64_t pause_ns, pause_for;   /* no grant until; length of the next */
    uint64_t outage_ns;             /* when rows that are due but cannot come
                                       end the room */

    /* Deadlines; TIME_NEVER: not set. */
    uint64_t bootstrap_ns, total_ns, stall_ns, consumer_ns;
    uint64_t forget_ns; /* when debts to a lost peer end */
    struct heap_node timer;

    /* Nodes in the pool's queues, and in langd's for aux. */
    struct heap_node want_node, need_node, spec_node, victim_node;
    bool ready_counted,
        landing_counted; /* counted in the pool, until sorted again */
    struct heap_node aux_node, hold_node; /* in aux_queue, aux_held */
    /* Total time of waits for blocks; start of the current wait, 0: none. */
    uint64_t waited_ns, waits_ns;

    struct list tickets; /* sequence ids that are freed if the room fails */

    struct history history;
};

/* A room that an engine will not fetch, while its encoder is not up. */
struct ldecline {
    struct memo memo;
    struct key key;
    struct secret secret;
    uint32_t uid; /* of the engine */
    uint32_t gids_len;
    uint8_t gids[GROUPS_BYTES];
};
#define WAITING_DECLINES 256

struct lpool {
    struct pool_meta *meta;
    struct pool p;
    struct rowmap landed;
    uint32_t block_rows, unit_rows, part_rows;
    uint32_t cap_whole, cap_stream, hold_stream;
    struct heap want;   /* rooms whose rows wait; oldest first */
    struct heap need;   /* rooms without rows; oldest first */
    struct heap spec;   /* speculative grants, nothing landed; youngest first */
    struct heap victim; /* waiting rooms with landed rows; youngest first */
    struct list drawing; /* members that want spare blocks of their group */
    uint32_t spare;      /* free blocks reserved for their members */
    uint32_t ready_rooms, landing_rooms, closing_blocks;
    uint64_t head_age;      /* age of the head that does not fit */
    uint64_t head_since_ns; /* since when it does not fit; TIME_NEVER */
    uint64_t gave_ns;       /* when a room last got blocks */
    uint64_t revoke_ns;     /* when landed rows may be revoked for that head */
    uint64_t head_wait_ns;  /* longest wait of a head, for reports */
    bool dirty;             /* the queues must be served */
};

struct langd {
    struct brain b; /* first */
    struct tickets tickets;
    struct heap aux_queue;   /* rooms that wait for space, in order */
    struct heap aux_held;    /* rooms that may lose space, in order */
    struct lgroup *aux_kept; /* the group at the head: it keeps its space */
    bool aux_dirty;          /* aux_queue must be served */
    struct memory tombs;     /* of ended generations: (generation, 0) */
    struct memory left;      /* of rooms that ended before all announced readers
                                came: (room, scope); state: how many did not */
    struct memory declines;  /* struct ldecline of (room, the peer's who) */
    struct table keys;       /* (room, scope) -> slot */
    struct lroom *rooms;
    struct why *whys; /* of rooms */
    struct lgroup *groups;
    struct table group_ids; /* (id, session) -> group */
    /* By session: no members now, more expected; oldest first. */
    struct list *groups_idle;
    struct list groups_free;
    uint32_t groups_fresh;   /* groups from here on were never used */
    struct slots slots;      /* of rooms */
    struct share share;      /* of rooms */
    struct share idle_share; /* of idle groups; refuses none */
    uint32_t rooms_max, rooms_used, open;
    struct lpool pools[CONF_POOLS_MAX];
    uint32_t leaving;        /* encoders that no request may name any more */
    uint16_t named_at[1024]; /* named.c: by hash of a name, its last peer */
    bool leave_due;          /* a leaving encoder may have lost its last room */
    uint16_t lenders;        /* the number that the last lender got */
    uint32_t lender_news;    /* connections from this one on must hear of it */
    struct heap timers;      /* of rooms */
    struct list todo;        /* rooms to settle */
    struct list settled; /* settled rooms, to notify after serving the queues */
    uint64_t generation_base, generation_count;
    uint8_t scratch[AUX_MAX];
};

/* Returns the scope of a room in langd.keys and langd.left: a hash of the
 * secret and of the encoder's `who`, which does not depend on its place. So a
 * request with another secret neither finds nor blocks the room. */
static inline uint32_t lroom_scope(
    const struct langd *l, uint32_t peer, const struct secret *secret)
{
    return brain_name(&l->b, secret) ^
           (peer == NONE ? 0 : l->b.peers.peers[peer].who);
}

/* Returns the lroom that contains a room of engines.c. All rooms of a langd are
 * in langd.rooms, and each struct room is the first member of an lroom. */
static inline struct lroom *to_lroom(struct room *r)
{
    CHECK(r->used, "room ..%08x lies in a free slot", (uint32_t)r->id);
    return CONTAINER_OF(r, struct lroom, r);
}

static inline uint32_t lroom_slot(const struct langd *l, const struct lroom *m)
{
    return (uint32_t)(m - l->rooms);
}

/* Fails a CHECK if the room's slot is free. */
#define CHECK_ROOM(m)                                                          \
    CHECK((m)->life > LIFE_FORGOTTEN && (m)->life < LIFE_COUNT,                \
        "room ..%08x g%llx has life %u", (uint32_t)(m)->r.id,                  \
        (unsigned long long)(m)->generation, (m)->life)

_Static_assert(offsetof(struct langd, b) == 0 && offsetof(struct lroom, r) == 0,
    "brain.c and engines.c know the heads only");
_Static_assert(LIFE_COUNT <= 8, "room.c has the next states in a byte");
_Static_assert(ROOM_ATTACHMENTS_MAX <= UINT8_MAX, "lroom.missing is a byte");

static inline bool lroom_alive(const struct lroom *m)
{
    return m->r.state != ROOM_FAILED && m->r.state != ROOM_SUCCESS;
}

/* True if the shards have its attempt open. */
static inline bool lroom_open(const struct lroom *m)
{
    return m->life == LIFE_GRANTED || m->life == LIFE_TRIMMING;
}

/* True if shards were asked to give up blocks and have not all answered. Until
 * then its blocks do not change. */
static inline bool lroom_closing(const struct lroom *m)
{
    return m->life == LIFE_TRIMMING || m->life == LIFE_CLOSING;
}

static inline bool lroom_firm(const struct lroom *m)
{
    return m->grade == GRADE_FIRM;
}

static inline struct peer *lroom_peer(
    const struct langd *l, const struct lroom *m)
{
    return m->peer == NONE ? NULL : &l->b.peers.peers[m->peer];
}

static inline struct lpool *lroom_pool(struct langd *l, const struct lroom *m)
{
    return &l->pools[m->pool];
}

/* True if no segment of the room can land any more. Only then is its encoder
 * told that the room failed: a copy may be reading rows there (RULES 6.2). */
static inline bool lroom_still(const struct lroom *m)
{
    return !lroom_open(m) && !lroom_closing(m);
}

/* True if all members have come, and each live one has a length. */
static inline bool lgroup_known(const struct lgroup *g)
{
    return g->joined == g->size && g->sums[OF_UNKNOWN] == 0;
}

/* lang/life.c: the states of a room */

/* Moves the room to the next state; CHECKs that life.def allows it. */
void lroom_move(struct lroom *m, enum life to);
/* Puts the room on the todo list. */
void lroom_touch(struct langd *l, struct lroom *m);

/* lang/lend.c: rooms that are read in the encoder's pool */

/* Takes from HELLO what engines here need to map the encoder's pools. */
void lender_take(struct langd *l, struct peer *p, const struct peer_hello *n);
/* Gives the lender a number, once this daemon maps its pools itself: only then
 * is its socket known to be served by its user. */
void lender_open(struct langd *l, struct peer *p);
void lender_gone(struct peer *p);
/* Notifies connections of a new lender, while `out` has space. */
void lenders_serve(struct langd *l, struct out *out);
/* Writes the next LENDER for conn, which lends. False: it was told of all. */
bool lender_next(struct langd *l, uint32_t conn, struct writer *w);
/* Handles MAPPED. */
void lender_mapped(
    struct langd *l, uint32_t conn, const struct local_mapped *n);
/* True if conn cannot map the pool of a lent room: it has said MAPPED without
 * pools, or does not take LENDER. */
bool lender_refused(
    const struct langd *l, uint32_t conn, const struct lroom *m);
/* Makes a new room ask its encoder to lend, if it may: all connections of its
 * session map the encoder's pools. */
void lroom_hope(struct langd *l, struct lroom *m, uint32_t session);
/* Makes the room, and all of its group, take blocks instead. No effect once it
 * is lent. */
void lroom_despair(struct langd *l, struct lroom *m);
/* Calls lroom_despair if the length is known now and the room is small. */
void lroom_measure(struct langd *l, struct lroom *m);
/* True if conn may be shown the room's rows. If conn may not, a room that only
 * hopes for a lend takes blocks instead. */
bool lroom_shows(struct langd *l, struct lroom *m, uint32_t conn);
/* True if all members have LEND and aux, and none is shown. */
static inline bool group_lent(const struct lgroup *g)
{
    return !g->copied && g->joined == g->size && g->sums[OF_UNLENT] == 0 &&
           !list_empty(&g->members);
}

/* Makes the room that has LEND ready, if all of its group have it. */
void lroom_take_lent(struct langd *l, struct lroom *m);
/* Handles LEND. */
void lroom_on_lend(struct langd *l, struct lroom *m, const struct peer_lend *n);
/* Ends the lend of the room: no engine reads its rows. */
void lroom_lent_over(struct langd *l, struct lroom *m);

/* lang/aux.c: space for aux */

/* True if the room is known to have aux and there is no space for it. */
static inline bool lroom_lacks_aux(const struct lroom *m)
{
    return m->aux_state == LAUX_LACKING && m->aux.reserved == 0;
}

/* Stores the room's final aux from LENGTH, or makes it wait for space. */
void laux_take(struct langd *l, struct lroom *m, struct span bytes);
/* Frees the space of the room's aux. */
void laux_drop(struct langd *l, struct lroom *m);
/* Sorts the room into the aux queues by its present state. */
void laux_classify(struct langd *l, struct lroom *m);
/* Puts the group into the aux queue as one entry, or takes it out. */
void laux_place_group(struct langd *l, struct lgroup *g);
/* Takes the room off both aux queues, before it leaves its group. */
void laux_leave(struct langd *l, struct lroom *m);
/* Gives space to waiting rooms while there is any. */
void laux_serve(struct langd *l);

/* lang/grant.c: the blocks of one room */

/* Returns the end of the rows that the room needs, as far as known now. A
 * stream needs its promised blocks from its base on, however few rows its
 * request expects. */
uint64_t grant_rows(const struct lpool *p, const struct lroom *m);
/* Returns the blocks that the room wants beyond those it holds; 0 while it is
 * closing. */
uint32_t grant_wanted(struct langd *l, const struct lroom *m);
/* Makes the sums of the room's group true again after the room changed. A room
 * that is not `in` leaves. */
void grant_count(struct langd *l, struct lroom *m, bool in);
/* Runs the room's clock while it waits for blocks; otherwise stops it. */
static inline void grant_clock(
    const struct langd *l, struct lroom *m, bool waits)
{
    if (waits == (m->waits_ns != 0))
        return;
    m->waited_ns += waits ? 0 : l->b.now_ns - m->waits_ns;
    m->waits_ns = waits ? l->b.now_ns : 0;
}
/* Takes n more blocks, at the shards too. False: there are not enough. */
bool grant_take(struct langd *l, struct out *out, struct lroom *m, uint32_t n,
    enum grade grade);
/* Takes n blocks that were reserved for the room, at the shards too. */
bool grant_take_own(struct langd *l, struct out *out, struct lroom *m,
    uint32_t n, enum grade grade);
/* Returns FIRM_YES if the room keeps its blocks and needs no other room's. */
uint8_t grant_firmness(struct langd *l, const struct lroom *m);
/* Opens the present attempt at the shards with the room's blocks. */
void grant_open(struct langd *l, struct out *out, struct lroom *m);
/* Takes back all blocks but the first `keep` and raises the attempt. Rows that
 * were not exposed are sent again. */
void grant_restart(
    struct langd *l, struct out *out, struct lroom *m, uint32_t keep);
/* Gives up the blocks beyond the total; returns their number. */
uint32_t grant_trim(struct langd *l, struct out *out, struct lroom *m);
/* Closes the open attempt at the shards. reply: they answer when nothing of it
 * lands any more; until then the room is closing. */
void grant_close(struct langd *l, struct out *out, struct lroom *m, bool reply);

/* lang/group.c: rooms that are admitted together */

void groups_init(struct langd *l);
/* Frees the groups of a session that has ended. */
void groups_session_over(struct langd *l, uint32_t session);
/* True if the group has members. id 0: no group. */
bool group_begun(const struct langd *l, uint64_t id, uint32_t session);
/* Checks whether a request may join the group that it names. */
MUST_CHECK enum err group_check(const struct langd *l,
    const struct local_request *n, uint32_t session, const char **text);
void group_join(struct langd *l, struct lroom *m, const struct local_request *n,
    uint32_t session);
/* Takes an ended room out of its group, if any. */
void group_leave(struct langd *l, struct lroom *m);
/* Sorts the room's group, and the room among the members that want spare
 * blocks. */
void group_sort(struct langd *l, struct lroom *m);
/* Returns the number of blocks that the group wants at admission. */
uint32_t group_wanted(const struct langd *l, const struct lgroup *g);
/* Takes all the blocks that the group wants. False: they cannot be had. */
bool group_take(struct langd *l, struct out *out, struct lgroup *g);
/* Gives spare blocks to the first member for which there are enough. False:
 * there is no such member. */
bool groups_draw(struct langd *l, struct out *out, struct lpool *p);
/* Reserves blocks that a member gave up for the rest of its group. */
void group_trimmed(struct langd *l, struct lroom *m, uint32_t blocks);

/* lang/admit.c: which rooms get blocks of a pool */

/* Sorts the room into its pool's queues by its present state. */
void admit_sort(struct langd *l, struct lroom *m);
/* Returns the lowest turn among the rooms that wait for blocks of the pool. */
uint64_t admit_turn(const struct lpool *p);
/* Takes the room off every queue of its pool. */
void admit_leave(struct langd *l, struct lroom *m);
/* Serves the queues. *again: the list of actions is full, call again. */
void admit_serve(
    struct langd *l, struct out *out, struct lpool *p, bool *again);

/* lang/say.c: messages to encoders */

/* Sends the messages that the room owes its encoder and that are due. */
void say_room(struct langd *l, struct out *out, struct lroom *m);
/* Answers a message about a generation: with the state of room m, else with
 * what the tombstone says, else with stale. */
void say_state(struct langd *l, struct out *out, struct peer *p,
    const struct peer_msg *in, const struct lroom *m, const struct tomb *tomb);
/* Writes an engine's groups to bytes, as in messages; returns their span. */
struct span say_groups(const struct conn *c, uint8_t bytes[GROUPS_BYTES]);
/* Connects to a peer without a link. */
void say_connect(struct langd *l, struct out *out, struct peer *p);

/* lang/decline.c: rooms that engines will not fetch */

/* Sends DECLINE for the room, or keeps it until its encoder is up. */
void decline_room(struct langd *l, struct out *out, struct peer *p,
    const struct conn *c, const struct local_decline *n);
/* Sends the kept declines for this encoder, or connects it for them. */
void declines_serve(struct langd *l, struct out *out, struct peer *p);
/* Drops the kept declines of a room that is requested now. */
void declines_take_back(
    struct langd *l, const struct peer *p, const struct local_request *n);

/* lang/room.c: one room */

/* Returns a new room in a free slot, on no list; NULL: l->share.why. */
struct lroom *lroom_new(struct langd *l, uint64_t id, uint32_t peer,
    const struct secret *secret, uint32_t uid);
/* Fails a room whose rows cannot come, with the known trouble of its encoder,
 * else with this text. */
void lroom_lost(struct langd *l, struct lroom *m, const char *text);
/* Ends the room as failed; later calls change nothing. */
void lroom_fail(struct langd *l, struct lroom *m, enum err reason, uint32_t a,
    uint32_t b, const char *text);
/* Fails all members of a group after one lost its place at its encoder; members
 * that join later fail too. */
void lroom_place_lost(struct langd *l, struct lgroup *g);
/* Fails the room's group if its members can never be held together. */
void lroom_check_group(struct langd *l, struct lroom *m);
/* Applies what follows from all changes, and sorts the room into the queues. */
void lroom_settle(struct langd *l, struct out *out, struct lroom *m);
/* Ends a room whose encoder never answered and now loses its entry. */
void lroom_unplaced(struct langd *l, struct lroom *m);
/* Frees a room whose last debt was paid, if nothing else of it is left. */
void lroom_paid(struct langd *l, struct lroom *m);
/* Sends what changed since the last message, and frees the room when nothing of
 * it is left. */
void lroom_notify(struct langd *l, struct out *out, struct lroom *m);
/* Handles the room's deadlines that have passed. */
void lroom_expired(struct langd *l, struct lroom *m);
/* Counts rows that a shard reports as landed. */
void lroom_landed(
    struct langd *l, struct lroom *m, uint32_t first, uint32_t rows);
/* Counts one shard's answer to a trim or close: no landing from before it is
 * left there. */
void lroom_quiet(struct langd *l, struct lroom *m);
/* Stops waiting for readers that have not attached. */
void lroom_no_readers(struct langd *l, struct lroom *m);
/* Frees the blocks of the prefix that all readers have released. */
void lroom_readers(struct langd *l, struct out *out, struct lroom *m);

/* lang/named.c: which encoders requests may name */

/* Makes entries for the encoders of the configuration. langd connects to them
 * when a room names them. */
void named_init(struct langd *l);
/* Adopts the encoders of the changed config. Rooms of a removed encoder
 * complete. */
void named_conf(struct langd *l, struct out *out);
/* Forgets removed encoders that have no rooms left. */
void named_serve(struct langd *l, struct out *out);
/* Returns the peer with this name or address for a new room of the user; makes
 * it if allowed. NULL: *text says why. */
struct peer *named_find(struct langd *l, struct out *out, uint32_t uid,
    struct span name, const char **text);
/* True if a peer without rooms may lose its entry to another. */
bool named_spare(const void *brain, const struct peer *p);
/* Fails everything that waits for an encoder that never answered. */
void named_gives_way(void *brain, struct peer *p);
/* Returns an encoder of this name that takes no new rooms and is not forgotten
 * yet; NULL: none. with: only one that has the room of this ATTACH. */
struct peer *named_leaving(
    const struct langd *l, struct span name, const struct local_attach *with);

/* True if the encoder is connected and takes new rooms. */
bool named_takes(const struct peer *p);
/* If no encoder takes rooms, connects the next one of the config, so that
 * health shows what rooms would meet. */
void named_seek(struct langd *l, struct out *out);

/* lang/peer.c: messages of encoders */

extern const struct peers_ops langd_peers;
bool langd_peer(
    void *brain, struct out *out, struct peer *p, const struct peer_msg *m);
/* Handles the result of ACT_MAP: an encoder's pools are mapped or not. */
void langd_on_map(struct langd *l, struct out *out, const struct event *ev);

/* lang/local.c: messages of engines, and events for them */

extern const struct engines_ops langd_engines;
bool langd_local(
    void *brain, struct out *out, uint32_t conn, const struct local_msg *m);
bool langd_fill_event(void *brain, const struct attachment *att,
    struct local_event *n, struct writer *w);
bool langd_next_event(void *brain, uint32_t conn, struct writer *w);

/* lang/show.c */

extern const struct show_ops langd_shows;
void langd_check(const void *brain);

#endif
