/* bench.h - shared by the files of mmx-bench. See main.c. */
#ifndef MMX_TEST_BENCH_H
#define MMX_TEST_BENCH_H

#include "base/base.h"
#include "client/mmx.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define ROW_BYTES       32768
#define BULK_ROWS       16336 /* 8 pictures of 1080p: 535,298,048 bytes */
#define LENT_SIZES      4     /* 256 KiB, 8 MB, 100 MB, BULK_BYTES */
#define BULK_BYTES      ((size_t)BULK_ROWS * ROW_BYTES)
#define RESUME_ROWS     2000
#define FIRST_ROWS      1024 /* first grant, before langd knows the length */
#define SPREAD_ROWS     4096 /* 134 MB, over shards, destinations, pieces */
#define PIECES_DUE      32   /* commits of an encoder that works meanwhile */
#define TP_ROWS         2048 /* 64 MiB */
#define BLOCK_ROWS      128
#define SMALL_BYTES     4096
#define MIDDLE_BYTES    65536
#define BLOCK_ROW_BYTES 4704 /* 128 of them are 602,112 bytes */
#define PINGS           300
#define IN_FLIGHT       64
/* rooms that wait while other rooms come and go */
#define OPEN_MAX    10000
#define POLLS       5000000
#define PIECES      3 /* sizes of write for raw TCP */
#define ROUNDS_MAX  99
#define SAMPLES_MAX (ROUNDS_MAX * PINGS)
#define SIZES       7 /* points of the curve by size */
#define STEPS       4 /* 10, 100, 1,000, 10,000 open rooms */
#define ENDS_MAX    65
#define DAEMONS_MAX 72
#define RANKS       8
#define START_MS    120000
#define ROOM_MS     60000

enum { ENC, LANG, SIDES }; /* engines; rank i of the language side: SIDES + i */
enum { EXACT, ANNOUNCED, AT_COMMIT, RESUMES };
enum { SHARDS_2 = 1, SHARDS_4, SPREADS_SHARDS, DST_4 = 3, DST_16, SPREADS };
/* Pairs of the world with chosen carriers: chosen by auto, TCP and UCX by us,
 * and TCP while UCX is open, too. */
enum { BY_AUTO, BY_TCP, BY_UCX, BESIDE_UCX, CHOICES };
enum { POOL_ROWS, POOL_SMALL, POOL_MIDDLE, POOL_BLOCK, POOL_OPEN, POOLS };

/* The measured series: lists of samples, in nanoseconds unless stated. A
 * comment says what a series varies by. */
enum series_name {
    S_BULK,
    S_BULK_CPU,
    S_TCP, /* by size of write */
    S_TCP_CPU = S_TCP + PIECES,
    S_ZMQ = S_TCP_CPU + PIECES,
    S_ENCRYPTED,
    S_ENCRYPTED_CPU,
    S_PROVED, /* proved rows, measured beside encrypted ones */
    S_PROVED_CPU,
    S_SEALED,
    S_SEALED_CPU,
    S_CIPHER, /* for CIPHER_BYTES */
    S_COPIED,
    S_COPIED_CPU,
    S_NT,
    S_NT_CPU,
    S_MEMCPY,
    S_HOST,                             /* copied on one host, by size */
    S_LENT = S_HOST + LENT_SIZES,       /* by size */
    S_LENT_CPU = S_LENT + LENT_SIZES,   /* by size */
    S_RESUME = S_LENT_CPU + LENT_SIZES, /* by how the grant comes */
    S_ROOM = S_RESUME + RESUMES,
    S_TCP_PING,
    S_AM,
    S_AM_SPIN,
    S_BLOCK,
    S_BLOCK_COPIED,
    S_AM_COPIED, /* pings while the copied block is measured */
    S_RATE,      /* per room */
    S_CHAIN,
    S_PACKET,
    S_MIDDLE, /* per room */
    S_MIDDLE_TCP,
    S_ALONE, /* small rooms alone; S_BESIDE: beside a large one */
    S_BESIDE,
    S_OPEN_ROOM, /* by number of open rooms */
    S_OPEN_RATE = S_OPEN_ROOM + STEPS,
    S_OPEN_CPU = S_OPEN_RATE + STEPS,
    S_PEER_ROOM = S_OPEN_CPU + STEPS, /* 0: one peer, 1: 64 */
    S_PEER_RATE = S_PEER_ROOM + 2,
    S_WHOLE = S_PEER_RATE + 2,
    S_PIECEWISE,
    S_SPREAD,                    /* by shards, then destinations */
    S_TP = S_SPREAD + SPREADS,   /* large, small; then both with all ranks */
    S_SIZE = S_TP + 4,           /* by size */
    S_SIZE_TCP = S_SIZE + SIZES, /* by size */
    S_START = S_SIZE_TCP + SIZES,
    S_POPULATE,
    S_POLL,                             /* for POLLS polls */
    S_CLOCK,                            /* as many reads of the clock */
    S_CHOSEN,                           /* large rooms, by carrier */
    S_CHOSEN_ROOM = S_CHOSEN + CHOICES, /* small rooms, by carrier */
    S_CHOSEN_RATE = S_CHOSEN_ROOM + CHOICES,
    S_COUNTED = S_CHOSEN_RATE + CHOICES,
    SERIES
};

