/* language.c - language engines: they request, read and release rooms, and fail
 * to do so in every way. What they read is compared with what must be there:
 * every row of the room, all of one announce instance, each at its place. */
#include "test/sim/sim.h"

#include "base/check.h"

static struct cons *conss;

/* reading */

void cons_read(
    const struct handle *h, uint32_t from, uint32_t to, const char *when)
{
    struct handle *own = (struct handle *)(uintptr_t)h;
    const struct cons *c = h->cons;
    const uint64_t *tags = h->pool < CONF_POOLS_MAX
                               ? c->d->tags[h->pool]
                               : map_pool(h->c, h->pool)->tags;

    for (uint32_t r = from; r < to; r++) {
        uint64_t tag = tags[handle_row(h, r)];
        uint32_t instance = tag_instance(tag);
        const struct prod *p;

        if (own->instance == instance && tag_row(tag) == r)
            continue;
        p = prod_of(instance, c->room);
        HOLDS(p && p->d->index == c->encoder, "rows are of the room",
            "%s room %llu g%llx row %u %s: instance %u row %u",
            c->d->conf->name, (unsigned long long)c->room,
            (unsigned long long)h->generation & 0xffffff, r, when, instance,
            tag_row(tag));
        HOLDS(tag_row(tag) == r, "rows are in their place",
            "%s room %llu row %u %s: holds row %u", c->d->conf->name,
            (unsigned long long)c->room, r, when, tag_row(tag));
        HOLDS(own->instance == 0 || own->instance == instance,
            "rows are of one announce",
            "%s room %llu row %u %s: instance %u, before %u", c->d->conf->name,
            (unsigned long long)c->room, r, when, instance, own->instance);
        own->instance = instance;
    }
}

struct secret secret_of(uint64_t number)
{
    struct secret s = {{0}};

    memcpy(s.b, &number, sizeof(number));
    return s;
}

/* True if the pool's list has the session's user. */
static bool names(const struct conf_pool *p, uint32_t session)
{
    char uid[16];

    snprintf(uid, sizeof(uid), "%u", 1000 + session % 2);
    for (uint32_t i = 0; i < p->uids.count; i++)
        if (strcmp(p->uids.items[i], uid) == 0)
            return true;
    return p->uids.count == 0;
}

bool cons_may(const struct cons *c, const struct prod *p)
{
    const struct daemon *e = W.daemons[c->encoder];
    const struct conf_pool *pool = &e->conf->pools[p->pool];

    return c->secret == p->secret &&
           (c->secret || (pool->uids.count == 0) ||
               (c->d->host == e->host && names(pool, c->session)));
}

static struct span encoder_name(const struct cons *c)
{
    if (c->ghost)
        return span_str("g0");
    /* names the encoder by its address */
    if (W.is.reload_ms && !c->null && c->room % 4 == 1)
        return span_str(W.daemons[c->encoder]->conf->control_listen);
    return c->null ? span_str("null")
                   : span_str(W.daemons[c->encoder]->conf->name);
}

static bool usable(const struct handle *h)
{
    return h && !h->refused && !h->released && econn_usable(h->c);
}

static bool gone(const struct handle *h)
{
    return h->released || h->refused || !econn_usable(h->c);
}

static bool all_gone(const struct cons *c)
{
    for (uint32_t i = 0; i < c->conns; i++)
        if (c->h[i] && !gone(c->h[i]))
            return false;
    return true;
}

/* the script */

static void decline(struct cons *c)
{
    struct econn *e = session_conn(c->d, c->session, 0);
    struct local_msg m = {.type = LOCAL_DECLINE};

    if (!e)
        return;
    m.decline.room = c->room;
    m.decline.encoder = encoder_name(c);
    m.decline.secret = secret_of(c->secret);
    if (!c->must_succeed) { /* whatever becomes of the decline */
        econn_send(e, &m, NULL);
        c->over = true;
    } else if (!c->asked) {
        struct handle *h = must_alloc(1, sizeof(*h));

        h->c = e;
        h->cons = c;
        c->asked = true;
        econn_send(e, &m, h);
    }
}

