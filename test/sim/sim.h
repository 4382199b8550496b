/* sim.h - a seeded world with virtual time around the real brains: daemons with
 * their shards, the networks between them, engines with their scripts, and what
 * must always hold. One world per process; one thread.
 *
 * Whatever happens is an entry of one queue, ordered by virtual time with a
 * seeded tie-break. All chance comes from the seed. */
#ifndef MMX_SIM_H
#define MMX_SIM_H

#include "core/brain.h"
#include "core/move/landing.h"
#include "core/move/sending.h"
#include "core/share.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MS          NS_PER_MS
#define DAEMONS_MAX 400
#define SHARDS_MAX  3
#define CONNS_MAX   16
#define CELLS       16
#define CELLS_CALM  256
/* timeouts.total of a calm world: twice the default, since the work of one
 * world in 20,000 takes longer than that. */
#define TOTAL_CALM  (2 * 300 * NS_PER_S)
#define LINKS_MAX   520
#define READERS_MAX 2
#define TOUCHED_MAX 32

struct daemon;
struct mapping;
struct econn;
struct handle;
struct prod;
struct cons;

/* world.c: time, chance, the queue, the trace */

typedef void (*happening)(void *p, uint64_t a, uint64_t b);

/* The kind of world that the seed makes. */
struct nature {
#define IS(name, meaning) uint32_t name;
#include "test/sim/nature.def"
#undef IS
    bool calm;
};

/* faults.c: what goes wrong in a world with one fault. */
enum fault_how { FAULT_NONE, FAULT_LOST, FAULT_TWICE, FAULT_LATE };

struct fault {
    uint32_t world;
    uint8_t how, type; /* type 0: none is concerned */
    uint32_t k, seen;
    uint64_t when_ns;
    bool both; /* all daemons have both carriers */
};

struct world {
    uint64_t seed, now_ns, steps, still;
    uint64_t moves; /* the stream for delays, ties, and what daemons cause */
    uint64_t *from; /* the stream from which is drawn now */
    struct nature is;
    struct fault fault;
    struct daemon *daemons[DAEMONS_MAX];
    uint32_t daemons_count;
    uint32_t instances; /* announces so far */
    uint32_t cells;     /* cells that an engine asks for */
    bool healing;       /* no more faults; engines behave */
    bool loud;          /* prints every trace line */
    bool quiet;         /* prints no trace after a failure */
    bool show_steps;
    /* steps between two checks of everything; 0: at each step */
    uint32_t sparse;
    const char *canary;
    char replay[1000];                  /* options that make this world again */
    bool cut[DAEMONS_MAX][DAEMONS_MAX]; /* [from][to]: no message passes */
    /* [from][to], bits of carriers: shut: no rows pass by them; broke: they
     * have broken in this life of `from`. */
    uint8_t shut[DAEMONS_MAX][DAEMONS_MAX], broke[DAEMONS_MAX][DAEMONS_MAX];
    uint32_t succeeded, failed; /* rooms, as engines saw their ends */
    uint32_t copies, copying;   /* between daemons of one host */
    uint32_t lent;              /* rooms that were read where they were */
};
extern struct world W;

/* Each part of a world draws from a stream of its own, as does what it
 * schedules: one more draw in one part changes no other part. */
enum part {
    PART_NATURE,
    PART_DAEMON, /* numbered, as the parts below */
    PART_DELIVERY,
    PART_TICKET,
    PART_FAULT,
    PART_RELOAD,
    PART_GHOST,
    PART_PROOF,
    PART_LEAVE,
    PART_CLOCK,
    PART_MEMORY, /* numbered by daemon, life and pool */
    PART_CARRIER /* numbered by daemon and life, from 2 on */
};

/* Draws from this stream from now on. */
void draw_from(enum part part, uint64_t number);
uint64_t draw(void);
/* Returns a number in [lo, hi]. */
uint64_t between(uint64_t lo, uint64_t hi);
bool chance(uint32_t per_thousand);
/* Returns a delay up to `us`, seldom much longer, from the stream of moves. */
uint64_t delay_us(uint32_t us);

void at(uint64_t when_ns, happening fn, void *p, uint64_t a, uint64_t b);
/* Schedules something that happens by itself: clocks of engines and daemons. */
void at_leisure(
    uint64_t when_ns, happening fn, void *p, uint64_t a, uint64_t b);
/* True if only entries of at_leisure() are left. */
bool world_quiet(void);
/* Runs entries up to that time. False: no entry is left. */
bool run_until(uint64_t when_ns);

