/* shard.c - one transfer worker: its thread, its rings, its turns.
 *
 * Invariants:
 *  - the loop's thread touches the rings, the wake and the counters at any
 *    time; all else belongs to the owner: the shard's thread, or the loop in
 *    shard_work. The owner passes ownership on as its last access;
 *  - orders are carried out in order; notes reach the loop in order and none
 *    is lost: while their ring is half full the carrier rests;
 *  - a turn drains orders, carrier and messages to send; the loop is woken once
 *    per turn; the owner sleeps only if `due` is false after it has announced
 *    its sleep. A turn may leave work, since what the carrier completes makes
 *    room for work that came earlier in the turn.
 *
 * Rejected: a shared queue that any worker serves. Rows of one room would meet
 * in one lock, and a landing could overtake the close of its room. Rejected: no
 * thread at all if one shard is configured. A large room would delay all
 * messages of engines and peers. */
#include "node/shard/shard_in.h"

#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#define TURNS_MAX    16 /* calls of progress in a turn */
#define TICK_BUSY_MS 100
#define TICK_IDLE_MS (SHARD_SLEEP_NS / NS_PER_MS)
/* The loop hands a shard to its thread if more than INLINE_BYTES are sent or
 * landed in a turn, or more than INLINE_RATE in LINGER_MS. The thread hands it
 * back after LINGER_MS with fewer. */
#define INLINE_BYTES (512u << 10)
#define INLINE_RATE  (4u << 20)
#define LINGER_MS    5

/* Runs shard_orders(), outside of the carriers' callbacks. */
static unsigned orders_and_all(struct shard *s)
{
    unsigned n = shard_orders(s);

    if (s->role->settle)
        s->role->settle(s);
    return n;
}

/* carriers */

/* Notes or orders of small rooms must not wait until a large one has nothing
 * more to move. */
static unsigned progress(struct shard *s, uint32_t turns)
{
    unsigned n = 0, k = 1;

    for (uint32_t i = 0; i < turns && k > 0 && !notes_high(s); i++) {
        k = carry_progress(s);
        n += k;
        if (s->noted || !ring_empty(&s->in))
            break;
    }
    if (s->role->progressed)
        s->role->progressed(s, k == 0);
    return n;
}

static void tick(struct shard *s)
{
    uint64_t every = s->conf.data.stall_ms * NS_PER_MS / 4;

    if (s->role->active(s) == 0) /* addresses may change even then */
        every = max_u64(every, NS_PER_S);
    if (s->now_ns - s->ticked_ns < every)
        return;
    s->ticked_ns = s->now_ns;
    carry_tick(s);
}

/* the thread */

static int sleep_ms(struct shard *s, bool high)
{
    uint32_t busy = min_u32(TICK_BUSY_MS, s->conf.data.stall_ms / 4);

    if (high || (s->stage && stage_due(s->stage)))
        return 1; /* no descriptor shows changes of these */
    if (s->role->active(s) > 0)
        return (int)max_u32(busy, 1);
    return s->conf.may_inline ? LINGER_MS : TICK_IDLE_MS;
}

/* True if the shard has more work than the loop may do itself. */
static bool above_inline(struct shard *s)
{
    return s->moved > INLINE_BYTES || s->recent > INLINE_RATE ||
           notes_high(s) || s->role->active(s) > 0;
}

/* Gives the shard to the other thread. This must be the last access to the
 * shard. */
static void pass_to(struct shard *s, enum owner to)
{
    atomic_store_explicit(&s->owner, (uint8_t)to, memory_order_release);
}

/* Makes the loop the owner. The caller must not touch the shard after that. */
static void pass_to_loop(struct shard *s)
{
    struct wake *loop = s->conf.wake;

    CHECK(!shard_inline(s), "the loop owns shard %u already", s->conf.index);
    pass_to(s, OWNER_LOOP);
    wake_up(loop);
}

/* Makes the thread the owner and wakes it. */
static void pass_to_thread(struct shard *s)
{
    CHECK(shard_inline(s), "shard %u has its thread already", s->conf.index);
    s->busy_ns = s->now_ns;
    s->handed = true;
    pass_to(s, OWNER_THREAD);
    wake_up(&s->wake);
}

/* True if a turn would do something that no descriptor shows. Not called while
 * many notes wait: then only the loop, which reads them, can change
 * anything. */
static bool due(struct shard *s)
{
    return !ring_empty(&s->in) || s->role->due(s) || carry_due(s);
}

