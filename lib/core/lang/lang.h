/* lang.h - the inside of the language side's brain, for lang/ only. The outside
 * is brain.h.
 *
 * A room lives in one slot from REQUEST until nothing of it is left (life.def).
 * Handlers change its fields and put it on the todo list. Then rooms are
 * settled: what follows from the change is drawn, and the room is sorted into
 * the queues. When all are settled the queues are served, which may change
 * rooms again; at last engines and encoders are notified of the difference
 * between what is and what was said.
 *
 * The files stand on floors, in this order; calls go up the list only:
 *   life.c             the steps of a room's life
 *   ticket.c           sequence ids
 *   grant.c aux.c      blocks, and space for aux, of one room
 *   group.c            rooms that are admitted together
 *   admit.c            the queues of a pool
 *   say.c decline.c    what encoders hear
 *   room.c             one room: its start, settling, telling, its end
 *   named.c            which encoders requests may name
 *   peer.c local.c     what encoders and engines say
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
#include "core/tombs.h"
#include "core/trace/trace.h"

#define ATTEMPTS_MAX 3 /* outages that a room may have */
#define STALE_MAX    3 /* the first may be of an epoch before the last HELLO */
/* How long a debt to a lost peer is kept: longer than any control.lost_after,
 * because the peer may not have noticed. */
#define FORGET_NS (120 * NS_PER_S)
/* The same for a room that its encoder has never heard of. */
#define GIVE_UP_NS (5 * NS_PER_S)
#define ABORTS_MAX 8 /* sent to an encoder that does not answer: 7 s */
#define STREAM_MIN 3 /* blocks that a stream room can always hold */

/* Bits of lroom.debt.owe: messages that are repeated until they are answered.
 */
enum ldebt {
    OWE_GRANT = 1, /* INIT, or RESUME once INIT was confirmed */
    OWE_ACK = 2,
    OWE_ABORT = 4,
    OWE_AUX = 8 /* STATE that asks for the aux, for which there is space now */
};

/* The life of a room: see life.def. lroom_move is the one way on. */
enum life {
#define LIFE(name, next, text) LIFE_##name,
#include "core/lang/life.def"
#undef LIFE
    LIFE_COUNT
};

/* What a grant is worth when an older room lacks blocks (RULES 5.2 to 5.4). It
 * only rises, until the room has lost all its blocks. */
enum grade {
    GRADE_SPECULATIVE, /* taken back first, while nothing has landed */
    GRADE_KEPT,        /* the head of the queue keeps what it has */
    GRADE_FIRM         /* all that the room needs, and never taken back */
};

/* How far INIT has come. It only rises. */
enum init {
    INIT_DUE,
    INIT_SENT,     /* at least once: the encoder may know the room */
    INIT_CONFIRMED /* it knows the generation: RESUME from now on */
};

/* The room's aux, as LENGTH brings it. */
enum laux {
    LAUX_UNKNOWN,
    LAUX_LACKING, /* aux_len bytes, which are not here, or were taken back */
    LAUX_STORED   /* in full; also where there is none */
};

struct lgroup {
    bool used;
    uint16_t pool, size, joined;
    uint32_t session;
    uint64_t id, age; /* that of its first member */
    bool lost;        /* a member lost its place: all fail, also late ones */
    bool admitted;    /* every member has its blocks, or a share in `spare` */
    bool capped;      /* its max_rows are more than it may hold together */
    uint32_t spare;   /* blocks that are kept free for its members */
    uint32_t gone;    /* blocks of members that are READY */
    struct lroom *queued; /* the member in the pool's queue, for all; or NULL */
    struct list members;
    struct list in_capped; /* of the pool, while it has a right to `spare` */
    struct list in_place;  /* of langd.groups_idle or groups_free */
    struct list in_session;
    struct lroom *aux_queued; /* the member in langd.aux_queue, for all */
    bool aux_whole; /* all lengths are known, no member lacks space for aux */
};

/* Three enums describe its life: r.state (wire/room.def) what engines see, life
 * what it has of its pool, and init what its encoder has heard. A bool here is
 * a fact that may hold in several of their states. */
struct lroom {
    struct room r;          /* first */
    struct list in_settled; /* of langd */
    uint32_t peer;          /* NONE: the null encoder */
    uint32_t scope;         /* in langd.keys: lroom_scope() */
    uint32_t uid;           /* of the engine that asked */
    struct list in_peer;
    uint64_t generation, age; /* its turn: share_turn() */
    uint16_t pool;
    uint8_t mode, storage, flags;
    uint8_t life;         /* enum life */
    uint16_t required;    /* destinations of the item */
    struct lgroup *group; /* NULL: none */
    struct list in_group;
    struct key key;
    struct secret secret;

