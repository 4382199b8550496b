/* tickets.c - sequence ids: engines that ask for one, wait, hold it, ask again,
 * release it late or never, or lose it with a room or a lease. An id that an
 * engine was given, and has not lost, is its own alone. */
#include "test/sim/sim.h"

#include "base/check.h"
#include "core/lang/ticket.h"

#define IDS 3

enum ask_state { ASK_NEW, ASK_SPACE, ASK_READY, ASK_WAITS, ASK_HELD, ASK_OVER };

struct ask {
    struct handle h; /* gets the answers; has no cell */
    struct daemon *d;
    struct econn *c;
    uint32_t session, space, seq, generation, wait_ms, hold_ms;
    uint8_t state;
    bool may_lose, silent, releasing;
    uint64_t until_ns;
    char request[16];
    struct ask *next;
};

static struct ask *asks;
static uint32_t asks_count;

/* True if the engine believes that it holds the id, and nothing can have taken
 * it. */
static bool has(const struct ask *k)
{
    return k->state == ASK_HELD && !k->may_lose && !k->releasing &&
           econn_usable(k->c);
}

static void held(struct ask *k, uint32_t seq, uint32_t generation)
{
    HOLDS(seq < IDS, "ids are in range", "id %u of %u", seq, IDS);
    HOLDS(!has(k) || (k->seq == seq && k->generation == generation),
        "asking again gives the same", "%s: id %u.%u, before %u.%u", k->request,
        seq, generation, k->seq, k->generation);
    for (const struct ask *o = asks; o; o = o->next)
        HOLDS(o == k || !has(o) || o->d != k->d || o->session != k->session ||
                  o->seq != seq,
            "an id has one holder", "%s: id %u of %s, which %s has",
            k->d->conf->name, seq, k->request, o->request);
    k->state = ASK_HELD;
    k->seq = seq;
    k->generation = generation;
}

void ask_answer(struct handle *h, uint32_t type, const struct local_answer *a)
{
    struct ask *k = h->ask;

    if (k->state == ASK_OVER)
        return;
    if (type == LOCAL_TICKET_RELEASE || a->err) {
        k->state = ASK_OVER;
    } else if (type == LOCAL_SPACE) {
        k->space = a->a;
        k->state = ASK_READY;
    } else if (type == LOCAL_TICKET && a->a != NONE) {
        held(k, a->a, a->b);
    }
}

void ask_event(struct econn *c, const struct local_ticket_event *e)
{
    for (struct ask *k = asks; k; k = k->next) {
        if (k->c != c || !span_eq(e->request, span_str(k->request)) ||
            k->state == ASK_OVER)
            continue;
        if (!e->state) {
            HOLDS(k->may_lose || k->state != ASK_HELD || k->releasing,
                "what is held stays", "%s: %s", k->request,
                err_name((enum err)e->reason));
            k->state = ASK_OVER;
        } else {
            held(k, e->seq, e->generation);
        }
    }
}

/* the script */

static void open_space(struct ask *k)
{
    struct local_msg m = {.type = LOCAL_SPACE};

    k->c = session_conn(k->d, k->session, 0);
    if (!k->c)
        return;
    m.space.n_seq_max = IDS;
    m.space.name = span_str("ids");
    k->state = ASK_SPACE;
    econn_send(k->c, &m, &k->h);
}

static void ask_ticket(struct ask *k)
{
    struct local_msg m = {.type = LOCAL_TICKET};
    uint32_t cell = (uint32_t)between(0, CELLS - 1);
    const struct handle *room = k->c->handles[cell];

    m.ticket.space = k->space;
    m.ticket.wait_ms = k->wait_ms;
    m.ticket.hold_ms = k->hold_ms;
    m.ticket.cell = NONE;
    if (k->state == ASK_READY && room && room->cons && room->owner &&
        chance(300)) {
        m.ticket.cell = room->cell;
        m.ticket.tag = room->tag;
        k->may_lose = true;
    }
    m.ticket.request = span_str(k->request);
    if (k->state == ASK_READY)
        k->state = ASK_WAITS;
    econn_send(k->c, &m, &k->h);
}

static void release(struct ask *k)
{
    struct local_msg m = {.type = LOCAL_TICKET_RELEASE};

    k->releasing = true;
    m.ticket_release.space = k->space;
    m.ticket_release.generation =
        k->state == ASK_HELD && chance(700) ? k->generation : NONE;
    m.ticket_release.request = span_str(k->request);
    econn_send(k->c, &m, &k->h);
}

static void ask_tick(void *p, uint64_t life, uint64_t b)
{
    struct ask *k = p;

    if (!k->d->alive || k->d->life != life || (k->c && !econn_usable(k->c)))
        k->state = ASK_OVER;
    if (k->state == ASK_OVER)
        return;
    if (k->state == ASK_NEW)
        open_space(k);
    else if (k->state == ASK_READY)
        ask_ticket(k);
    else if (!k->releasing && W.now_ns > k->until_ns &&
             (!k->silent || W.healing))
        release(k);
    else if (!k->releasing && k->state >= ASK_WAITS && chance(50))
        ask_ticket(k);
    at(W.now_ns + between(1, 20) * MS, ask_tick, k, life, 0);
}

void ask_start(struct daemon *d)
{
    struct ask *k;

    if (!d->alive)
        return;
    k = must_alloc(1, sizeof(*k));
    k->h.ask = k;
    k->d = d;
    k->session = 2 + (uint32_t)between(0, 1);
    k->wait_ms = chance(500) ? 0 : (uint32_t)between(1, 3000);
    k->hold_ms = chance(200) ? (uint32_t)between(1, 500) : 0;
    k->may_lose = k->hold_ms > 0;
    k->silent = chance(W.is.silent);
    k->until_ns = W.now_ns + between(0, 400) * MS;
    snprintf(k->request, sizeof(k->request), "r%u", ++asks_count);
    k->next = asks;
    asks = k;
    at(W.now_ns, ask_tick, k, d->life, 0);
}

bool asks_over(void)
{
    for (const struct ask *k = asks; k; k = k->next)
        if (k->state != ASK_OVER)
            return false;
    return true;
}

void tickets_watch(const struct daemon *d, const void *tickets)
{
    static struct {
        uint32_t life;
        uint64_t *since; /* by ticket: when it began to wait; 0: it does not */
    } of[DAEMONS_MAX];
    static uint64_t count;
    const struct tickets *t = tickets;
    uint64_t *since = of[d->index].since;

    if (!since || of[d->index].life != d->life)
        of[d->index].since = since =
            must_alloc(t->tickets_max, sizeof(uint64_t));
    of[d->index].life = d->life;
    for (uint32_t i = 0; W.is.tickets && i < t->tickets_max; i++)
        for (uint32_t k = 0; k < t->tickets_max && since[i] &&
                             t->tickets[i].used && t->tickets[i].held;
             k++)
            /* A ticket whose time ended in this step does not wait any more. */
            HOLDS(!list_linked(&t->tickets[k].in_space) ||
                      !t->tickets[k].used || t->tickets[k].held ||
                      t->tickets[k].space != t->tickets[i].space ||
                      since[k] == 0 || since[k] > since[i],
                "who waits first gets the id first", "%s: %s before %s",
                d->conf->name, t->tickets[i].request, t->tickets[k].request);
    for (uint32_t i = 0; W.is.tickets && i < t->tickets_max; i++) {
        bool waits = t->tickets[i].used && !t->tickets[i].held &&
                     list_linked(&t->tickets[i].in_space);

        since[i] = !waits ? 0 : since[i] ? since[i] : ++count;
    }
}
