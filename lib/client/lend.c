/* lend.c - pools of encoders on this host that the language engine reads where
 * they are (RULES 6.7).
 *
 * langd names such an encoder in LENDER. The handle connects to it, says MAP,
 * maps each pool that it is offered, read-only, and says MAPPED to langd, which
 * then may show rows in them. Before that every page is mapped, so that no read
 * of rows faults: one slice in each step that has no event to hand out.
 * Unmapping is done in slices, too.
 *
 * Invariants. A lender ends when its connection to the encoder ends (cut), or
 * when the connection to langd ends on which its LENDER came. BYE tells the
 * encoder that this handle reads none of its rows any more. The handle says BYE
 * when the lender has ended, every room with rows in the lender's maps is
 * released, and langd can show no other room there. After a cut langd still can
 * do so, for rooms that were requested before langd got MAPPED without pools.
 * If the connection is gone by then, a new one says MAP and BYE. An encoder
 * that refuses connections is dead, and its successor refuses that MAP.
 * Everything runs under the handle's lock, except the slices: `busy` marks the
 * map that a thread works on.
 *
 * Rejected: connecting again to be lent more rows. Only a fault ends a
 * connection between living programs, and then rows are copied. */
#include "client/client.h"

#include "base/fds.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define SLICE       (UINT64_C(16) << 20)
#define PACKETS_MAX 16
#define AGAIN_MS    250

enum { SEQ_MAP = 1, SEQ_BYE };

static bool is_over(const mmx *m, const struct client_lender *l)
{
    return l->cut || l->serial != m->serial || m->link != LINK_UP;
}

/* Returns the next map of a lender from index *i on, and moves *i behind it;
 * NULL: none. */
static struct client_map *next_map(
    mmx *m, const struct client_lender *l, uint32_t *i)
{
    while (*i < MAPS_MAX) {
        struct client_map *map = &m->maps[(*i)++];

        if (map->used && map->lender == 1 + (l - m->lenders))
            return map;
    }
    return NULL;
}

/* the encoder's socket */

static void cut(mmx *m, struct client_lender *l)
{
    client_hang(m, &l->sock);
    l->cut = true;
    l->bye = false;
    l->due = client_now() + AGAIN_MS;
    m->lend_due = true;
    /* A lender that has not answered MAP knows nothing of this process. */
    l->done |= !l->mapped;
}

static void say(struct client_lender *l, bool map, bool bye)
{
    uint8_t bytes[512];
    struct writer w = writer_of(bytes, sizeof bytes);
    struct local_msg msg = {.type = LOCAL_MAP,
        .seq = SEQ_MAP,
        .map = {.token = l->token,
            .epoch = l->epoch,
            .name = span_str(l->name),
            .parting = map && bye}};
    bool fits = !map || local_put(&w, &msg);

    msg = (struct local_msg){.type = LOCAL_BYE, .seq = SEQ_BYE};
    fits = fits && (!bye || local_put(&w, &msg));
    assert(fits);
    l->bye = bye;
    /* If this fails the connection has ended, which a receive will show. */
    (void)send(l->sock, bytes, w.len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* True if the file has all its pages and a sealed size, so that this process
 * can rely on the memory and is not told of more than there is. */
static bool is_whole(int fd, uint64_t bytes)
{
    struct stat st;

    return client_sealed(fd, bytes) && fstat(fd, &st) == 0 &&
           (uint64_t)st.st_blocks >= (bytes + 511) / 512;
}

/* True if the socket is served by root, or by the user who serves langd's. */
static bool is_trusted(const mmx *m, int sock)
{
    struct ucred who, langd;
    socklen_t a = sizeof who, b = sizeof langd;

    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &a) == 0 &&
           getsockopt(m->sock, SOL_SOCKET, SO_PEERCRED, &langd, &b) == 0 &&
           (who.uid == 0 || who.uid == langd.uid);
}

/* Connects and sends MAP, with or without BYE, if it is time. */
static void begin(mmx *m, struct client_lender *l, bool bye)
{
    if (client_now() < l->due)
        return;
    l->sock = client_dial(m, l->path);
    if (l->sock >= 0 && !bye && !is_trusted(m, l->sock)) {
        client_hang(m, &l->sock);
        l->done = m->lend_due = true;
    } else if (l->sock >= 0)
        say(l, true, bye);
    else if (errno == EAGAIN || errno == EMFILE || errno == ENFILE)
        l->due = client_now() + AGAIN_MS;
    else
        l->done = m->lend_due = true;
}

static void answered(
    struct client_lender *l, uint32_t seq, const struct local_answer *a)
{
    if (seq == SEQ_MAP && !a->err)
        l->mapped = true;
    else if (seq == SEQ_BYE && !a->err)
        l->done = true;
    else if (a->err && err_advice((enum err)a->err) != ADVICE_RETRY)
        l->done = true; /* another run of the encoder answers */
}

static bool has_map(mmx *m, const struct client_lender *l, uint16_t pool)
{
    const struct client_map *map;
    uint32_t i = 0;

    while ((map = next_map(m, l, &i)) != NULL)
        if (map->number % LENDER_POOLS == pool)
            return true;
    return false;
}

/* Maps a pool that the lender offers, unless it has no memory that this process
 * could rely on. */
static void take_pool(mmx *m, const struct client_lender *l,
    const struct local_pool_info *n, int *fd)
{
    struct client_reply r = {.fd = *fd};
    struct client_map *map = m->maps;

    client_take_pool(&r, n);
    while (map < m->maps + MAPS_MAX && map->used)
        map++;
    if (r.err || n->pool >= LENDER_POOLS || map == m->maps + MAPS_MAX ||
        (r.share[0] && strcmp(r.share, "memfd") != 0) ||
        !is_whole(*fd, r.pool.bytes) || has_map(m, l, n->pool))
        return;
    r.pool.writable = 0;
    if (!m->said && client_map_pool(m, &r) != 0)
        return;
    r.pool.id = (int)(map - m->maps);
    r.number = (uint16_t)(l->number * LENDER_POOLS + n->pool);
    *map = (struct client_map){.used = true,
        .number = r.number,
        .serial = l->serial,
        .pool = r.pool,
        .lender = (uint8_t)(1 + (l - m->lenders))};
    if (m->said) {
        client_offer(m, 0, &r, r.pool.id);
        *fd = -1;
    }
}

static void packet(mmx *m, struct client_lender *l, size_t len, int *fd)
{
    struct reader r = reader_of(m->in, len);
    struct local_msg msg;
    enum err e;

    while ((e = local_get(&r, &msg)) != ERR_NOT_READY)
        if (e == OK && msg.type == LOCAL_ANSWER)
            answered(l, msg.seq, &msg.answer);
        else if (e == OK && msg.type == LOCAL_POOL_INFO && !is_over(m, l))
            take_pool(m, l, &msg.pool_info, fd);
}

static void receive(mmx *m, struct client_lender *l)
{
    struct iovec in = {m->in, sizeof m->in};

    for (unsigned i = 0; i < PACKETS_MAX && l->sock >= 0; i++) {
        bool truncated;
        int fd;
        ssize_t n = fds_receive(l->sock, in, MSG_DONTWAIT, &fd, 1, &truncated);

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0 && errno == ECONNRESET)
            continue; /* this error is reported before packets that were already
                         received */
        if (n <= 0)
            cut(m, l);
        else
            packet(m, l, (size_t)n, &fd);
        if (fd >= 0)
            close(fd);
    }
}