    /* Readers: as REQUEST announced, and those that are through. */
    uint16_t readers, readers_done;
    uint8_t missing; /* announced, and waited for no more */
    bool no_readers; /* ATTACH of others gets gone; also before the end */
    bool owner_done; /* the owner released, or its session ended; any state */

    /* As its encoder said. */
    bool length_known; /* a LENGTH was taken; r.state lags until it settles */
    bool want;         /* rows wait for a larger grant than the one in force */
    uint8_t item_storage;
    uint32_t expected, total, max_rows, committed;
    uint8_t aux_state; /* enum laux */
    uint32_t aux_len;
    struct aux aux;

    /* The grant. Rows [base, granted) have blocks. */
    struct extent held;
    uint32_t base, granted, from, attempt, broken;
    uint8_t grade;         /* enum grade */
    bool total_sent;       /* shards have the total; it outlives attempts */
    struct extent closing; /* blocks that shards may still land into */
    uint32_t closing_left; /* shards that have not answered: LIFE_TRIMMING,
                              LIFE_CLOSING */

    /* What has landed. */
    uint32_t landed; /* rows beyond `from` */
    uint32_t prefix, exposed, released;
    uint32_t highest; /* end of the highest rows that came */

    /* What its encoder has heard, and is to hear. */
    struct debt debt;
    uint8_t init;    /* enum init */
    bool answer_due; /* its end was asked for, and is said when lroom_still */
    uint8_t aborts;  /* sent since the last HELLO */
    uint8_t stale;   /* NACKs in a row that call it stale */
    uint64_t answer_ns; /* a LENGTH is answered then: no ACK came first */
    uint32_t sent_attempt, sent_granted; /* by the last INIT or RESUME */
    uint8_t sent_firm;

    /* Outages of the data endpoint. */
    uint64_t broken_ns, counted_ns; /* the last break; the last that counted */
    uint64_t pause_ns, pause_for;   /* no grant before; length of the next */
    uint64_t outage_ns;             /* rows are due and cannot come: the end */

    /* Deadlines; TIME_NEVER: not running. */
    uint64_t bootstrap_ns, total_ns, stall_ns, consumer_ns;
    uint64_t forget_ns; /* of debts to a lost peer */
    struct heap_node timer;

    /* Places in the pool's queues, and in langd's for aux. */
    struct heap_node want_node, need_node, spec_node, victim_node;
    bool ready_counted,
        landing_counted; /* in the pool's numbers, until sorted */
    struct heap_node aux_node, hold_node; /* of aux_queue, aux_held */
    /* How long it has waited for blocks, and since when it does; 0: no more. */
    uint64_t waited_ns, waits_ns;

    struct list tickets; /* sequence ids that its failure frees */

    struct ended history;
};

/* A room that an engine will not fetch, while its encoder is not up. */
struct ldecline {
    struct list node;  /* of langd.declines_free or declines_waiting */
    uint64_t until_ns; /* it is forgotten then */
    uint64_t room;
    struct key key;
    struct secret secret;
    uint32_t peer; /* its serial */
    uint32_t uid;  /* of the engine */
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
    struct heap want;   /* rooms with rows waiting; oldest first */
    struct heap need;   /* rooms without; oldest first */
    struct heap spec;   /* speculative grants, nothing landed; youngest first */
    struct heap victim; /* waiting with landed rows; youngest first */
    struct list capped; /* groups with spare blocks */
    uint32_t spare;     /* free blocks that only their members may take */
    uint32_t ready_rooms, landing_rooms, closing_blocks;
    uint64_t head_age;      /* of the head that does not fit */
    uint64_t head_since_ns; /* since when it does not; TIME_NEVER */
    uint64_t gave_ns;       /* when a room last got blocks */
    uint64_t revoke_ns;     /* when landed rows may be taken back for it */
    uint64_t head_wait_ns;  /* longest wait of a head, for reports */
    bool dirty;             /* the queues are to be served */
};