static void request(struct cons *c, struct handle *h)
{
    struct local_msg m = {.type = LOCAL_REQUEST};

    c->requested = h->owner = true;
    h->cons = c;
    h->pool = (uint16_t)c->pool;
    h->rights = RIGHT_READ;
    m.request.room = c->room;
    m.request.cell = h->cell;
    m.request.tag = h->tag;
    m.request.pool = (uint16_t)c->pool;
    m.request.mode = c->mode;
    m.request.storage = c->storage;
    m.request.rows = c->rows;
    m.request.readers = (uint16_t)c->readers;
    m.request.required_dst = (uint16_t)c->required;
    m.request.group = c->group;
    m.request.group_size = c->group_size;
    m.request.deadline_ms = c->deadline_ms;
    memcpy(m.request.key.b, &c->key, sizeof(c->key));
    m.request.secret = secret_of(c->secret);
    m.request.encoder = encoder_name(c);
    trace("%s requests %llu of %s, mode %u rows %u readers %u required %u",
        c->d->conf->name, (unsigned long long)c->room,
        W.daemons[c->encoder]->conf->name, c->mode, c->rows, c->readers,
        c->required);
    econn_send(h->c, &m, h);
}

static void attach(struct cons *c, struct handle *h)
{
    struct local_msg m = {.type = LOCAL_ATTACH};

    h->cons = c;
    h->pool = (uint16_t)c->pool;
    h->rights = RIGHT_READ;
    m.attach.room = c->room;
    m.attach.cell = h->cell;
    m.attach.tag = h->tag;
    m.attach.rights = h->rights;
    m.attach.encoder = encoder_name(c);
    m.attach.secret = secret_of(c->secret);
    econn_send(h->c, &m, h);
}

static void bind_one(struct cons *c, uint32_t i)
{
    struct econn *e = session_conn(c->d, c->session, i);
    struct handle *h = e ? handle_new(e) : NULL;

    if (!h)
        return;
    c->h[i] = h;
    if (i == 0)
        request(c, h);
    else
        attach(c, h);
}

static void give_up(struct cons *c)
{
    struct local_msg m = {.type = LOCAL_ABORT};
    struct handle *h = c->h[0];

    c->aborts = false;
    trace("%s: engine gives room %llu up", c->d->conf->name,
        (unsigned long long)c->room);
    if (chance(W.is.vanish)) {
        if (chance(300))
            econn_close(h->c);
        else
            econn_die(h->c);
    } else if (chance(500)) {
        handle_release(h, ROWS_UNKNOWN);
    } else {
        m.abort.cell = h->cell;
        m.abort.tag = h->tag;
        m.abort.reason = ERR_ABORTED;
        econn_send(h->c, &m, NULL);
    }
}

/* A stream: reads the rows that are there, and releases a prefix. */
static void consume(struct cons *c, struct handle *h)
{
    uint32_t seen = min_u32(h->seen_rows, h->shown);
    uint32_t want = W.healing || c->eager ? 1 : max_u32(1, c->window);

    if (c->mode != MODE_STREAM || seen <= h->given ||
        (seen - h->given < want && !h->seen_ready))
        return;
    cons_read(h, h->given, seen, "when it was consumed");
    handle_release(h, W.healing ? seen : (uint32_t)between(h->given + 1, seen));
}

/* True if the room that is consumed together with this one, if any, is
 * ready. */
static bool twin_ready(const struct cons *c)
{
    const struct cons *t = c->twin;

    while (t && t->again)
        t = t->again;
    return !t || t->ready_ns;
}

/* True if every room of the group is ready, for an engine that needs all; also
 * rooms that were requested again, in a group of their own. */
static bool group_ready(const struct cons *c)
{
    uint32_t rooms = 0;

    for (const struct cons *o = conss; o; o = o->next) {
        if (o->d != c->d || (uint32_t)o->group != (uint32_t)c->group ||
            o->again)
            continue;
        if (o->ready_ns == 0)
            return false;
        rooms++;
    }
    return rooms >= c->group_size;
}

