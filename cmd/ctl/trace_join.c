/* trace_join.c - puts recordings of several daemons into one order: which
 * messages are the same, how far two clocks differ, what caused what. One
 * thread.
 *
 * A recorded time is when the daemon last read its clock. So a message was
 * received at the recorded time or a little later, but before the next
 * different time in that recording; and it was sent no earlier than recorded.
 * trace_clocks relies on nothing else.
 *
 * Rejected: clock times in messages. The recordings are enough. */
#include "trace.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* A send may be recorded up to this much after its landing: two hosts' clocks
 * are not aligned better. */
#define LANDED_SLACK_NS (10 * (int64_t)NS_PER_MS)

static bool is_sent(const struct happening *h)
{
    return h->message && h->kind == HAPPENED_SENT;
}

static bool is_got(const struct happening *h)
{
    return h->message && h->kind != HAPPENED_SENT;
}

/* Orders by room, message and number, so that equal messages are adjacent. */
static int by_message(const void *pa, const void *pb)
{
    const struct happening *a = *(struct happening *const *)pa;
    const struct happening *b = *(struct happening *const *)pb;

    if (a->room != b->room)
        return a->room < b->room ? -1 : 1;
    if (a->message != b->message)
        return a->message < b->message ? -1 : 1;
    return a->seq == b->seq ? 0 : a->seq < b->seq ? -1 : 1;
}

/* Orders by room, then as recorded. */
static int by_room(const void *pa, const void *pb)
{
    const struct happening *a = *(struct happening *const *)pa;
    const struct happening *b = *(struct happening *const *)pb;

    if (a->room != b->room)
        return a->room < b->room ? -1 : 1;
    return a->number == b->number ? 0 : a->number < b->number ? -1 : 1;
}

/* Collects from all sides what passes the test; NULL: no memory. */
static struct happening **gather(
    struct trace *t, bool (*fits)(const struct happening *), size_t *n)
{
    struct happening **out;
    size_t all = 1;

    for (uint32_t s = 0; s < t->sides_count; s++)
        all += t->sides[s].count;
    out = calloc(all, sizeof(struct happening *));
    *n = 0;
    for (uint32_t s = 0; out && s < t->sides_count; s++)
        for (size_t i = 0; i < t->sides[s].count; i++)
            if (fits(&t->sides[s].all[i]))
                out[(*n)++] = &t->sides[s].all[i];
    CHECK(!out || *n < all, "%zu of %zu happenings", *n, all);
    return out;
}

/* Finds the send at another side among equal messages. */
static struct happening *sent_as(
    struct happening **sent, size_t n, struct happening *got)
{
    struct happening **at =
        bsearch(&got, sent, n, sizeof(struct happening *), by_message);

    while (at && at > sent && by_message(at - 1, &got) == 0)
        at--;
    for (; at && at < sent + n && by_message(at, &got) == 0; at++)
        if ((*at)->side != got->side)
            return *at;
    return NULL;
}

/* Finds the first record of another side that says rows up to the landed ones
 * may go. If the room id was used several times: in its last use that is not
 * later. */
static struct happening *sending_of(
    struct happening **all, size_t n, struct happening *landed)
{
    struct happening *found = NULL;
    size_t low = 0, high = n;

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (all[mid]->room < landed->room)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < n && all[low]->room == landed->room; low++) {
        struct happening *h = all[low];
        bool first = !found || found->b < landed->a || h->a == 0;

        if (h->side != landed->side && first &&
            h->ns <= landed->ns + LANDED_SLACK_NS)
            found = h;
    }
    return found && found->b >= landed->a ? found : NULL;
}

static bool is_sending(const struct happening *h)
{
    return h->kind == HAPPENED_SENDING && h->of_room;
}

static bool is_landed(const struct happening *h)
{
    return h->kind == HAPPENED_LANDED && h->of_room;
}

typedef int order_fn(const void *a, const void *b);

/* Sets the cause of each effect: finds it among the sends, which are sorted. */
static bool pair(struct trace *t, bool (*send)(const struct happening *h),
    order_fn *order, bool (*effect)(const struct happening *h),
    struct happening *(*find)(
        struct happening **sent, size_t n, struct happening *effect))
{
    size_t n;
    struct happening **sent = gather(t, send, &n);