struct series {
    uint32_t count;
    uint64_t v[SAMPLES_MAX];
};

/* Shared by all processes. Times are monotonic, in nanoseconds. */
struct shared {
    pthread_barrier_t meet;
    struct series series[SERIES];
    uint64_t stamp, cpu, id; /* id: of the next room */
    uint64_t ready[RANKS];
    bool go_on;
    pid_t pids[DAEMONS_MAX]; /* encoders first */
    uint64_t idle_cpu[SIDES], idle_wakes[SIDES], idle_busiest[SIDES];
    uint64_t rss_open[SIDES], rss_peers; /* bytes outside pools */
    uint64_t instructions[SIDES];        /* per small room */
    uint8_t am_address[4096];
    char chain_at[64];
};

/* A handle, with its pools. */
struct end {
    mmx *m;
    char encoder[16];
    struct mmx_pool pools[POOLS];
};

struct world;
struct side {
    struct shared *s;
    const struct world *w;
    struct end *e, *ends; /* e: the handle for cases that name none */
    int which, tcp;
    uint8_t *landing; /* memory for raw TCP, already faulted */
    void *zmq_ctx, *zmq;
    uint64_t seed;
};

struct bench_opt {
    unsigned rounds;
    bool json, pin, instructions, clear;
    const char *only, *out;
    const char *ucx;     /* transports of UCX for rows; NULL: rows go by TCP */
    const char *devices; /* devices for UCX; NULL: its default */
    char dir[64], build[512];
};
extern struct bench_opt opt;

