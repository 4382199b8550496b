/* health.c - whether a room could complete now (RULES 9.6): a pool is there, at
 * langd an encoder is connected that has rows for it, and the daemon takes new
 * rooms. The body adds what only it knows, its shards. The loop's thread;
 * changes nothing.
 *
 * A pool whose layout an engine has to bring is no fault, nor is an encoded
 * without a langd: both come by themselves when they are wanted, and an engine
 * that waits for a ready daemon would wait for ever. */
#include "core/head.h"

#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>

_Static_assert(CONF_POOLS_MAX <= 32, "a bit for each pool");

void health_say(struct health *h, bool ready, const char *format, ...)
{
    char text[128];
    va_list args;

    CHECK(h->state && h->text[0], "the health of %s has no text",
        h->state ? h->state : "nothing");
    if (!h->ready || (ready && strcmp(h->text, h->state) != 0))
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    h->ready = ready;
    h->state = ready ? "ready" : "not-ready";
    snprintf(h->text, sizeof(h->text), "%s%s",
        ready ? "ready, but " : "not ready: ", text);
}

/* Returns what is wrong with a pool; NULL: nothing. */
static const char *fault(const struct pool_meta *m)
{
    if (m->lost)
        return "its memory is lost";
    if (m->broken)
        return "its memory could not be had";
    if (!m->ready && (m->fixing || m->layout.count > 0))
        return "its memory is being prepared";
    return NULL;
}

/* Returns the pools that are usable, as bits. */
static uint32_t look_at_pools(const struct brain *b, struct health *h)
{
    const struct pool_meta *bad = NULL;
    uint32_t usable = 0;

    for (uint32_t i = 0; i < b->pools_count; i++) {
        const struct pool_meta *m = &b->metas[i];

        if (!fault(m))
            usable |= UINT32_C(1) << i;
        else if (!bad)
            bad = m;
    }
    if (bad && !usable)
        health_say(h, false, "pool %s: %s", bad->conf->name, fault(bad));
    else if (bad)
        health_say(h, true, "not for pool %s: %s", bad->conf->name, fault(bad));
    return usable;
}

void brain_health(const struct brain *b, struct health *h)
{
    uint32_t usable, open = b->draining ? brain_open_rooms(b) : 0;

    *h = (struct health){true, "ready", "ready"};
    if (b->draining) {
        *h = (struct health){false, "draining", "draining"};
        if (open)
            snprintf(h->text, sizeof(h->text), "draining: %u room%s open", open,
                open == 1 ? " is" : "s are");
        return;
    }
    usable = look_at_pools(b, h);
    if (h->ready)
        b->ops->show->health(b, usable, h);
}