void trace(const char *fmt, ...) PRINTF_LIKE(1, 2);
void trace_print(void);
/* Ends the world: a property does not hold. */
NORETURN void broken(const char *property, const char *fmt, ...)
    PRINTF_LIKE(2, 3);
#define HOLDS(expr, property, ...)                                             \
    ((expr) ? (void)0 : broken(property, __VA_ARGS__))

/* True if this rule is to be broken on purpose. */
bool canary(const char *name);

void *must_alloc(size_t n, size_t size);
/* The same, shared with child processes. */
void *shared_alloc(size_t size);

/* daemon.c: a brain and its shards */

/* A pool of another daemon of the host, while it is mapped. */
struct foreign {
    struct daemon *of;
    uint32_t life, blocks, block_rows;
    uint64_t *tags;
    uint16_t *reads;
    const struct layout *layout;
};

struct order {
    struct data_cmd cmd;
    bool address; /* not a command, but the peer's data addresses */
    bool source;  /* not a command, but the peer's pool: mapped, or no longer */
    uint8_t carrier;
    uint32_t pool;
    struct foreign *foreign;
    uint32_t to, to_life, count, segment_max;
};

struct address {
    uint32_t to, life, count, segment_max; /* count 0: none */
    uint8_t carrier;
};

struct shard {
    struct daemon *d;
    uint32_t k;
    void *memory;
    struct landing *landing;
    struct sending *sending;
    struct order *orders;
    uint32_t head, len, cap;
    uint64_t note_ns;
    struct address peers[LINKS_MAX];
    struct foreign *(*foreign)[CONF_POOLS_MAX]; /* by peer */
};

/* Commands that a shard's ring did not take. */
struct backlog {
    struct order *orders;
    uint32_t at, len, cap;
};

struct daemon {
    uint8_t role;
    uint32_t index; /* in W.daemons */
    uint32_t life;  /* counts starts; what belongs to an older life is void */
    uint32_t host;
    bool alive, draining;
    uint8_t carriers;  /* bits of its carriers; 0: not drawn yet */
    bool spoilt;       /* for this life: a pool has no memory, or lost it */
    struct conf *conf; /* shared by lives */
    struct brain_conf bc;
    void *brain;
    uint8_t *memory;
    uint32_t shards_count;
    struct shard shards[SHARDS_MAX];
    struct backlog backlog[SHARDS_MAX];
    struct landing_pool lpools[CONF_POOLS_MAX];
    uint64_t *tags[CONF_POOLS_MAX]; /* by row: the tag that lies there */
    /* by block: sends and copies that read it */
    uint16_t *reads[CONF_POOLS_MAX];
    /* of the last step, by the daemon's clock */
    uint64_t now_ns;
    uint64_t timer_ns;
    uint32_t timer_no;
    uint8_t last; /* event of the last step */
    /* slots that the last step touched */
    uint32_t steps, touched[TOUCHED_MAX], touched_count;
    bool full; /* the last step filled its list of actions, and left work */
    /* langd: generation for which a WANT came, or rows landed, in the last
     * step */
    uint64_t asked_of, landed_of;
    struct econn *conns[CONNS_MAX];
    struct mapping *mappers[CONNS_MAX]; /* encoded, by connection */
    struct mapping *maps[LINKS_MAX];    /* langd, by peer */
    struct ctl *links[LINKS_MAX]; /* encoded: accepted; langd: connected */
    /* langd: the encoded that the link has to reach; NONE */
    uint32_t wants[LINKS_MAX];
    void *watch;     /* state of the checks */
    uint32_t fixing; /* bit i: memory of pool i was ordered */
    struct out out;
};

struct daemon *daemon_new(uint8_t role, struct conf *conf, uint32_t shards);
void daemon_start(struct daemon *d);
void daemon_crash(struct daemon *d);
void daemon_step(struct daemon *d, struct event *ev);
/* The daemon's clock has jumped. */
void daemon_clocked(struct daemon *d);
/* Notes that the step touches this slot, too. */
void daemon_touches(struct daemon *d, uint32_t slot);
uint64_t daemon_number(struct daemon *d, const char *what, const char *name);
struct conf *conf_make(uint8_t role, const char *name);
/* Prints the daemons' reports to stderr. */
void daemons_print(void);
void conf_give(struct conf *c, const char *assignment);
void shard_drain(struct shard *s);
/* True if a shard lacks commands: messages to peers have to wait. */
bool daemon_lags(const struct daemon *d);
/* Gives shards the peer's pool to read, or with NULL takes it away. */
void shards_source(
    struct daemon *d, uint32_t peer, uint32_t pool, struct foreign *f);