static void receive_all(mmx *m)
{
    struct pollfd p[LENDERS_MAX];
    bool any = false;

    for (uint32_t i = 0; i < LENDERS_MAX; i++) {
        p[i] = (struct pollfd){
            .fd = m->lenders[i].number ? m->lenders[i].sock : -1,
            .events = POLLIN};
        any |= p[i].fd >= 0;
    }
    if (!any || poll(p, LENDERS_MAX, 0) <= 0)
        return;
    for (uint32_t i = 0; i < LENDERS_MAX; i++)
        if (p[i].revents)
            receive(m, &m->lenders[i]);
}

/* maps */

/* Maps the next slice of a pool, or unmaps the last one. Runs the callback when
 * all is mapped, and before the first slice is unmapped. The lock is not held
 * meanwhile. */
static void work(mmx *m, struct client_map *map)
{
    struct mmx_pool *p = &map->pool;
    bool going = map->going;
    uint64_t from = going ? (p->bytes - 1) / SLICE * SLICE : map->filled;
    uint64_t n = min_u64(p->bytes - from, SLICE);
    bool last = from + n == p->bytes, tell = going ? map->told : last;
    uint8_t *base = p->base;
    mmx_map_fn notify = tell ? m->on_map : NULL;
    void *ud = m->on_map_ud;

    assert(!map->busy && map->lender && p->gpu < 0 && n > 0);
    map->busy = true;
    map->told = !going && last;
    client_unlock(m);
    if (going) {
        if (notify)
            notify(ud, p, 0);
        if (munmap(base + from, n) != 0) { /* of larger pages */
            (void)munmap(base, p->bytes);
            from = 0;
        }
    } else {
        /* If this fails each page is mapped when a row is read there. */
        (void)madvise(base + from, n, MADV_POPULATE_READ);
        if (notify)
            notify(ud, p, 1);
    }
    pthread_mutex_lock(&m->lock);
    map->busy = false;
    map->filled = from + n;
    if (going)
        p->bytes = from;
    map->used = p->bytes > 0;
    m->lend_due = true;
}

/* Maps or unmaps the next piece of one map. Does nothing while another thread
 * does so, for any map. */
static void work_on(mmx *m)
{
    struct client_map *next = NULL;

    for (uint32_t i = 0; i < MAPS_MAX; i++) {
        struct client_map *map = &m->maps[i];

        if (map->busy)
            return;
        if (!next && !m->said && map->used && map->lender &&
            (map->going || map->filled < map->pool.bytes))
            next = map;
    }
    if (next)
        work(m, next);
}

/* lenders */

