/* carrier.c - see carrier.h. Calls the owner back only from carrier_report()
 * and carrier_arrived(), which carriers call from progress() and close(). */
#include "io/data/carrier.h"

#include "base/check.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The lists are used from the head, so only as much of this memory is touched
 * as is in use at once. */
enum err carrier_init(struct carrier *c, const char *name,
    const struct data_conf *conf, const struct data_calls *calls,
    size_t op_size, void (*cut)(struct data *d, uint32_t ep))
{
    uint32_t n = conf->messages_max, all = n + conf->fetches_max;
    size_t frame = CARRIER_FRAME + DATA_HEADER_MAX;

    CHECK(n > 0 && conf->endpoints_max > 0 &&
              op_size >= sizeof(struct carrier_op),
        "%u messages, %u endpoints", n, conf->endpoints_max);
    c->name = name;
    c->conf = *conf;
    c->calls = *calls;
    c->cut = cut;
    list_init(&c->unused);
    list_init(&c->unused_fetches);
    list_init(&c->done);
    c->ends = calloc(conf->endpoints_max, sizeof(*c->ends));
    c->ops = calloc(all, op_size);
    c->frames = calloc(n, frame);
    c->iovs = calloc((size_t)all * (1 + DATA_IOV_MAX), sizeof(*c->iovs));
    if (!c->ends || !c->ops || !c->frames || !c->iovs) {
        log_error("%s: no memory for %u messages", name, n);
        return ERR_INTERNAL;
    }
    for (uint32_t i = 0; i < all; i++) {
        struct carrier_op *op = (void *)(c->ops + i * op_size);

        op->ep = NONE;
        op->fetch = i >= n;
        op->frame = op->fetch ? NULL : c->frames + i * frame;
        op->many = c->iovs + (size_t)i * (1 + DATA_IOV_MAX);
        list_push_tail(op->fetch ? &c->unused_fetches : &c->unused, &op->link);
    }
    return OK;
}

void carrier_fini(struct carrier *c)
{
    free(c->ends);
    free(c->ops);
    free(c->frames);
    free(c->iovs);
}

/* endpoints */

struct carrier_end *carrier_end(struct carrier *c, uint32_t i)
{
    CHECK(i < c->conf.endpoints_max && c->ends[i].open, "%s: endpoint %u",
        c->name, i);
    return &c->ends[i];
}

void carrier_connect(struct carrier *c, uint32_t i)
{
    CHECK(i < c->conf.endpoints_max && !c->ends[i].open, "%s: endpoint %u",
        c->name, i);
    CHECK(!c->inside, "%s: connect inside arrived()", c->name);
    c->ends[i] = (struct carrier_end){.open = true};
    list_init(&c->ends[i].ops);
}

void carrier_disconnect(struct data *d, uint32_t i)
{
    struct carrier *c = (struct carrier *)d;
    struct carrier_end *end = carrier_end(c, i);

    CHECK(!c->inside, "%s: disconnect inside arrived()", c->name);
    c->cut(d, i);
    CHECK(list_empty(&end->ops), "%s: endpoint %u has messages", c->name, i);
    CHECK(c->unreported >= end->unreported, "%s: %u reports", c->name,
        c->unreported);
    c->unreported -= end->unreported;
    end->open = end->unreported = false;
}

/* Marks that endpoint i has to be reported as made, or as broken. */
static void report_end(struct carrier *c, uint32_t i, bool made)
{
    struct carrier_end *end = &c->ends[i];

    c->unreported += !end->unreported;
    end->unreported = true;
    end->made = made;
}

void carrier_made(struct carrier *c, uint32_t i)
{
    CHECK(!carrier_end(c, i)->broken, "%s: endpoint %u is made and broken",
        c->name, i);
    c->ends[i].answered = true;
    c->ends[i].quiet_since_ns = 0;
    if (c->calls.connected)
        report_end(c, i, true);
}

void carrier_blame(
    struct carrier *c, uint32_t i, enum trouble t, const char *what)
{
    struct carrier_end *end = &c->ends[i];
    bool unmade = t == TROUBLE_DATA_REFUSED || t == TROUBLE_DATA_TIMEOUT ||
                  t == TROUBLE_DATA_ROUTE;
    size_t n = strlen(end->why);

    CHECK(trouble_of_data(t), "%s: endpoint %u: trouble %u", c->name, i, t);
    if (end->trouble != TROUBLE_NONE)
        return;
    end->trouble =
        (uint8_t)(unmade && end->loopback ? TROUBLE_DATA_LOOPBACK : t);
    snprintf(end->why + n, sizeof(end->why) - n, ": %s", what);
}

enum trouble carrier_state(const struct carrier *c, uint32_t i,
    const char *transport, const char **text)
{
    const struct carrier_end *end = &c->ends[i];

    CHECK(i < c->conf.endpoints_max, "%s: endpoint %u", c->name, i);
    *text = end->trouble == TROUBLE_NONE ? transport : end->why;
    return (enum trouble)end->trouble;
}

void carrier_break(struct data *d, uint32_t i)
{
    struct carrier *c = (struct carrier *)d;
    struct carrier_end *end = &c->ends[i];

    CHECK(i < c->conf.endpoints_max, "%s: endpoint %u", c->name, i);
    if (!end->open || end->broken)
        return;
    end->broken = true;
    report_end(c, i, false);
    c->cut(d, i);
}