void shard_note(struct shard *s, const struct data_note *n);

/* still.c: daemons that are not scheduled */

#define LOOP     0u
#define SHARD(k) (1 + (k))
/* True if that part of the daemon stands still; then fn is called later. */
bool stands_still(struct daemon *d, uint32_t part, happening fn, void *p,
    uint64_t a, uint64_t b);
void stand_still(struct daemon *d, uint32_t part, uint64_t for_ns);
void stand_one_still(void);
void all_go_on(void);
/* The monotonic clock of the daemon's host. clock_of() returns what it shows at
 * a time of the world; clock_shows() returns the time of the world at which it
 * shows when_ns. */
uint64_t clock_of(const struct daemon *d, uint64_t world_ns);
uint64_t clock_shows(const struct daemon *d, uint64_t when_ns);
/* Stops that clock for for_ns; then it jumps by by_ns. */
void clock_stands(const struct daemon *d, uint64_t for_ns, uint64_t by_ns);

/* net.c: between daemons */

void net_connect(struct daemon *l, uint32_t link, struct span address);
void net_disconnect(struct daemon *d, uint32_t link);
void net_send(struct daemon *d, uint32_t link, struct span frame);
/* Sends messages that waited until the shards had their commands. */
void net_flush(struct daemon *d);
void net_daemon_gone(struct daemon *d);
void net_cut_one(void);
/* No message passes between two daemons for a while; both: in neither
 * direction. */
void net_partition(
    struct daemon *a, struct daemon *b, uint64_t for_ns, bool both);
void net_heal(void);

/* map.c: pools of encoders of the same host */

void map_start(
    struct daemon *l, uint32_t peer, struct span path, uint64_t token);
void map_stop(struct daemon *l, uint32_t peer);
void map_deliver(struct mapping *m, struct span frame);
void map_close(struct mapping *m);
void map_daemon_gone(struct daemon *d);
void map_lose_one(void);
bool map_stands(const struct mapping *m);
/* The engine was told of a lender: its process maps the pools. */
void map_lender(struct econn *c, const struct local_lender *n);
/* Returns the pool that the engine has under this number. */
const struct foreign *map_pool(const struct econn *c, uint16_t pool);
/* Returns a handle by which an engine may read that block of an encoder's pool,
 * or NULL. */
const struct handle *map_reader(
    const struct daemon *e, uint32_t pool, uint32_t block);
/* How an engine's process left a langd: it died, it said BYE, or it saw the
 * langd die. */
enum gone_how { GONE_DIES, GONE_BYE, GONE_LANGD };
void map_reader_gone(struct econn *c, enum gone_how how);

/* data.c: rows on their way */

void data_try(struct shard *s, const struct data_cmd *c);
void data_pump(struct shard *s);
void data_daemon_gone(struct daemon *d);
void data_break(struct shard *s, uint32_t peer);
void data_break_one(void);
/* Ends copies that are not wanted any more, and whose end is waited for. */
void data_purge(const struct shard *s);
uint32_t data_on_the_way(void);
uint64_t tag_of(uint32_t instance, uint32_t row);
uint32_t tag_instance(uint64_t tag);
uint32_t tag_row(uint64_t tag);

/* carriers.c: the carriers of rows */

void carriers_draw(struct daemon *d);
/* Rows cannot pass by that carrier any more; its connections end. */
void carrier_shut(
    struct daemon *from, const struct daemon *to, uint8_t carrier);
/* Checks a langd's choices of carriers, after each step. */
void carriers_watch(const struct daemon *d);
/* True if the room has failed because its daemons have no carrier in common. */
bool carriers_refused(const struct cons *c);
void carriers_differ(void);

/* engines.c: connections of engines */

struct frame {
    uint32_t len;
    uint8_t *bytes;
};

struct fifo {
    struct frame *frames;
    uint32_t head, len, cap;
    uint64_t next_ns; /* earliest time of the next delivery: keeps the order */
    bool busy;        /* a delivery is on its way */
};

struct pending_answer {
    uint32_t seq, type;
    struct handle *h;
};

enum engine_conn_state { EC_NEW, EC_HELLO, EC_POOL, EC_READY, EC_OVER };