    if (!sent)
        return false;
    qsort(sent, n, sizeof(struct happening *), order);
    for (uint32_t s = 0; s < t->sides_count; s++)
        for (size_t i = 0; i < t->sides[s].count; i++)
            if (effect(&t->sides[s].all[i]))
                t->sides[s].all[i].cause = find(sent, n, &t->sides[s].all[i]);
    free(sent);
    return true;
}

bool trace_pair(struct trace *t)
{
    uint32_t flows = 0;
    bool ok = pair(t, is_sent, by_message, is_got, sent_as);

    for (uint32_t s = 0; s < t->sides_count; s++)
        for (size_t i = 0; i < t->sides[s].count; i++)
            if (t->sides[s].all[i].cause)
                t->sides[s].all[i].flow = ++flows;
    return ok;
}

/* clocks */

/* Returns the side's next later time; INT64_MAX: there is none. */
static int64_t later(const struct side *s, const struct happening *h)
{
    const struct happening *end = s->all + s->count;

    for (const struct happening *next = h; next < end; next++)
        if (next->ns > h->ns)
            return next->ns;
    return INT64_MAX;
}

bool trace_clocks(const struct trace *t, struct clocks *out)
{
    int64_t low = INT64_MIN, high = INT64_MAX;

    *out = (struct clocks){.drifted = false};
    for (uint32_t s = 0; s < 2; s++)
        for (size_t i = 0; i < t->sides[s].count; i++) {
            const struct happening *h = &t->sides[s].all[i];
            int64_t by;

            if (!h->flow || (by = later(&t->sides[s], h)) == INT64_MAX)
                continue;
            CHECK(h->cause->side == 1 - s, "a message of side %u to side %u",
                h->cause->side, s);
            if (s == 1 && by - h->cause->ns < high)
                high = by - h->cause->ns;
            if (s == 0 && h->cause->ns - by > low)
                low = h->cause->ns - by;
            s == 1 ? out->there++ : out->back++;
        }
    if (!out->there || !out->back)
        return false;
    out->drifted = low > high;
    out->offset_ns = low + (high - low) / 2;
    out->within_ns = ((low > high ? low - high : high - low) + 1) / 2;
    return true;
}

/* order */

/* A side while it is merged. */
struct cursor {
    struct happening *next, *end;
    int64_t ns; /* time of its last happening in the order */
};

/* True if its cause is already in the order. */
static bool may_go(const struct cursor *sides, const struct happening *h)
{
    const struct happening *c = h->cause;

    return !c || c < sides[c->side].next;
}

/* Returns the side with the earliest happening that may go. If none may
 * (numbers were reused), returns the earliest of all. */
static struct cursor *choose(struct cursor *sides, uint32_t count)
{
    struct cursor *best = NULL;

    for (int strict = 1; strict >= 0 && !best; strict--)
        for (uint32_t s = 0; s < count; s++) {
            struct cursor *c = &sides[s];

            if (c->next == c->end || (strict && !may_go(sides, c->next)))
                continue;
            if (!best || c->next->ns < best->next->ns)
                best = c;
        }
    return best;
}

bool trace_join(struct trace *t)
{
    struct cursor sides[SIDES_MAX], *c;
    size_t all = 1;

    if (!pair(t, is_sending, by_room, is_landed, sending_of))
        return false;
    for (uint32_t s = 0; s < t->sides_count; s++) {
        struct side *side = &t->sides[s];

        sides[s] =
            (struct cursor){side->all, side->all + side->count, INT64_MIN};
        all += side->count;
    }
    free(t->all);
    t->count = 0;
    t->all = calloc(all, sizeof(struct happening *));
    while (t->all && (c = choose(sides, t->sides_count))) {
        struct happening *h = c->next++;

        if (h->cause && !may_go(sides, h)) { /* drop this cause */
            h->cause = NULL;
            h->flow = 0;
        }
        if (h->ns < c->ns)
            h->ns = c->ns;
        if (h->cause && h->ns < h->cause->ns)
            h->ns = h->cause->ns;
        c->ns = h->ns;
        t->all[t->count++] = h;
    }
    return t->all != NULL;
}

void trace_free(struct trace *t)
{
    for (uint32_t s = 0; s < t->sides_count; s++)
        free(t->sides[s].all);
    free(t->all);
    *t = (struct trace){.sides_count = 0};
}