struct langd {
    struct brain b; /* first */
    struct tickets tickets;
    struct heap aux_queue;   /* rooms that wait for space, first come first */
    struct heap aux_held;    /* rooms that may lose theirs, in that order */
    struct lgroup *aux_kept; /* the first to wait: it keeps what it has */
    bool aux_dirty;          /* aux_queue is to be served */
    struct tombs tombs;      /* generations that ended: (generation, 0) */
    struct tombs left;       /* rooms that ended before all announced readers
                                came: (room, scope), state: their number */
    struct table keys;       /* (room, scope) -> slot */
    struct lroom *rooms;
    struct lgroup *groups;
    struct table group_ids;  /* (id, session) -> group */
    struct list groups_idle; /* without members, not all came; oldest first */
    struct list groups_free;
    struct list *session_groups;
    uint32_t groups_fresh; /* no group from here on was ever used */
    struct slots slots;    /* of rooms */
    struct share share;    /* of rooms */
    uint32_t rooms_max, rooms_used, open;
    struct lpool pools[CONF_POOLS_MAX];
    uint32_t leaving;        /* encoders that are named no more */
    uint16_t named_at[1024]; /* by name: the peer that it was last; named.c */
    bool leave_due;          /* one of them may have had its last room */
    struct heap timers;      /* of rooms */
    struct list todo;        /* rooms to settle */
    struct list settled; /* rooms to notify of, once the queues are served */
    uint64_t generation_base, generation_count;
    struct ldecline *declines;
    struct list declines_free, declines_waiting; /* waiting: oldest first */
    uint8_t scratch[AUX_MAX];
};

/* Returns the scope of a room in langd.keys and langd.left. With the secret in
 * it nothing that has another one finds the room, or takes its place. */
static inline uint32_t lroom_scope(
    const struct langd *l, uint32_t peer, const struct secret *secret)
{
    uint32_t name = brain_name(&l->b, secret);

    return name ? name ^ peer * UINT32_C(0x9e3779b1) : peer;
}

/* Returns the brain's half of a room that engines.c knows. All rooms of a langd
 * lie in langd.rooms, so each struct room of it is the head of an lroom. */
static inline struct lroom *to_lroom(struct room *r)
{
    CHECK(r->used, "room %llx lies in a free slot", (unsigned long long)r->id);
    return CONTAINER_OF(r, struct lroom, r);
}

static inline uint32_t lroom_slot(const struct langd *l, const struct lroom *m)
{
    return (uint32_t)(m - l->rooms);
}

/* Stops at a room that has gone: whose slot is free, or another room's soon. */
#define CHECK_ROOM(m)                                                          \
    CHECK((m)->life > LIFE_FORGOTTEN && (m)->life < LIFE_COUNT,                \
        "room %llx g%llx has life %u", (unsigned long long)(m)->r.id,          \
        (unsigned long long)(m)->generation, (m)->life)

_Static_assert(offsetof(struct langd, b) == 0 && offsetof(struct lroom, r) == 0,
    "brain.c and engines.c know the heads only");
_Static_assert(LIFE_COUNT <= 8, "room.c has the next states in a byte");
_Static_assert(ROOM_ATTACHMENTS_MAX <= UINT8_MAX, "lroom.missing is a byte");

static inline bool lroom_alive(const struct lroom *m)
{
    return m->r.state != ROOM_FAILED && m->r.state != ROOM_SUCCESS;
}

/* True if its attempt is open at the shards. */
static inline bool lroom_open(const struct lroom *m)
{
    return m->life == LIFE_GRANTED || m->life == LIFE_TRIMMING;
}

/* True if shards have been asked to give up blocks and have not all answered:
 * it gets no others and loses none meanwhile. */
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
 * notified that it failed: a copy may be reading the rows there (RULES 6.2). */
static inline bool lroom_still(const struct lroom *m)
{
    return !lroom_open(m) && !lroom_closing(m);
}

/* lang/life.c: the steps of a room's life */

/* Takes the room's life one step on; CHECKs that life.def has the step. */
void lroom_move(struct lroom *m, enum life to);
/* Puts the room on the list of those to settle. */
void lroom_touch(struct langd *l, struct lroom *m);
/* True if every member has come, and each that lives has a length. */
bool lgroup_known(const struct lgroup *g);

/* lang/aux.c: space for aux */

/* True if it is known that the room has aux, and there is no space for it. */
static inline bool lroom_lacks_aux(const struct lroom *m)
{
    return m->aux_state == LAUX_LACKING && m->aux.reserved == 0;
}

/* Takes the room's final aux, as LENGTH brings it, or lets it wait for space.
 */
void laux_take(struct langd *l, struct lroom *m, struct span bytes);
/* Frees the space of the room's aux. */
void laux_drop(struct langd *l, struct lroom *m);
/* Sorts the room into the queues by what it is now. */
void laux_classify(struct langd *l, struct lroom *m);
/* Puts the group into the queue, as one, or takes it out. */
void laux_place_group(struct langd *l, struct lgroup *g);
/* Takes the room off every queue, before it leaves its group. */
void laux_leave(struct langd *l, struct lroom *m);
/* Gives space to the rooms that wait, as far as there is any. */
void laux_serve(struct langd *l);
/* True if the aux of all members can be held together; *need: its bytes. */
bool laux_fits(const struct langd *l, const struct lgroup *g, uint32_t *need);