struct econn {
    struct daemon *d;
    uint32_t life, number, process;
    uint8_t state;
    bool ended; /* the socket is closed */
    bool dead;  /* the process is gone */
    bool bye, notified, dead_told;
    bool ghost; /* nobody looks at the answers */
    uint32_t uid;
    char session[16];
    uint32_t seq, tags_used, cells;
    uint64_t *words; /* by cell, as handles */
    struct handle **handles;
    struct fifo up, down;
    struct pending_answer *waiting;
    uint32_t waiting_head, waiting_len, waiting_cap;
    uint64_t stalled_ns; /* reads nothing before that time */
    uint32_t block_rows[CONF_POOLS_MAX];
    uint32_t pools; /* pools asked for so far */
};

/* What an engine's connection knows of a room. */
struct handle {
    struct econn *c;
    uint32_t cell, tag;
    struct prod *prod; /* one of the three */
    struct cons *cons;
    struct ask *ask;
    uint8_t rights;
    uint16_t pool; /* of the room, as the last event with runs said */
    bool owner, bound, refused, released;
    uint8_t err;
    /* From when the event is in the socket: */
    bool may_write;
    uint64_t generation;
    uint32_t first, shown, given; /* rows [given, shown) may be read */
    uint32_t runs;
    struct {
        uint32_t block, blocks;
    } run[128];
    /* From when the event was read: */
    bool seen_granted, seen_ready, seen_failed, seen_done, ended;
    uint32_t seen_rows, total, instance; /* instance: whose rows they were */
    uint8_t reason;
};

struct econn *econn_open(struct daemon *d, const char *session, uint32_t uid);
bool econn_usable(const struct econn *c);
/* Sends m; h gets the answer. */
void econn_send(struct econn *c, struct local_msg *m, struct handle *h);
void econn_bye(struct econn *c);
/* Closes the socket; the process lives on. */
void econn_close(struct econn *c);
/* Ends the process, and so its socket. */
void econn_die(struct econn *c);
void econn_daemon_gone(struct daemon *d);
void econn_pull(struct econn *c);
void econn_deliver(struct econn *c, struct span frame);
void econn_cell(struct econn *c, uint32_t cell, uint64_t word);
/* Binds a cell of the connection to a new handle. NULL: all cells are in
 * use. */
struct handle *handle_new(struct econn *c);
void handle_release(struct handle *h, uint32_t rows);
uint32_t handle_block_rows(const struct handle *h);
/* Returns where a row is in the pool, by the runs that were shown. */
uint64_t handle_row(const struct handle *h, uint32_t row);
uint32_t econns_open(void);
struct econn *econn_at(uint32_t i);
uint32_t econns_count(void);

/* encode.c, language.c: what engines want */

struct prod {
    struct daemon *d;
    uint64_t *draws; /* the stream of its delivery */
    uint32_t life, instance, pool, session;
    uint64_t room;
    struct handle *h[1 + READERS_MAX];
    uint32_t conns;
    uint32_t max_rows, total, required, pieces, piece, aux;
    uint8_t storage, flags;
    bool known, shuffled, separate_final, final_sent, aborts, silent, early;
    bool commit_wrong, over, announced, patient, must_succeed;
    bool insists;     /* asks for a place until it gets one */
    uint32_t refused; /* reasons of refusals, a bit each */
    uint8_t expected; /* the reason with which it must fail; OK: none */
    uint64_t key, secret, abort_ns, start_ns, end_ns;
    uint32_t order[16];
    uint32_t deadline_ms;
    uint64_t pace_ns;
    struct prod *mate;  /* is announced together with this one */
    struct prod *led;   /* the one that announces this one, too; NULL: none */
    struct prod *again; /* the one that announces the room again */
    struct cons *paced; /* the engine whose consumption sets the pace */
    struct prod *next, *in_room;
};

struct cons {
    struct daemon *d;
    uint64_t *draws; /* the stream of its delivery */
    uint32_t life, encoder, pool, session;
    uint64_t room;
    struct handle *h[1 + READERS_MAX];
    uint32_t conns, readers;
    uint8_t mode, storage, tries;
    bool null, aborts, silent, over, requested, must_succeed, declines, asked;
    bool lost_with_daemon; /* a daemon of its room crashed */
    bool insists;          /* asks for a place until it gets one */
    uint32_t refused;      /* reasons of refusals, a bit each */
    uint64_t key, secret, hold_ns, abort_ns, ready_ns, start_ns, end_ns;
    uint32_t rows, required, window, deadline_ms;
    uint64_t group;
    uint16_t group_size;
    struct cons *twin;  /* is consumed together with this one */
    bool ghost;         /* requests a ghost's room */
    bool thief;         /* does not have the room's secret */
    bool together;      /* consumes its group as a whole */
    bool eager;         /* releases rows as soon as they are shown */
    bool lost;          /* ended with no-blocks, and was not requested again */
    struct cons *again; /* the one that requests the room again */
    struct cons *next;
};