void carrier_break_all(struct data *d)
{
    struct carrier *c = (struct carrier *)d;

    for (uint32_t i = 0; i < c->conf.endpoints_max; i++)
        carrier_break(d, i);
}

void carrier_tick(struct data *d, uint64_t now_ns)
{
    struct carrier *c = (struct carrier *)d;

    CHECK(!c->inside, "%s: tick inside arrived()", c->name);
    for (uint32_t i = 0; i < c->conf.endpoints_max; i++) {
        struct carrier_end *end = &c->ends[i];

        if (!end->open || end->broken ||
            (end->answered && list_empty(&end->ops)))
            continue;
        if (end->quiet_since_ns == 0)
            end->quiet_since_ns = now_ns;
        if (now_ns - end->quiet_since_ns < c->conf.stall_ms * NS_PER_MS)
            continue;
        if (end->answered)
            log_warn("%s: endpoint %u: messages without progress for %u ms",
                c->name, i, c->conf.stall_ms);
        else
            carrier_blame(c, i, TROUBLE_DATA_TIMEOUT, "no answer");
        carrier_break(d, i);
    }
}

/* operations */

void carrier_pieces(
    struct carrier_op *op, const struct iovec *iov, uint32_t iovs)
{
    CHECK(iovs <= DATA_IOV_MAX, "%u pieces", iovs);
    op->iov = iovs < ARRAY_LEN(op->few) ? op->few : op->many;
    op->bytes = 0;
    op->iovs = 1;
    for (uint32_t i = 0; i < iovs; i++) {
        op->bytes += iov[i].iov_len;
        if (iov[i].iov_len > 0)
            op->iov[op->iovs++] = iov[i];
    }
}

enum err carrier_post(struct carrier *c, uint32_t i, struct span header,
    const struct iovec *iov, uint32_t iovs, void *cookie,
    struct carrier_op **out)
{
    struct carrier_end *end = carrier_end(c, i);
    struct carrier_op *op = LIST_FIRST(&c->unused, struct carrier_op, link);

    CHECK(header.len <= DATA_HEADER_MAX, "%u header bytes", header.len);
    if (end->broken || end->failed)
        return ERR_PEER_LOST;
    if (!op)
        return ERR_BUSY;
    CHECK(op->ep == NONE && !op->fetch, "%s: an operation in use", c->name);
    op->cookie = cookie;
    op->ep = i;
    carrier_pieces(op, iov, iovs);
    if (header.len)
        memcpy(op->frame + CARRIER_FRAME, header.p, header.len);
    list_remove(&op->link);
    list_push_tail(&end->ops, &op->link);
    *out = op;
    return OK;
}

void carrier_move(struct carrier *c, struct carrier_op *op, struct list *to)
{
    if (op->ep != NONE)
        carrier_end(c, op->ep)->quiet_since_ns = 0;
    op->ep = NONE;
    list_remove(&op->link);
    list_push_tail(to, &op->link);
}

void carrier_complete(struct carrier *c, struct carrier_op *op, bool ok)
{
    op->ok = ok;
    carrier_move(c, op, &c->done);
}

void carrier_complete_all(struct carrier *c, struct list *ops)
{
    struct carrier_op *op;

    while ((op = LIST_FIRST(ops, struct carrier_op, link)) != NULL)
        carrier_complete(c, op, false);
}

/* reports */

bool carrier_arrived(struct data *d, const struct data_in *in)
{
    struct carrier *c = (struct carrier *)d;
    bool kept;

    CHECK(!c->inside, "%s: arrived() inside itself", c->name);
    CHECK(c->calls.arrived, "%s: a message for no one", c->name);
    c->inside = true;
    kept = c->calls.arrived(c->calls.ud, d, in);
    c->inside = false;
    return kept;
}

unsigned carrier_report_done(struct carrier *c)
{
    unsigned count = 0;

    /* Bounded: a callback may post a message that completes at once. */
    for (; count < 2 * c->conf.messages_max + c->conf.fetches_max; count++) {
        struct list *n = list_pop(&c->done);
        struct carrier_op *op;

        if (!n)
            break;
        op = LIST_ENTRY(n, struct carrier_op, link);
        list_push_head(op->fetch ? &c->unused_fetches : &c->unused, n);
        if (op->fetch)
            c->calls.fetched(c->calls.ud, op->cookie, op->ok);
        else
            c->calls.done(c->calls.ud, op->cookie);
    }
    return count;
}

unsigned carrier_report(struct carrier *c)
{
    unsigned count = carrier_report_done(c);

    for (uint32_t i = 0; c->unreported && i < c->conf.endpoints_max; i++) {
        if (!c->ends[i].unreported)
            continue;
        c->ends[i].unreported = false;
        CHECK(c->unreported > 0 && c->ends[i].made != c->ends[i].broken,
            "%s: endpoint %u is made and broken", c->name, i);
        c->unreported--;
        count++;
        if (c->ends[i].made)
            c->calls.connected(c->calls.ud, i);
        else
            c->calls.broken(c->calls.ud, i);
    }
    return count;
}

bool carrier_pending(const struct carrier *c)
{
    return !list_empty(&c->done) || c->unreported > 0;
}