static void handle_acts(struct cons *c, struct handle *h)
{
    if (!usable(h))
        return;
    if (h->seen_failed) {
        if (W.healing || chance(500))
            handle_release(h, ROWS_UNKNOWN);
        return;
    }
    if (!twin_ready(c) || (c->together && !group_ready(c)))
        return;
    if (h->seen_ready && W.now_ns >= c->ready_ns + c->hold_ns) {
        /* A reader of an earlier room of this id may be one more than were
         * declared: it is not waited for. */
        HOLDS(h->shown == h->total || (W.is.again && !h->owner && !h->runs),
            "ready shows all", "%s room %llu: %u of %u rows", c->d->conf->name,
            (unsigned long long)c->room, h->shown, h->total);
        cons_read(h, h->given, h->shown, "before it was released");
        handle_release(h, ROWS_UNKNOWN);
        return;
    }
    consume(c, h);
}

static void cons_acts(struct cons *c)
{
    struct handle *h = c->h[0];

    /* If a reader died before it attached another one comes. */
    for (uint32_t i = 1; i < c->conns; i++)
        if (c->h[i] && !c->h[i]->released && !c->h[i]->refused && gone(c->h[i]))
            c->h[i] = NULL;
    /* Another one also comes for a reader that waited for the room too early,
     * and too long. */
    for (uint32_t i = 1; h && h->seen_ready && i < c->conns; i++)
        if (c->h[i] && c->h[i]->released && c->h[i]->seen_failed &&
            c->tries++ < 4)
            c->h[i] = NULL;
    for (uint32_t i = 1; i < c->conns; i++)
        if (!c->h[i] && (c->requested || chance(50)) &&
            (W.healing || chance(200)))
            bind_one(c, i);
    if (c->declines) {
        decline(c);
        return;
    }
    if (!h) {
        bind_one(c, 0);
        return;
    }
    if (c->silent && !W.healing)
        return;
    if (c->aborts && W.now_ns >= c->abort_ns && usable(h)) {
        give_up(c);
        return;
    }
    for (uint32_t i = 0; i < c->conns; i++)
        if (c->h[i])
            handle_acts(c, c->h[i]);
    if (!gone(h))
        return;
    /* Readers end when the owner has ended. */
    for (uint32_t i = 1; i < c->conns; i++)
        if (usable(c->h[i]) &&
            (c->h[i]->ended || h->refused || h->reason || !h->seen_ready))
            if (W.healing || chance(100)) {
                if (c->h[i]->shown > c->h[i]->given)
                    cons_read(
                        c->h[i], c->h[i]->given, c->h[i]->shown, "at the end");
                handle_release(c->h[i], ROWS_UNKNOWN);
            }
    for (uint32_t i = 1; i < c->conns && !h->refused && !h->seen_failed; i++)
        if (!c->h[i])
            return; /* a reader was announced and has not come yet */
    c->over = all_gone(c);
}

static void cons_tick(void *ptr, uint64_t a, uint64_t b)
{
    struct cons *c = ptr;
    uint64_t pace = W.healing ? 5 * MS : 3 * MS;

    if (!c->d->alive || (c->life && c->life != c->d->life))
        c->over = true;
    if (c->over)
        return;
    if (!c->life)
        c->life = c->d->life;
    cons_acts(c);
    if (!c->over)
        at_leisure(W.now_ns + 1000 + between(0, 2 * pace), cons_tick, c, 0, 0);
    c->end_ns = W.now_ns;
}

void cons_start(struct cons *c, uint64_t when_ns)
{
    c->start_ns = when_ns;
    at_leisure(when_ns, cons_tick, c, 0, 0);
}

