/* shard_carry.c - the carriers of a shard: which are open, what they have to
 * do, and at which addresses others reach them. An endpoint uses the carrier
 * that its peer's route names (shard_send.c); messages may arrive on any of
 * them. The shard's owner calls all carriers.
 *
 * Several carriers are polled as one, by an epoll; a single carrier is polled
 * by its own descriptor, which costs the kernel less. */
#include "node/shard/shard_in.h"

#include "base/check.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

static struct log_rate unwatched =
    LOG_RATE("carriers that cannot be polled", LOG_ERROR, 5);

struct carry *carry_by(struct shard *s, uint8_t number)
{
    for (uint32_t i = 0; i < s->carries_count; i++)
        if (s->carries[i].ops->number == number)
            return &s->carries[i];
    return NULL;
}

struct carry *carry_of(struct shard *s, const struct data *d)
{
    uint32_t i = 0;

    while (i < s->carries_count && s->carries[i].d != d)
        i++;
    CHECK(i < s->carries_count, "shard %u: not its carrier", s->conf.index);
    return &s->carries[i];
}

/* addresses */

/* Copies the carrier's address, which changes when its worker is replaced.
 * Older copies stay for their readers. */
static enum err publish(struct carry *c)
{
    struct span a = c->ops->address(c->d);
    struct published_address *copy = malloc(sizeof(*copy) + a.len);

    if (!copy)
        return ERR_NO_BLOCKS;
    copy->older = atomic_load_explicit(&c->address, memory_order_relaxed);
    copy->len = a.len;
    if (a.len > 0)
        memcpy(copy->bytes, a.p, a.len);
    atomic_store_explicit(&c->address, copy, memory_order_release);
    return OK;
}

struct span shard_address(struct shard *s, uint8_t number)
{
    struct carry *c = carry_by(s, number);
    const struct published_address *a;

    if (!c)
        return span_of(NULL, 0);
    /* publish() releases it. */
    a = atomic_load_explicit(&c->address, memory_order_acquire);
    return span_of(a->bytes, a->len);
}

/* open and close */

/* Watches the descriptor of one of several carriers: anew after its worker was
 * replaced, which takes the old one out of the epoll. */
static enum err watch(struct shard *s, struct carry *c)
{
    struct epoll_event ev = {.events = EPOLLIN};
    int fd = c->ops->fd(c->d);

    if (!s->conf.carriers[1]) {
        s->fd = fd;
        return OK;
    }
    if (s->fd < 0)
        s->fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ctl(s->fd, EPOLL_CTL_ADD, fd, &ev) == 0 || errno == EEXIST)
        return OK;
    log_rated(
        &unwatched, "%s cannot be polled: %s", c->ops->name, strerror(errno));
    return ERR_INTERNAL;
}

static enum err open_one(struct shard *s, const struct data_ops *ops)
{
    struct data_calls calls = s->role->calls;
    struct carry *c = &s->carries[s->carries_count];
    enum err e;

    CHECK(s->carries_count < DATA_CARRIERS_MAX, "more than %d carriers",
        DATA_CARRIERS_MAX);
    CHECK(ops->any_thread || !s->conf.may_inline, "the loop may not call %s",
        ops->name);
    calls.ud = s;
    c->ops = ops;
    e = ops->open(&c->d, &s->conf.data, &calls);
    if (e == OK)
        e = watch(s, c);
    if (e == OK)
        e = publish(c);
    if (e == OK)
        s->carries_count++;
    else if (c->d)
        c->ops->close(&c->d);
    return e;
}

enum err carry_open(struct shard *s)
{
    enum err e = ERR_INTERNAL;

    for (uint32_t i = 0; s->conf.carriers[i]; i++) {
        e = open_one(s, s->conf.carriers[i]);
        if (e != OK)
            log_warn("rows do not go by %s", s->conf.carriers[i]->name);
    }
    return e;
}

void carry_close(struct shard *s)
{
    if (s->conf.carriers[1] && s->fd >= 0)
        close(s->fd);
    for (uint32_t i = 0; i < s->carries_count; i++)
        s->carries[i].ops->close(&s->carries[i].d);
}

void carry_free(struct shard *s)
{
    struct published_address *next;

    for (uint32_t i = 0; i < DATA_CARRIERS_MAX; i++)
        for (struct published_address *a = s->carries[i].address; a; a = next) {
            next = a->older;
            free(a);
        }
}

bool carry_to_gpus(const struct shard *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->carries_count; i++)
        n += s->carries[i].ops->gpu;
    CHECK(n <= 1, "%u carriers reach GPUs", n);
    return n > 0;
}

bool carry_memory(struct shard *s, const struct mem *m)
{
    bool good = false;

    for (uint32_t i = 0; i < s->carries_count; i++) {
        const struct carry *c = &s->carries[i];

        if (c->ops->memory && (!m->gpu || c->ops->gpu))
            good |=
                c->ops->memory(c->d, mem_start(m), m->bytes, m->gpu != NULL);
    }
    return good;
}

/* turns */

unsigned carry_progress(struct shard *s)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < s->carries_count; i++)
        n += s->carries[i].ops->progress(s->carries[i].d);
    return n;
}

bool carry_due(struct shard *s)
{
    for (uint32_t i = 0; i < s->carries_count; i++)
        if (s->carries[i].ops->arm(s->carries[i].d) != OK)
            return true;
    return false;
}

void carry_tick(struct shard *s)
{
    for (uint32_t i = 0; i < s->carries_count; i++) {
        struct carry *c = &s->carries[i];

        if (!c->ops->tick(c->d, s->now_ns))
            continue;
        if (watch(s, c) != OK || publish(c) != OK)
            log_error("shard %u: a new address of %s is lost", s->conf.index,
                c->ops->name);
        /* Releases the address: node_carriers_watch() asks for it only once. */
        atomic_fetch_add(&s->stats.workers_replaced, 1);
    }
}