/* Sleeps until the owner may have work; while the loop owns the shard, until it
 * may be the thread's again. */
static void sleep_turn(struct shard *s)
{
    struct pollfd fds[2] = {
        {.fd = s->wake.fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    /* Is asked only once, since the loop may read notes at any time and then
     * wakes no shard. */
    bool high, others;

    wake_sleep(&s->wake);
    others = shard_inline(s);
    high = !others && notes_high(s);
    if (!atomic_load(&s->stop) && (others || high || !due(s))) {
        if (!others && !high)
            fds[1].fd = s->fd;
        poll(fds, ARRAY_LEN(fds), others ? -1 : sleep_ms(s, high));
        stat_add(&s->stats.shard_wakeups, 1);
    }
    if (fds[0].revents)
        wake_clear(&s->wake);
    else
        wake_awake(&s->wake);
}

/* Does one turn without the sleep; returns the number of things done. in_loop:
 * the loop runs it, and only for a short time. */
static unsigned work(struct shard *s, bool in_loop)
{
    unsigned n;

    CHECK(shard_inline(s) == in_loop,
        "shard %u is run by a thread that does not "
        "own it",
        s->conf.index);
    atomic_store_explicit(&s->stats.turns, ++s->turn, memory_order_relaxed);
    s->now_ns = clock_ns();
    if (s->now_ns - s->recent_ns > LINGER_MS * NS_PER_MS) {
        s->recent_ns = s->now_ns;
        s->recent = 0;
    }
    s->moved = 0;
    n = orders_and_all(s);
    if (s->role->before && !notes_high(s))
        n += s->role->before(s); /* before a carrier asks the kernel */
    if (in_loop && s->moved > INLINE_BYTES)
        return n; /* above_inline() then hands the shard to its thread */
    n += progress(s, in_loop ? 1 : TURNS_MAX);
    tick(s);
    if (s->role->settle) /* arrived() runs orders, too */
        s->role->settle(s);
    n += s->role->after(s, in_loop);
    n += gpu_turn(s);
    return n;
}

static void turn(struct shard *s)
{
    unsigned n = work(s, false);

    notes_tell(s);
    s->recent += s->moved;
    if (above_inline(s))
        s->busy_ns = s->now_ns;
    if (s->conf.may_inline && s->now_ns - s->busy_ns > LINGER_MS * NS_PER_MS &&
        !due(s)) {
        pass_to_loop(s);
        return;
    }
    if (n == 0)
        sleep_turn(s);
}

static void pin(const struct shard *s)
{
    cpu_set_t set;

    if (s->conf.cpu < 0)
        return;
    CPU_ZERO(&set);
    if (s->conf.cpu < CPU_SETSIZE)
        CPU_SET((size_t)s->conf.cpu, &set);
    if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set) != 0)
        log_warn("shard %u cannot run on core %d", s->conf.index, s->conf.cpu);
}

static void *thread(void *ud)
{
    struct shard *s = ud;

    pin(s);
    s->result = carry_open(s);
    for (uint32_t i = 0; s->result == OK && i < s->conf.pools_count; i++)
        orders_pool(s, i);
    if (s->result == OK && s->conf.may_inline && !carry_due(s))
        pass_to(s, OWNER_LOOP);
    sem_post(&s->started);
    while (s->result == OK && !atomic_load(&s->stop))
        if (shard_inline(s))
            sleep_turn(s);
        else
            turn(s);
    carry_close(s);
    return NULL;
}

/* start and stop, by the loop */

static enum err memory_take(struct shard *s)
{
    struct slab slab = {0};

    s->role->carve(s, &slab);
    slab = (struct slab){.cap = slab.used};
    s->memory = mmap(NULL, slab.cap, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->memory == MAP_FAILED)
        s->memory = NULL;
    s->memory_bytes = slab.cap;
    if (!s->memory)
        return ERR_NO_BLOCKS;
    slab.p = s->memory;
    s->role->carve(s, &slab);
    CHECK(!slab.failed, "shard needs more than the %zu bytes it counted",
        slab.cap);
    return OK;
}

static enum err thread_start(struct shard *s)
{
    sigset_t all, old;
    int failed;

    guard_install();
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* of a copy: guard.h */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    failed = pthread_create(&s->thread, NULL, thread, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed) {
        log_error("shard %u: no thread: %d", s->conf.index, failed);
        return ERR_INTERNAL;
    }
    s->running = true;
    while (sem_wait(&s->started) != 0)
        CHECK(errno == EINTR, "sem_wait failed: %d", errno);
    return s->result;
}