void cons_answer(struct handle *h, uint32_t type, const struct local_answer *a)
{
    W.from = h->cons->draws;
    if (type == LOCAL_DECLINE) {
        h->cons->over = a->err == OK;
        h->cons->asked = false; /* tries once more */
        return;
    }
    h->cons->refused |= a->err ? UINT32_C(1) << a->err : 0;
    if (h->owner &&
        (h->cons->insists ? a->err == ERR_BUSY || a->err == ERR_QUOTA
                          : a->err == ERR_BUSY && h->cons->must_succeed)) {
        h->cons->h[0] = NULL; /* tries once more */
        h->refused = true;
        h->c->handles[h->cell] = NULL;
        return;
    }
    if (a->err == ERR_QUOTA && type == LOCAL_ATTACH)
        for (uint32_t i = 1; i < h->cons->conns; i++)
            if (h->cons->h[i] == h)
                h->cons->h[i] = NULL; /* tries once more */
    if (a->err && (type == LOCAL_REQUEST || type == LOCAL_ATTACH)) {
        HOLDS(!h->cons->must_succeed || type == LOCAL_ATTACH,
            "a healed world serves", "room %llu refused: %.*s",
            (unsigned long long)h->cons->room, (int)a->text.len,
            (const char *)a->text.p);
        h->refused = true;
        h->err = a->err;
        if (h->c->handles[h->cell] == h)
            h->c->handles[h->cell] = NULL;
    } else if (type == LOCAL_REQUEST && h->cons->mode == MODE_STREAM) {
        HOLDS(a->a >= 2 * handle_block_rows(h), "a stream has a window",
            "%u rows of %u", a->a, handle_block_rows(h));
        h->cons->window = (uint32_t)between(1, a->a);
    }
}

static bool same_group(const struct cons *a, const struct cons *b)
{
    return a->d == b->d && a->session == b->session && a->group == b->group;
}

static struct cons *ask_again(struct cons *c)
{
    struct cons *n = cons_new(c->d, c->encoder, c->room), *next = n->next;

    *n = *c;
    n->next = next;
    memset(n->h, 0, sizeof(n->h));
    n->requested = n->over = n->lost = c->lost = false;
    n->ready_ns = 0;
    c->again = n;
    trace("%s asks for %llu again", c->d->conf->name,
        (unsigned long long)c->room);
    cons_start(n, W.now_ns + between(1, 20) * MS);
    return n;
}

/* Does what the reason advises: requests again the rooms that are not READY,
 * once it is known of each. */
static void group_again(const struct cons *c)
{
    uint32_t lost = 0, there = 0;

    for (const struct cons *o = conss; o; o = o->next)
        if (same_group(o, c)) {
            lost += o->lost;
            there += o->ready_ns != 0;
        }
    for (struct cons *o = conss; lost + there == c->group_size && o;
         o = o->next)
        if (same_group(o, c) && o->lost) {
            struct cons *n = ask_again(o);

            n->group += UINT64_C(1) << 32;
            n->group_size = (uint16_t)lost;
        }
}

/* True if the room was announced with this length and aux. Rooms without rows,
 * and those whose rows were not read, do not show more of which announce they
 * are. */
static bool announced_so(const struct cons *c, const struct local_event *e)
{
    for (const struct prod *p = prods_of_room(c->room); p; p = p->in_room)
        if (p->room == c->room && p->d->index == c->encoder && p->announced &&
            cons_may(c, p) && p->total == e->total && p->aux == e->aux.len &&
            (p->aux == 0 || e->aux.p[0] == (p->instance & 0xff)))
            return true;
    return false;
}

/* True if this engine may have some announce of the room. */
static bool has_right(const struct cons *c)
{
    for (const struct prod *p = prods_of_room(c->room); p; p = p->in_room)
        if (p->room == c->room && p->d->index == c->encoder && p->announced &&
            cons_may(c, p))
            return true;
    return false;
}

