/* node_step.c - gives the brain an event and carries out what it asks for:
 * first what reaches the shards, then the rest, each in the order in which it
 * asked.
 *
 * Invariants: carrying out never steps the brain; commands reach each shard in
 * order (shard_order.c), and nothing is lost: no step is taken while a ring
 * might not hold its commands. The commands of a step are in the rings before a
 * message of that step leaves, so that rows which the message asks for find
 * their grant. Owned by the loop's thread.
 *
 * Rejected: to wait for a shard's answer to each command before a message
 * leaves. A shard empties its ring before it looks at what arrived, which is
 * enough. Rejected: messages that wait in the loop for a shard that is behind.
 * Each would need a place, too. */
#include "node/loop/node_in.h"

#include "base/check.h"
#include "base/log.h"
#include "core/share.h"

#include <signal.h>
#include <string.h>

#define ENDED_PER_S    100
#define WARNINGS_PER_S 10
/* Number of steps for which the clock is read once. */
#define STEPS_A_LOOK 16

/* The first call makes the threads, which inherit the mask. */
void node_work(
    struct node *n, uv_work_t *w, uv_work_cb work, uv_after_work_cb after)
{
    sigset_t all, old;

    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    uv_queue_work(&n->loop, w, work, after);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* to the shards */

void node_order(struct node *n, const struct order *o)
{
    n->places -= n->places > 0;
    for (uint32_t k = 0; k < n->shards_count; k++)
        shard_order(n->shards[k], o);
}

bool node_congested(struct node *n)
{
    if (n->places >= n->step_orders)
        return false;
    n->places = UINT32_MAX;
    for (uint32_t k = 0; k < n->shards_count; k++)
        n->places = min_u32(n->places, shard_space(n->shards[k]));
    return n->places < n->step_orders;
}

static void order_addresses(struct node *n, const struct action *a)
{
    struct order o = {.type = ORDER_PEER,
        .peer = {n->out.bytes.p + a->at, a->index, a->len, (uint32_t)a->word,
            (uint8_t)(a->word >> 32), (uint8_t)(a->word >> 40)}};

    node_order(n, &o);
}

static void order_key(struct node *n, const struct action *a)
{
    struct order o = {
        .type = ORDER_KEY, .key = {.peer = a->index, .len = a->len}};

    CHECK(a->len <= sizeof(o.key.bytes), "a key of %u bytes", a->len);
    memcpy(o.key.bytes, n->out.bytes.p + a->at, a->len);
    node_order(n, &o);
}

/* to engines */

static void refuse_hello(struct node *n, uint32_t conn, uint32_t seq)
{
    struct local_msg m = {.type = LOCAL_ANSWER, .seq = seq};
    uint8_t frame[256];
    struct writer w = writer_of(frame, sizeof(frame));

    m.answer.err = ERR_BUSY;
    m.answer.text = span_str("no memory or descriptor for the status cells");
    if (local_put(&w, &m))
        local_send(n->local, conn, span_of(w.p, w.len), -1);
    local_end(n->local, conn);
}

/* Makes the cells that a WELCOME promises; without them it is refused. */
static bool make_cells(struct node *n, const struct action *a, int *fd)
{
    CHECK(a->index > 0, "a WELCOME to connection %u without cells", a->conn);
    n->conns[a->conn].greeted = true;
    if (local_cells(n->local, a->conn, a->index, fd) == OK)
        return true;
    refuse_hello(n, a->conn, (uint32_t)a->word);
    return false;
}

/* Sends a POOL with its descriptor: opened anew, which only a memfd can be. */
static void send_pool(struct node *n, const struct action *a, struct span frame)
{
    const struct mem *mem = &n->mems[a->index];

    CHECK(a->index < n->conf->pools_count, "pool %u of %u", a->index,
        n->conf->pools_count);
    if (mem->fd < 0 || strcmp(mem->share, "memfd") != 0)
        local_send(n->local, a->conn, frame, mem->fd);
    else
        local_send_opened(n->local, a->conn, frame, mem->fd, a->word != 0);
}

static void send_local(struct node *n, const struct action *a)
{
    struct span frame = span_of(n->out.bytes.p + a->at, a->len);
    int fd = -1;

    if (a->fd == FD_CELLS && !make_cells(n, a, &fd))
        return;
    if (a->fd == FD_POOL)
        send_pool(n, a, frame);
    else if (a->coalesce)
        local_coalesce(n->local, a->conn, frame);
    else
        local_send(n->local, a->conn, frame, fd);
}

/* ended rooms */

static uint64_t since_us(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns && to_ns > from_ns ? (to_ns - from_ns) / 1000 : 0;
}

/* Limits of lines per second: an engine can end thousands of rooms in one. */
static struct log_rate failed_rooms =
    LOG_RATE("rooms that failed", LOG_INFO, ENDED_PER_S);
static struct log_rate done_rooms =
    LOG_RATE("rooms that succeeded", LOG_DEBUG, ENDED_PER_S);
static struct log_rate warnings =
    LOG_RATE("warnings about engines and peers", LOG_WARN, WARNINGS_PER_S);

static void log_ended(struct node *n, uint64_t row)
{
    const struct ended *e = brain_ended(n->brain, row);
    const struct history *h;
    struct log_rate *rate;

    if (!e)
        return;
    h = &e->of;
    rate = e->state == ROOM_SUCCESS ? &done_rooms : &failed_rooms;
    log_rated(rate,
        "room ..%08x: %s%s%s%s%s, peer %s, generation %llx, rows %u, bytes "
        "%llu, served %u, failed %u, resumes %u, attempts %u; us: init %llu "
        "length %llu first %llu resume %llu end %llu%s%s",
        (uint32_t)e->room, /* too little of a drawn id to request the room */
        e->state == ROOM_SUCCESS ? "succeeded" : "failed",
        e->reason ? ", " : "", e->reason ? err_name(e->reason) : "",
        e->text[0] ? ": " : "", e->text, e->peer[0] ? e->peer : "none",
        (unsigned long long)h->generation,
        h->total == ROWS_UNKNOWN ? 0 : h->total, (unsigned long long)h->bytes,
        h->served, h->failed, h->resumes, h->attempts,
        (unsigned long long)since_us(h->opened_ns, h->init_ns),
        (unsigned long long)since_us(h->opened_ns, h->length_ns),
        (unsigned long long)since_us(h->opened_ns, h->first_ns),
        (unsigned long long)since_us(h->opened_ns, h->resumed_ns),
        (unsigned long long)since_us(h->opened_ns, h->done_ns),
        h->traceparent[0] ? "; traceparent " : "", h->traceparent);
}

/* all of them */

static void connect_link(struct node *n, const struct action *a)
{
    struct span address = span_of(n->out.bytes.p + a->at, a->len);
    struct span name = span_of(address.p + address.len, (size_t)a->word);

    CHECK(a->link < 2 * n->peers_count, "link %u", a->link);
    /* Other failures are retried. */
    if (links_connect(n->links, a->link, address, name) != OK)
        log_error("link %u: `%.*s` is not tcp://host:port", a->link,
            (int)address.len, (const char *)address.p);
}

/* Carries out an action that reaches the shards, and no other action. */
static void act_inside(struct node *n, const struct action *a)
{
    switch ((enum action_type)a->type) {
    case ACT_DATA:
        for (uint32_t k = 0; k < n->shards_count; k++)
            shard_command(n->shards[k], &a->cmd);
        return;
    case ACT_PEER_DATA:
        order_addresses(n, a);
        return;
    case ACT_PEER_KEY:
        order_key(n, a);
        return;
    case ACT_MAP:
        node_map(n, a->index, span_of(n->out.bytes.p + a->at, a->len), a->word);
        return;
    case ACT_UNMAP:
        node_unmap(n, a->index);
        return;
    case ACT_POOL_FIX:
        node_fix_pool(n, a->index);
        return;
    default:
        CHECK(false, "action %u", a->type);
    }
}

/* Carries out any other action: what engines, peers and the log get. */
static void act_outside(struct node *n, const struct action *a)
{
    switch ((enum action_type)a->type) {
    case ACT_LOCAL:
        send_local(n, a);
        return;
    case ACT_NOTIFY:
        CHECK(a->conn < n->conns_count, "connection %u", a->conn);
        if (!list_linked(&n->conns[a->conn].notified))
            list_push_tail(&n->notified, &n->conns[a->conn].notified);
        return;
    case ACT_CELL:
        local_cell(n->local, a->conn, a->index, a->word);
        return;
    case ACT_CONN_KNOWN:
        local_known(n->local, a->conn);
        return;
    case ACT_CONN_CLOSE:
        local_end(n->local, a->conn);
        return;
    case ACT_PEER:
        links_send(n->links, a->link, span_of(n->out.bytes.p + a->at, a->len),
            a->coalesce);
        return;
    case ACT_CONNECT:
        connect_link(n, a);
        return;
    case ACT_DISCONNECT:
        links_disconnect(n->links, a->link);
        return;
    case ACT_ENDED:
        log_ended(n, a->word);
        return;
    case ACT_WARN:
        log_rated(&warnings, "%.*s", (int)a->len,
            (const char *)n->out.bytes.p + a->at);
        return;
    default:
        CHECK(false, "action %u", a->type);
    }
}

uint64_t node_clock_ns(struct node *n)
{
    uint64_t now = uv_hrtime();

    if (now > n->now_ns)
        n->now_ns = now;
    return n->now_ns;
}

static void step(struct node *n, struct event *ev)
{
    ev->now_ns = n->steps++ % STEPS_A_LOOK ? n->now_ns : node_clock_ns(n);
    n->event = ev;
    (void)node_congested(n); /* looks at the rings if a look is due */
    n->out.cap = min_u32(OUT_ACTIONS, n->places);
    brain_step(n->brain, ev, &n->out);
    n->event = NULL;
    CHECK(!n->out.bytes.failed, "the list of actions did not fit: %u",
        n->out.count);
    n->places -= n->out.count;
    for (uint32_t i = 0; i < n->out.count; i++)
        if (n->out.actions[i].type >= ACT_INSIDE)
            act_inside(n, &n->out.actions[i]);
    for (uint32_t i = 0; i < n->out.count; i++)
        if (n->out.actions[i].type < ACT_INSIDE)
            act_outside(n, &n->out.actions[i]);
    n->out.count = 0;
    n->out.bytes.len = 0;
}

void node_more(struct node *n)
{
    while (brain_pending(n->brain) && !node_congested(n))
        step(n, &(struct event){.type = EV_MORE});
}

void node_event(struct node *n, struct event *ev)
{
    CHECK(n->out.count == 0, "a step inside another, event %u", ev->type);
    step(n, ev);
    node_more(n);
}