/* lang/grant.c: the blocks of one room */

/* Returns the blocks that the room wants beyond those that it holds. */
uint32_t grant_wanted(struct langd *l, const struct lroom *m);
/* Runs the clock of the room while it waits for blocks, and stops it else. */
static inline void grant_clock(
    const struct langd *l, struct lroom *m, bool waits)
{
    if (waits == (m->waits_ns != 0))
        return;
    m->waited_ns += waits ? 0 : l->b.now_ns - m->waits_ns;
    m->waits_ns = waits ? l->b.now_ns : 0;
}
/* Takes n more blocks, at the shards too. False: they cannot be had. */
bool grant_take(struct langd *l, struct out *out, struct lroom *m, uint32_t n,
    enum grade grade);
/* Takes n firm blocks that were kept for the room. */
bool grant_take_own(
    struct langd *l, struct out *out, struct lroom *m, uint32_t n);
/* Returns FIRM_YES when the room keeps its blocks and needs no other room's. */
uint8_t grant_firmness(struct langd *l, const struct lroom *m);
/* Opens the attempt in force at the shards, with the blocks that it has. */
void grant_open(struct langd *l, struct out *out, struct lroom *m);
/* Takes back all blocks but the first `keep` and raises the attempt; rows that
 * were not exposed come again. */
void grant_restart(
    struct langd *l, struct out *out, struct lroom *m, uint32_t keep);
/* Gives up the blocks beyond the total; returns their number. */
uint32_t grant_trim(struct langd *l, struct out *out, struct lroom *m);
/* Closes the open attempt at the shards. reply: they answer when nothing of it
 * lands any more, and until then the room is closing. */
void grant_close(struct langd *l, struct out *out, struct lroom *m, bool reply);

/* lang/group.c: rooms that are admitted together */

void groups_init(struct langd *l);
/* Frees the groups of a session that has ended. */
void groups_session_over(struct langd *l, uint32_t session);
/* True if the group has members. id 0: there is none. */
bool group_begun(const struct langd *l, uint64_t id, uint32_t session);
/* Checks whether a request may be a member of the group that it names. */
MUST_CHECK enum err group_check(const struct langd *l,
    const struct local_request *n, uint32_t session, const char **text);
void group_join(struct langd *l, struct lroom *m, const struct local_request *n,
    uint32_t session);
/* Takes an ended room out of its group, if it has one. */
void group_leave(struct langd *l, struct lroom *m);
/* Puts the group into its pool's queue, or takes it out. */
void group_place(struct langd *l, struct lgroup *g);
/* Returns the blocks that it wants when it is admitted. */
uint32_t group_wanted(const struct langd *l, const struct lgroup *g);
/* Takes them all. False: they cannot be had. */
bool group_take(struct langd *l, struct out *out, struct lgroup *g);
/* Gives spare blocks to members that have more rows than blocks. */
void groups_draw(struct langd *l, struct out *out, struct lpool *p);
/* Keeps blocks that a member gave up for the others of its group. */
void group_trimmed(struct langd *l, struct lroom *m, uint32_t blocks);
/* True if the rows that are known can be held together; *need: their number. */
bool group_fits(const struct langd *l, const struct lgroup *g, uint32_t *need);

/* lang/admit.c: who gets blocks of a pool */

/* Sorts the room into its pool's queues by what it is now. */
void admit_sort(struct langd *l, struct lroom *m);
/* Returns the lowest turn of those that wait for blocks of the pool. */
uint64_t admit_turn(const struct lpool *p);
/* Takes the room off every queue. */
void admit_leave(struct langd *l, struct lroom *m);
/* Serves the queues; *again: the list is full, call again. */
void admit_serve(
    struct langd *l, struct out *out, struct lpool *p, bool *again);

/* lang/say.c: what encoders hear */

/* Says what the room owes its encoder, as far as it is due. */
void say_room(struct langd *l, struct out *out, struct lroom *m);
/* Answers a message with what is true of its generation: of the room m, or what
 * the tombstone says; neither: it is stale. */
void say_state(struct langd *l, struct out *out, struct peer *p,
    const struct peer_msg *in, const struct lroom *m, const struct tomb *tomb);
/* Returns the groups of an engine, as messages say them, in bytes. */
struct span say_groups(const struct conn *c, uint8_t bytes[GROUPS_BYTES]);
/* Connects to a peer without a link. */
void say_connect(struct langd *l, struct out *out, struct peer *p);