void cons_event(struct handle *h, const struct local_event *e)
{
    struct cons *c = h->cons;
    const struct prod *p;

    W.from = c->draws;
    if ((e->what & EVENT_FAILED) && e->reason == ERR_NO_BLOCKS &&
        c->must_succeed) {
        if (!h->owner)
            return;
        c->lost = true;
        if (c->group)
            group_again(c);
        else
            (void)ask_again(c);
        return;
    }
    HOLDS(!(e->what & (EVENT_LENGTH | EVENT_LANDED | EVENT_READY)) || c->null ||
              c->ghost || has_right(c),
        "rows and aux are for those that may have them",
        "%s room %llu: session %u, secret %llx", c->d->conf->name,
        (unsigned long long)c->room, c->session, (unsigned long long)c->secret);
    if (e->what & EVENT_FAILED)
        HOLDS(!c->must_succeed, "a healed world serves",
            "%s room %llu failed: %s %.*s", c->d->conf->name,
            (unsigned long long)c->room, err_name((enum err)e->reason),
            (int)e->text.len, (const char *)e->text.p);
    if ((e->what & EVENT_FAILED) && c->lost_with_daemon)
        HOLDS(e->reason == ERR_PEER_LOST || e->reason == ERR_NO_BLOCKS ||
                  e->reason == ERR_TIMEOUT || e->reason == ERR_ABORTED ||
                  e->reason == ERR_DECLINED,
            "a crash has its reason", "%s room %llu failed: %s",
            c->d->conf->name, (unsigned long long)c->room,
            err_name((enum err)e->reason));
    if (!(e->what & EVENT_READY))
        return;
    c->ready_ns = c->ready_ns ? c->ready_ns : W.now_ns;
    if (c->group)
        group_again(c);
    HOLDS(e->total != ROWS_UNKNOWN && e->rows == e->total, "ready shows all",
        "room %llu: %u of %u", (unsigned long long)c->room, e->rows, e->total);
    HOLDS(c->null || c->ghost || announced_so(c, e),
        "total and aux are those of an announce",
        "room %llu: %u rows, %u bytes", (unsigned long long)c->room, e->total,
        e->aux.len);
    if (c->null || e->total == 0 || !h->instance)
        return;
    p = prod_of(h->instance, c->room);
    HOLDS(p->total == e->total, "the total is the announced one",
        "room %llu: %u, announced %u", (unsigned long long)c->room, e->total,
        p->total);
    HOLDS(e->aux.len == p->aux &&
              (p->aux == 0 || e->aux.p[0] == (p->instance & 0xff)),
        "aux is the announced one", "room %llu: %u bytes, announced %u",
        (unsigned long long)c->room, e->aux.len, p->aux);
}

struct cons *cons_new(struct daemon *d, uint32_t encoder, uint64_t room)
{
    struct cons *c = must_alloc(1, sizeof(*c));

    c->d = d;
    c->draws = W.from;
    c->encoder = encoder;
    c->room = room;
    c->conns = 1;
    c->required = 1;
    c->next = conss;
    conss = c;
    return c;
}

struct cons *cons_all(void)
{
    return conss;
}

void cons_forget(uint64_t for_ns)
{
    struct cons **at = &conss;

    while (*at) {
        struct cons *c = *at;

        if (!c->over || W.now_ns - c->end_ns < for_ns) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        for (uint32_t i = 0; i < c->conns; i++)
            free(c->h[i]);
        free(c);
    }
}

bool cons_over(void)
{
    for (struct cons *c = conss; c; c = c->next)
        if (!c->over)
            return false;
    return true;
}

bool cons_room_served(uint64_t room)
{
    for (struct cons *c = conss; c; c = c->next)
        if (c->room == room && !c->thief && !c->ready_ns &&
            (!c->over || c->lost))
            return false;
    return true;
}

const char *cons_left(void)
{
    static char text[400];
    size_t n = 0;

    text[0] = 0;
    for (struct cons *c = conss; c && n < 300; c = c->next)
        if (!c->over)
            n += (size_t)snprintf(text + n, sizeof(text) - n, " %s:%llu",
                c->d->conf->name, (unsigned long long)c->room);
    return text;
}

void cons_daemon_gone(struct daemon *d)
{
    for (struct cons *c = conss; c; c = c->next)
        if (c->d == d && c->life)
            c->over = true;
}
