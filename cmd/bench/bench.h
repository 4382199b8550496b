/* bench.h - shared by the files of mmx-bench. See cmd/mmx-bench.c. */
#ifndef MMX_CMD_BENCH_H
#define MMX_CMD_BENCH_H

#include "base/base.h"
#include "client/mmx.h"

#include <pthread.h>

#define ROW_BYTES   32768
#define BULK_ROWS   16336 /* eight pictures of 1920 x 1080: 535,298,048 bytes */
#define RESUME_ROWS 2000
#define FIRST_ROWS  1024 /* what langd grants before it knows */
#define BLOCK_ROWS  128
#define SMALL_BYTES 4096
#define PINGS       300
#define IN_FLIGHT   64
#define RATE_ROOMS  20000
#define POLLS       5000000
#define PIECES      3 /* sizes of write that raw TCP is tried with */
#define ROUNDS_MAX  99
#define START_MS    60000
#define ROOM_MS     30000

enum { ENC, LANG, SIDES };
enum { EXACT, ANNOUNCED, AT_COMMIT, RESUMES };

/* Seen by all processes. Times are monotonic nanoseconds. */
/* Seen by all processes. Times are monotonic nanoseconds. */
struct shared {
    pthread_barrier_t meet;
    uint64_t stamp[PINGS];
    uint64_t bulk[ROUNDS_MAX], tcp[PIECES][ROUNDS_MAX], copy[ROUNDS_MAX];
    uint64_t room[ROUNDS_MAX * PINGS];
    uint64_t ping[ROUNDS_MAX * PINGS], am[ROUNDS_MAX * PINGS];
    uint64_t rate[ROUNDS_MAX], packets[ROUNDS_MAX];
    uint64_t resume[RESUMES][ROUNDS_MAX];
    uint64_t polls;
    uint8_t am_address[4096];
    uint64_t id; /* next room id */
};

struct side {
    struct shared *s;
    mmx *m;
    struct mmx_pool rows, small;
    int which, tcp;
    uint8_t *landing; /* of the raw TCP yardstick: faulted memory */
    uint64_t seed;
};

struct bench_opt {
    unsigned rounds, shards;
    bool json, pin, same_host;
    const char *only;
    char dir[64], build[512];
};
extern struct bench_opt opt;

/* Ends the process with a line on stderr. */
NORETURN void die(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* Gives result, or dies when a call of the library failed. */
int must(int result, const char *what);
uint64_t now_ns(void);
/* Sleeps between 150 and 450 us: neither in step with a timer nor asleep for
 * long. */
void gap(struct side *x);
/* Waits until the other engine is here too. */
void meet(struct side *x);
/* Is this case asked for? */
bool wanted(const char *name);

/* cases.c: what both engines run, round for round. */
struct bench_case {
    const char *name;
    void (*round)(struct side *x, unsigned round);
};
extern const struct bench_case bench_cases[];
extern const size_t bench_cases_count;
/* Takes the events that are there, so that ended rooms are released. */
void sweep(struct side *x);

/* raw.c: the yardsticks. */
void tcp_open(struct side *x, int listener, uint16_t port);
/* The bulk room's bytes from the source pool into x->landing, once per size
 * of piece. */
void tcp_bulk(struct side *x, unsigned round);
/* One way of a sleeping ping of 4 KiB; nanoseconds into *out there. */
void tcp_ping(struct side *x, unsigned i, uint64_t *out);
/* RATE_ROOMS packets of 64 bytes through a socket pair; nanoseconds. */
uint64_t bare_packets(void);
void *faulted(size_t bytes);

/* copy.c: the yardstick of one host: the bulk room's bytes from one memfd into
 * another, past the caches, by the language side. */
void copy_bulk(struct side *x, unsigned round);

/* am.c: the yardstick that is made of UCX. */
void am_open(struct side *x);
void am_ping(struct side *x, unsigned i, uint64_t *out);
void am_close(void);

/* world.c: daemons and engines; false: something went wrong. */
bool run_all(struct shared *s);
/* Removes opt.dir and what run_all put there. */
void remove_dir(void);
/* table.c */
void print_all(struct shared *s);

#endif