/* lang/decline.c: rooms that engines will not fetch */

void declines_carve(struct langd *l, struct slab *s);
/* Says that no engine here will fetch the room, now or when its encoder comes.
 */
void decline_room(struct langd *l, struct out *out, struct peer *p,
    const struct conn *c, const struct local_decline *n);
/* Says what waits for this encoder, which has come. */
void declines_say(struct langd *l, struct out *out, struct peer *p);
/* Forgets what waits of a room that is requested now. */
void declines_take_back(
    struct langd *l, const struct peer *p, const struct local_request *n);

/* lang/room.c: one room */

/* Returns a new room in a free slot, on no list; NULL: l->share.why. */
struct lroom *lroom_new(struct langd *l, uint64_t id, uint32_t peer,
    const struct secret *secret, uint32_t uid);
/* Fails a room whose rows cannot come: for what is wrong with its encoder, else
 * with this text. */
void lroom_lost(struct langd *l, struct lroom *m, const char *text);
/* Ends the room as failed; later calls change nothing. */
void lroom_fail(struct langd *l, struct lroom *m, enum err reason, uint32_t a,
    uint32_t b, const char *text);
/* Fails all members of a group of which one lost its place at its encoder; also
 * those that join later (lroom_joined). */
void lroom_place_lost(struct langd *l, struct lgroup *g);
void lroom_joined(struct langd *l, struct lroom *m);
/* Fails the room's group when its members can never be held together. */
void lroom_check_group(struct langd *l, struct lroom *m);
/* Draws the consequences of all that has changed, and sorts the room into the
 * queues. */
void lroom_settle(struct langd *l, struct out *out, struct lroom *m);
/* Ends a room whose encoder never answered and gives its entry to another. */
void lroom_unplaced(struct langd *l, struct lroom *m);
/* Forgets a room whose last debt was paid, if nothing else of it is left. */
void lroom_paid(struct langd *l, struct lroom *m);
/* Sends the difference between what is and what was sent, and forgets the room
 * when nothing of it is left. */
void lroom_notify(struct langd *l, struct out *out, struct lroom *m);
/* Does what is due of the room's deadlines. */
void lroom_expired(struct langd *l, struct lroom *m);
/* Counts rows that landed, as a shard says. */
void lroom_landed(
    struct langd *l, struct lroom *m, uint32_t first, uint32_t rows);
/* Counts a shard in which no landing is left that began before a trim or
 * close. */
void lroom_quiet(struct langd *l, struct lroom *m);
/* Waits no longer for readers that have not attached. */
void lroom_no_readers(struct langd *l, struct lroom *m);
/* Gives back the blocks of the prefix that all readers have released. */
void lroom_readers(struct langd *l, struct out *out, struct lroom *m);

/* lang/named.c: which encoders requests may name */

/* Makes the encoders of the config. They are connected when a room names them.
 */
void named_init(struct langd *l);
/* Takes the encoders of the config as they are now. The rooms of one that has
 * left complete. */
void named_conf(struct langd *l, struct out *out);
/* Forgets encoders that have left and have no rooms any more. */
void named_serve(struct langd *l, struct out *out);
/* Returns the peer of that name or address for a new room of the user, made if
 * it may be. NULL: *text says why. */
struct peer *named_find(struct langd *l, struct out *out, uint32_t uid,
    struct span name, const char **text);
/* True if the peer without rooms may give its place to another. */
bool named_spare(const void *brain, const struct peer *p);
/* Ends all that waits for an encoder that never answered. */
void named_gives_way(void *brain, struct peer *p);
/* Returns the encoder that takes no new rooms and is not forgotten yet; NULL:
 * none. */
struct peer *named_leaving(const struct langd *l, struct span name);
/* Returns the encoder that has left and has the room of an ATTACH; NULL: none.
 */
struct peer *named_find_room(
    const struct langd *l, const struct local_attach *n);

/* True if the encoder is connected and takes new rooms. */
bool named_takes(const struct peer *p);
/* Without an encoder that does, connects the next one of the config, so that
 * health says what rooms would find. */
void named_seek(struct langd *l, struct out *out);

/* lang/peer.c: what encoders say */

extern const struct peers_ops langd_peers;
bool langd_peer(
    void *brain, struct out *out, struct peer *p, const struct peer_msg *m);
/* Takes the answer to ACT_MAP: an encoder's pools were mapped, or cannot be. */
void langd_on_map(struct langd *l, struct out *out, const struct event *ev);

/* lang/local.c: what engines say, and what they hear */

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