/* Returns a usable connection, number i of the daemon's session; opens it if
 * there is none. NULL: impossible now. */
struct econn *session_conn(struct daemon *d, uint32_t session, uint32_t i);
struct prod *prod_new(struct daemon *d, uint64_t room);
struct cons *cons_new(struct daemon *d, uint32_t encoder, uint64_t room);
struct prod *prods_all(void);
struct cons *cons_all(void);
/* Returns the prods of the room, and possibly others (of the same hash); linked
 * by in_room. */
struct prod *prods_of_room(uint64_t room);
/* Forgets the prods that have been over for that long. */
void prods_forget(uint64_t for_ns);
void cons_forget(uint64_t for_ns);
void prod_start(struct prod *p, uint64_t when_ns);
void cons_start(struct cons *c, uint64_t when_ns);
/* Returns the room's announce that has these rows, or NULL. */
const struct prod *prod_of(uint32_t instance, uint64_t room);
/* Gives p a key and the key's content. False: the content has more than `most`
 * rows. */
bool prod_key(struct prod *p, uint64_t key, uint64_t most);
/* True if one of its connections saw DONE. */
bool prod_saw_done(const struct prod *p);
bool prods_over(void);
bool cons_over(void);
/* Returns the bytes of a secret; of 0: no secret. */
struct secret secret_of(uint64_t number);
/* True if the engine has a right to this announce, by its user and secret. */
bool cons_may(const struct cons *c, const struct prod *p);
/* True if all engines that asked for the room have its rows, or want none. */
bool cons_room_served(uint64_t room);
const char *prods_left(void);
const char *cons_left(void);
void prods_daemon_gone(struct daemon *d);
void cons_daemon_gone(struct daemon *d);
void prod_answer(struct handle *h, uint32_t type, const struct local_answer *a);
void cons_answer(struct handle *h, uint32_t type, const struct local_answer *a);
void prod_event(struct handle *h, const struct local_event *e);
void cons_event(struct handle *h, const struct local_event *e);
/* Reads rows [from, to) and checks them. */
void cons_read(
    const struct handle *h, uint32_t from, uint32_t to, const char *when);
/* Writes rows that were granted, until they are committed. */
void prod_granted(struct prod *p, const struct handle *h);
/* Returns the handle of a living engine that believes it may write the
 * block. */
struct handle *prod_writer(struct daemon *d, uint32_t pool, uint32_t block);

/* waits.c */

/* Checks at a quiet moment that every room that waits, waits for something that
 * moves. */
void waits_look(void);

/* tickets.c: sequence ids */

/* Has an engine of the langd ask for a sequence id. */
void ask_start(struct daemon *d);
/* Checks that the ticket that has waited longest for an id gets it first. */
void tickets_watch(const struct daemon *d, const void *tickets);
bool asks_over(void);
void ask_answer(struct handle *h, uint32_t type, const struct local_answer *a);
void ask_event(struct econn *c, const struct local_ticket_event *e);

/* check_encoded.c, check_langd.c: what must always hold */

void encoded_watch(struct daemon *d);
void langd_watch(struct daemon *d);
/* The same for the rooms that the last step touched. */
void encoded_watch_step(struct daemon *d);
void langd_watch_step(struct daemon *d);
/* check_debts.c: what encoded owes this destination. */
void debts_watch(const struct daemon *d, uint32_t dst);
/* reference_step.c: who gets blocks and aux, in which order, and from whom. */
void order_langd(struct daemon *d);
void order_encoded(struct daemon *d);
/* check_debts.c: news for peers. */
void news_watch(const struct daemon *d, const struct brain *b);
/* Checks that no user holds entries of these shares. */
void shares_watch_end(
    const struct daemon *d, const struct share *const *shares, uint32_t n);
void encoded_unwatch(struct daemon *d);
void langd_unwatch(struct daemon *d);
/* Notes a command that the brain gave to its shards. */
void langd_watch_cmd(struct daemon *d, const struct data_cmd *c);
/* Notes that a langd copies from this block. */
void encoded_watch_copy(
    struct daemon *d, uint32_t pool, uint32_t block, const struct segment *s);