static enum err start(struct shard *s)
{
    enum err e = wake_init(&s->wake);

    if (e == OK)
        e = ring_init(&s->in, s->conf.orders, sizeof(struct order));
    if (e == OK)
        e = ring_init(&s->out, 2 * s->conf.slots + s->conf.orders,
            sizeof(struct data_note));
    if (e == OK)
        e = memory_take(s);
    return e == OK ? thread_start(s) : e;
}

enum err shard_start(struct shard **out, const struct shard_conf *c)
{
    static const struct shard_role *const roles[] = {
        [ROLE_ENCODED] = &shard_sends, [ROLE_LANGD] = &shard_lands};
    struct shard *s = aligned_alloc(_Alignof(struct shard), sizeof(*s));
    enum err e;

    CHECK(c->pools_count <= SHARD_POOLS_MAX && c->index < c->count &&
              c->slots > 0 && c->data.segment_bytes > 0,
        "%u pools, shard %u of %u, %u slots", c->pools_count, c->index,
        c->count, c->slots);
    if (!s)
        return ERR_NO_BLOCKS;
    memset(s, 0, sizeof(*s));
    s->conf = *c;
    s->conf.data.messages_max = SEND_MESSAGES_MAX;
    s->conf.data.counts = &s->stats.data;
    s->role = roles[c->role];
    s->role->limits(&s->conf);
    s->wake.fd = s->fd = -1;
    sem_init(&s->started, 0, 0);
    e = start(s);
    if (e != OK) {
        shard_stop(&s);
        return e;
    }
    *out = s;
    return OK;
}

void shard_stop(struct shard **sp)
{
    struct shard *s = *sp;

    *sp = NULL;
    if (!s)
        return;
    if (s->running) {
        atomic_store(&s->stop, true);
        wake_up(&s->wake);
        pthread_join(s->thread, NULL);
    }
    orders_free(s);
    carry_free(s);
    stage_free(&s->stage); /* ends copies that read what the role has */
    s->role->fini(s);
    ring_fini(&s->in);
    ring_fini(&s->out);
    wake_fini(&s->wake);
    sem_destroy(&s->started);
    if (s->memory)
        munmap(s->memory, s->memory_bytes);
    free(s);
}

/* the loop's calls */

void shard_flush(struct shard *s)
{
    if (!s->pushed)
        return;
    s->pushed = false;
    if (!shard_inline(s)) {
        wake_up(&s->wake);
    } else if (s->role->orders_move_rows) {
        shard_work(s);
    } else { /* without rows to send: orders do not move rows here */
        (void)orders_and_all(s);
        s->noted = false;
    }
}

/* the shard, run by the loop */

bool shard_may_inline(const struct shard *s)
{
    return s->conf.may_inline;
}

int shard_fd(const struct shard *s)
{
    CHECK(s->fd >= 0, "shard %u has no carrier", s->conf.index);
    return s->fd;
}

void shard_work(struct shard *s)
{
    if (!shard_inline(s))
        return;
    (void)work(s, true);
    s->noted = false; /* the loop reads notes without a wakeup */
    s->recent += s->moved;
    if (above_inline(s))
        pass_to_thread(s);
}

bool shard_handed(struct shard *s)
{
    bool handed = s->handed;

    s->handed = false;
    return handed;
}

bool shard_busy(struct shard *s)
{
    return shard_inline(s) && !notes_high(s) && due(s);
}

uint64_t shard_silent_ns(struct shard *s, uint64_t now_ns)
{
    uint64_t turns =
        atomic_load_explicit(&s->stats.turns, memory_order_relaxed);

    if (shard_inline(s) || turns != s->turns_seen || s->turned_ns == 0) {
        s->turns_seen = turns;
        s->turned_ns = now_ns;
    }
    return now_ns - s->turned_ns;
}

bool shard_note(struct shard *s, struct data_note *n)
{
    return ring_pop(&s->out, n);
}

const struct shard_stats *shard_stats(const struct shard *s)
{
    return &s->stats;
}

void shard_say(struct shard *s, uint32_t peer, enum shard_words what, char *out,
    size_t size)
{
    CHECK(
        peer < s->conf.peers && size > 0, "peer %u of %u", peer, s->conf.peers);
    out[0] = 0;
    if (s->role->say)
        s->role->say(s, peer, what, out, size);
}