/* Sends MAPPED if the mapped pools differ from those that langd knows. */
static void say_mapped(mmx *m, struct client_lender *l)
{
    struct local_msg msg = {
        .type = LOCAL_MAPPED, .mapped = {.lender = l->number}};
    const struct client_map *map;
    uint32_t i = 0;

    while (!l->cut && (map = next_map(m, l, &i)) != NULL)
        if (map->told && !map->busy)
            msg.mapped.pools |= (uint16_t)(1u << map->number % LENDER_POOLS);
    if ((msg.mapped.pools == l->said && (l->heard || !l->done)) ||
        client_ask(m, &msg, 0, NONE, 0, NULL) != 0)
        return;
    l->said = msg.mapped.pools;
    l->heard = true;
    l->last = m->seq;
    m->lend_due = true;
}

/* True if a room shows rows of the lender, or may do so later. */
static bool is_used(const mmx *m, const struct client_lender *l)
{
    bool known = l->serial == m->serial && m->link == LINK_UP;

    if (known && l->said)
        return true; /* langd counts on these pools until the next MAPPED */
    for (uint32_t i = 0; i < m->cells; i++) {
        const struct client_room *r = &m->rooms[i];

        if (r->tag == 0)
            continue;
        if (r->map != MAP_NONE &&
            m->maps[r->map].lender == 1 + (l - m->lenders))
            return true;
        if (known && client_room_open(m, r) &&
            (int32_t)(r->asked - l->last) < 0)
            return true;
    }
    return false;
}

/* Has a map go that no room uses. A binding is told once, and says when it has
 * unmapped it. */
static void let_go(mmx *m, struct client_map *map)
{
    if (m->said && !map->going)
        client_tell(m, (struct mmx_answer){.text = "",
                           .pool = &map->pool,
                           .pool_number = map->number,
                           .fd = -1,
                           .gone = 1});
    assert(map->lender && (m->said || !map->gone));
    map->going = true;
    map->used = !map->gone;
}

/* Ends the connection and the maps of a lender whose rows no room uses. */
static void leave(mmx *m, struct client_lender *l)
{
    struct client_map *map;
    uint32_t i = 0, left = 0;

    for (; (map = next_map(m, l, &i)) != NULL; left += map->used)
        let_go(m, map);
    if (m->said && left)
        return; /* its reader may still read there */
    if (l->sock < 0 && !l->mapped)
        l->done = true;
    if (l->done && l->sock >= 0)
        client_hang(m, &l->sock);
    else if (!l->done && l->sock < 0)
        begin(m, l, true);
    else if (!l->done && !l->bye)
        say(l, false, true);
    if (l->done && l->sock < 0 && left == 0)
        l->number = 0;
}

static void serve(mmx *m, struct client_lender *l, bool look)
{
    if (l->serial == m->serial && m->link == LINK_UP)
        say_mapped(m, l);
    if (look && !l->parts && (l->done || is_over(m, l)))
        l->parts = !is_used(m, l);
    if (l->parts)
        leave(m, l);
    else if (l->sock < 0 && !l->done && !is_over(m, l))
        begin(m, l, false);
    m->lend_waits |= !l->parts && is_over(m, l);
}

void client_lend(mmx *m, bool idle)
{
    uint64_t next = TIME_NEVER;
    bool look;

    receive_all(m);
    look = m->lend_due;
    m->lend_due = m->lend_waits = false;
    for (struct client_lender *l = m->lenders; l < m->lenders + LENDERS_MAX;
         l++) {
        if (l->number)
            serve(m, l, look);
        if (l->number && l->sock < 0 && !l->done &&
            (l->parts || !is_over(m, l)))
            next = min_u64(next, l->due);
    }
    if (m->link == LINK_UP && next < m->due) {
        m->due = next;
        client_arm(m);
    }
    if (idle)
        work_on(m);
}

int mmx_lend(mmx *m, int pool, int mapped)
{
    struct client_map *map;
    int err = client_lock(m);

    if (err)
        return err;
    map = pool >= 0 && pool < MAPS_MAX ? &m->maps[pool] : NULL;
    if (map && map->lender) {
        map->gone |= mapped < 0;
        map->told = mapped > 0;
        m->lend_due = true;
        if (m->link != LINK_UP) /* else a step does it: see mmx_sent */
            client_lend(m, false);
    } else
        err = -MMX_E_MALFORMED;
    client_unlock(m);
    return err;
}

void client_lend_end(mmx *m, uint64_t end)
{
    for (struct client_lender *l = m->lenders; l < m->lenders + LENDERS_MAX;
         l++) {
        if (!l->number || l->done || l->bye || (l->sock < 0 && !l->mapped))
            continue;
        l->due = 0;
        if (l->sock < 0)
            begin(m, l, true);
        else
            say(l, false, true);
    }
    for (struct client_lender *l = m->lenders; l < m->lenders + LENDERS_MAX;
         l++)
        while (l->number && l->sock >= 0 && !l->done && client_left(end)) {
            client_poll(l->sock, client_left(end));
            receive(m, l);
        }
}