/* Checks at the end that nothing is left. */
void encoded_watch_end(struct daemon *d);
void langd_watch_end(struct daemon *d);
/* If both are connected, checks that langd knows whether the encoder drains. */
void langd_knows_drain(const struct daemon *d, const struct daemon *encoder);
/* Checks a landing that copies into this block. */
void langd_watch_landing(
    struct daemon *d, uint32_t pool, uint32_t block, const struct segment *s);
/* True if the segment is of a room that has not ended. */
bool langd_room_lives(const struct daemon *d, const struct segment *s);
/* For the canary `attempt`: gives the segment the attempt in force. */
void langd_any_attempt(struct daemon *d, struct segment *s);
/* Outcome of a generation at its langd: ROOM_SUCCESS, ROOM_FAILED, or
 * UINT8_MAX while it has none. */
uint8_t langd_outcome(uint64_t generation);
void langd_outcome_set(uint64_t generation, uint8_t state);
/* Checks that a state may follow the one before (RULES 4.7). */
struct room;
void see_forward(const struct daemon *d, const struct room *r, uint8_t before);

/* ghost.c: programs that send anything */

#define GHOST_ADDRESS "tcp://10.0.9.9:7601"
#define GHOST_ROOMS   900000

void ghosts_start(void);
/* Ends the ghosts for good. */
void ghosts_go(void);
/* True if a ghost listens at the address. */
bool ghost_connects(struct daemon *l, uint32_t link, const char *address);
void ghost_disconnects(struct daemon *l, uint32_t link);

/* reload.c: configurations that change */

/* Begins the reloads, if the world has any. */
void reloads_start(void);
/* Puts all configurations back as they were drawn. */
void reloads_end(void);
void reloads_watch(const struct daemon *d);

/* draw.c: what there is, by chance */

/* Draws deadlines and limits. */
void draw_times(struct conf *c);

void draw_nature(void);
void draw_calm(void);
void draw_daemons(void);
uint64_t room_next(void);
uint64_t room_last(void);
void deliver(void *p, uint64_t again, uint64_t room);

/* shrink.c: what is set otherwise than drawn, and deliveries that are left out
 */

#define WORDS_MAX 900
/* Reads --set NAME=NUMBER,... of NATURES, or --only DELIVERY,... False: another
 * option. */
bool option_read(const char *option, const char *value);
/* Reads words as options_words() writes them. */
bool options_read(const char *words);
void options_apply(struct nature *n);
bool option_skips(uint32_t delivery);
/* Writes which parts are set and left out, as words of a command line. */
void options_words(char *out, size_t size);
/* Sets and leaves out as many parts as it can while the world still fails.
 * drawn: the nature without words. */
void shrink(bool (*fails)(void), const struct nature *drawn);

/* faults.c */

/* Returns what happens to this frame, the k-th of its type. */
enum fault_how fault_of(struct span frame);
typedef void (*fault_runner)(const char *name, void (*run)(void));
/* Calls start for each fault, with W.fault set to it. */
void faults_list(fault_runner start);

/* swarm.c, calm.c, scenarios.c */

void swarm_run(void);
void swarm_of_reloads(void);
/* Starts the world's deliveries and tickets, each at its time. */
void deliveries_start(
    void (*later)(uint64_t when_ns, happening, void *, uint64_t, uint64_t));
void calm_run(void);
/* Runs a calm world to its end, and checks how its rooms ended. */
void calm_finish(void);
void ticket_comes(void *p, uint64_t a, uint64_t b);
/* Runs until all is over, and checks that nothing is left. */
void world_finish(uint64_t limit_ns);
bool world_over(void);
/* cost.c: what a step of a brain costs, in blocks of code */

void cost_begin(void);
void cost_end(const struct daemon *d, const struct event *ev);
/* Counts for events about rooms, or about links and daemons. */
struct cost {
    uint64_t steps, work, most;
    uint32_t kind; /* of the longest step */
};
struct cost cost_of(bool rooms);
/* Prints the costly kinds of events, one a line. */
void cost_print(void);
/* Runs worlds of more and more rooms. False: in one of them a room costs
 * more. */
bool cost_run(bool (*in_child)(void (*run)(void)));
/* fleet.c: runs three fleets. The largest has `most` pairs of daemons and
 * `rooms` rooms. False: a room was lost, or costs more in a larger fleet. */
bool fleets_run(
    bool (*in_child)(void (*run)(void)), uint32_t most, uint64_t rooms);
struct scenario {
    const char *name;
    void (*run)(void);
};
extern const struct scenario scenarios[];
extern const uint32_t scenarios_count;

#endif