/* Ends the process with a line on stderr. */
NORETURN void die(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* Returns the result, or dies if a call of the library failed. */
int must(int result, const char *what);
uint64_t now_ns(void);
/* Returns the processor time of all threads of a process so far. */
uint64_t cpu_ns(pid_t pid);
/* Returns the same for all daemons of the world. */
uint64_t daemons_cpu(const struct side *x);
/* Sleeps 150 to 450 us: not in step with any timer, and not for long. */
void gap(struct side *x);
/* Waits until the other engines have come here, too. */
void meet(struct side *x);
void note(struct side *x, int series, uint64_t value);
/* True if the options ask for this case. */
bool wanted(const char *name);

/* A case, run by both engines round by round. */
struct bench_case {
    const char *name;
    void (*round)(struct side *x, unsigned round);
    unsigned rounds; /* 0: as the options say */
};

/* worlds.c: a set of daemons, and the cases that need it. */
struct world {
    const char *name;
    unsigned encs, langs, ranks;
    const char *same_host; /* transfer.same_host */
    bool small, valgrind;
    const struct bench_case *cases;
    size_t cases_count;
};
extern const struct world worlds[];
extern const size_t worlds_count;
extern const struct world counted; /* for instructions */
bool world_wanted(const struct world *w);
unsigned world_shards(const struct world *w, unsigned pair);
unsigned world_encoder(const struct world *w, unsigned lang);
/* Writes a daemon's transfer section, except shards and same_host. */
void world_carrier(const struct world *w, int role, unsigned i, FILE *f);
uint32_t world_blocks(const struct world *w, int role, unsigned i, int pool);
extern const char *const pool_names[POOLS];
extern const uint32_t pool_row_bytes[POOLS], pool_block_rows[POOLS];

/* rooms.c: one room, both parts. */
void sweep(struct end *e);
void next_room(struct side *x);
mmx_room announce(
    struct end *e, int pool, uint64_t id, uint32_t rows, uint32_t max_rows);
mmx_room request(struct end *e, int pool, uint64_t id, uint32_t rows);
void write_rows(struct end *e, mmx_room r, uint32_t rows);
void check_rows(struct end *e, mmx_room r, uint32_t rows);
/* Encoder: sends one room, from its grant to its end. */
void send_room(struct side *x, mmx_room r, uint32_t rows);
/* Language side: waits for one room; returns the time of READY. */
uint64_t await_room(struct side *x, mmx_room r);
/* Measures one room of the pool from commit to READY. verify: all rows are
 * written and compared; otherwise only the number of rows. */
void one_room(struct side *x, int pool, uint32_t rows, bool verify, int series);
/* Runs `rooms` rooms, many at a time; notes nanoseconds per room. */
void rate(struct side *x, int pool, unsigned rooms, int series);

/* large.c, small.c, growth.c, still.c: the cases. */
void bulk_round(struct side *x, unsigned round);
void encrypted_round(struct side *x, unsigned round);
void copied_round(struct side *x, unsigned round);
void lent_round(struct side *x, unsigned round);
void resume_round(struct side *x, unsigned round);
void overlap_round(struct side *x, unsigned round);
void chosen_round(struct side *x, unsigned round);
void spread_round(struct side *x, unsigned round);
void sizes_round(struct side *x, unsigned round);
extern const uint32_t size_rows[SIZES];
void latency_round(struct side *x, unsigned round);
void block_copied_round(struct side *x, unsigned round);
void rate_round(struct side *x, unsigned round);
void middle_round(struct side *x, unsigned round);
void beside_round(struct side *x, unsigned round);
void tp_round(struct side *x, unsigned round);
void open_round(struct side *x, unsigned round);
extern const uint32_t open_steps[STEPS];
void peers_round(struct side *x, unsigned round);
void poll_round(struct side *x, unsigned round);
void idle_round(struct side *x, unsigned round);
void count_round(struct side *x, unsigned round);
#define COUNTED_ROOMS 1000 /* and three times as many in a second run */
extern unsigned counted_rooms;
void start_case(struct shared *s);
/* count.c: sets s->instructions. False: a run failed. */
bool count_instructions(struct shared *s);
/* Bytes that a process holds outside shared memory. */
uint64_t rss_outside(pid_t pid);

/* raw.c: the yardsticks of the kernel. */
void tcp_open(struct side *x, int listener, uint16_t port);
/* Moves bytes from the source pool into x->landing by raw TCP. */
void tcp_move(struct side *x, size_t bytes, size_t piece, int series);
/* Moves the bulk room's bytes with each size of write; notes time and processor
 * time. */
void tcp_bulk(struct side *x);
/* Notes one way of a ping of 4 KiB between sleeping ends. */
void tcp_ping(struct side *x);
/* Sends n packets of 64 bytes through a socket pair; returns nanoseconds per
 * packet. */
uint64_t bare_packets(unsigned n);
void *faulted(size_t bytes);

/* chain.c: the messages of `rooms` rooms, without any logic. */
void chain(struct side *x, unsigned rooms);

/* copy.c: the language side copies from one memfd into another. */
void copy_bulk(struct side *x);

/* zmq.c: the same frames by PUSH and PULL; the receiver copies them. */
void zmq_open(struct side *x);
void zmq_bulk(struct side *x);
void zmq_end(struct side *x);

/* am.c: the yardstick made of UCX. */
void am_open(struct side *x);
void am_ping(struct side *x, bool spin, int series);
void am_close(void);

/* sealed.c: the yardsticks of encrypted rows. Two bare ends of OpenSSL over
 * x->tcp, and the cipher alone; or, as `mmx-bench sealed ...`, one end. */
#define CIPHER_BYTES ((size_t)64 << 20)
void sealed_bulk(struct side *x);
int sealed_main(int argc, char **argv);

/* world.c: runs daemons and engines. False: one of them failed. */
bool world_run(const struct world *w, struct shared *s);
/* A daemon alone, of a configuration that is there. */
const char *bench_key(void);
pid_t daemon_start(const char *conf, const char *log, int role, bool valgrind,
    const char *notify);
void stop(pid_t pid, int sig);
/* Removes opt.dir with its contents. */
void remove_dir(void);

/* table.c */
void print_all(struct shared *s);
double share_of(struct shared *s, int series, double share);
/* curves.c: writes the data for test/bench/curves.gp into opt.out. */
void write_curves(struct shared *s);

#endif
