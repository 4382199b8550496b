/* encode.c - encode engines: they announce, write rows as tags, commit them in
 * pieces, and fail to do so in every way. A script is a prod: one announce
 * instance with up to three connections of one session. */
#include "test/sim/sim.h"

#include "base/check.h"

#define GARBAGE UINT32_MAX

#define BUCKETS 16384

static struct prod *prods, *rooms[BUCKETS];
static struct econn *kept[DAEMONS_MAX][4][1 + READERS_MAX];

struct econn *session_conn(struct daemon *d, uint32_t session, uint32_t i)
{
    struct econn **c = &kept[d->index][session][i];
    char name[16];

    if (!d->alive)
        return NULL;
    if (*c && ((*c)->life != d->life || (*c)->ended || (*c)->dead || (*c)->bye))
        *c = NULL;
    if (!*c) {
        snprintf(name, sizeof(name), "s%u", session);
        *c = econn_open(d, name, 1000 + session % (W.sparse ? 4 : 2));
    }
    return econn_usable(*c) ? *c : NULL;
}

const struct prod *prod_of(uint32_t instance, uint64_t room)
{
    for (struct prod *p = prods_of_room(room); p; p = p->in_room)
        if (p->instance == instance && p->room == room)
            return p;
    return NULL;
}

/* All announces of a key have the same content. */
bool prod_key(struct prod *p, uint64_t key, uint64_t most)
{
    const struct conf_pool *c = &p->d->conf->pools[p->pool];

    for (const struct prod *o = p->next; o; o = o->next)
        if (o->key == key && o->d == p->d) {
            if (W.is.calm &&
                (o->total > most || o->max_rows > c->blocks * c->block_rows))
                return false;
            p->instance = o->instance;
            p->total = o->total;
            p->max_rows = o->max_rows;
            p->pieces = o->pieces;
            p->aux = o->aux;
            memcpy(p->order, o->order, sizeof(p->order));
            break;
        }
    p->key = key;
    return true;
}

/* writing */

static void write_row(const struct handle *h, uint32_t row, uint64_t tag)
{
    h->prod->d->tags[h->pool][handle_row(h, row)] = tag;
}

static bool usable(const struct handle *h)
{
    return h && !h->refused && !h->released && econn_usable(h->c);
}

/* Gives the rows of piece i of the plan. */
static void piece_of(
    const struct prod *p, uint32_t i, uint32_t *first, uint32_t *rows)
{
    uint32_t at_row = (uint32_t)((uint64_t)p->total * i / p->pieces);

    *first = at_row;
    *rows = (uint32_t)((uint64_t)p->total * (i + 1) / p->pieces) - at_row;
}

static bool committed(const struct prod *p, uint32_t row)
{
    uint32_t first, rows;

    for (uint32_t i = 0; i < p->piece; i++) {
        piece_of(p, p->order[i], &first, &rows);
        if (row >= first && row - first < rows)
            return true;
    }
    return false;
}

/* A process that lives writes wherever it may, also rows that will never be
 * committed, until it has released them. */
static void scribble(struct prod *p)
{
    for (uint32_t i = 0; i < p->conns; i++) {
        struct handle *h = p->h[i];
        uint32_t row;

        if (!h || !h->may_write || h->c->dead || h->c->life != p->d->life ||
            !p->d->alive || p->max_rows == 0 || !h->runs)
            continue;
        row = (uint32_t)between(0, p->max_rows - 1);
        if (committed(p, row))
            continue;
        write_row(h, row, tag_of(GARBAGE, row));
    }
}

void prod_granted(struct prod *p, const struct handle *h)
{
    for (uint32_t r = 0; h->may_write && r < p->max_rows; r++)
        if (!committed(p, r))
            write_row(h, r, tag_of(GARBAGE, r));
}

static struct handle *writer_of_rows(struct prod *p)
{
    uint32_t start = (uint32_t)between(0, p->conns - 1);

    for (uint32_t i = 0; i < p->conns; i++) {
        struct handle *h = p->h[(start + i) % p->conns];

        if (usable(h) && h->seen_granted && !h->ended &&
            (h->may_write || (p->max_rows == 0 && h->owner)))
            return h;
    }
    return NULL;
}

static struct span aux_of(const struct prod *p)
{
    static uint8_t bytes[AUX_MAX];

    memset(bytes, (int)(p->instance & 0xff), sizeof(bytes));
    return span_of(bytes, p->aux);
}

static void stop_writing(struct prod *p)
{
    p->final_sent = true;
    for (uint32_t i = 0; i < p->conns; i++)
        if (p->h[i])
            p->h[i]->may_write = false;
}

static void commit_wrong(struct prod *p, struct handle *h)
{
    struct local_msg m = {.type = LOCAL_COMMIT};

    p->commit_wrong = false;
    m.commit.cell = h->cell;
    m.commit.tag = h->tag;
    m.commit.first = p->max_rows;
    m.commit.rows = 1;
    m.commit.total = ROWS_UNKNOWN;
    econn_send(h->c, &m, NULL);
}

static void commit(struct prod *p, struct handle *h)
{
    struct local_msg m = {.type = LOCAL_COMMIT};
    bool last = p->piece + 1 >= p->pieces;
    bool final = p->piece >= p->pieces || (last && !p->separate_final);

    m.commit.cell = h->cell;
    m.commit.tag = h->tag;
    m.commit.total = ROWS_UNKNOWN;
    if (p->piece < p->pieces) {
        piece_of(p, p->order[p->piece], &m.commit.first, &m.commit.rows);
        for (uint32_t r = 0; r < m.commit.rows; r++)
            write_row(
                h, m.commit.first + r, tag_of(p->instance, m.commit.first + r));
        p->piece++;
    }
    if (final) {
        m.commit.flags = FLAG_FINAL;
        m.commit.total = p->total;
        if (!p->known)
            m.commit.aux = aux_of(p);
        stop_writing(p);
    }
    econn_send(h->c, &m, h);
}

/* the script */

static void bind_view(struct prod *p, struct handle *h)
{
    struct local_msg m = {.type = LOCAL_ATTACH};

    h->bound = true;
    h->prod = p;
    h->pool = (uint16_t)p->pool;
    h->rights = chance(700) ? RIGHT_WRITE | RIGHT_WATCH : RIGHT_WATCH;
    m.attach.room = p->room;
    m.attach.cell = h->cell;
    m.attach.tag = h->tag;
    m.attach.rights = h->rights;
    m.attach.secret = secret_of(p->secret);
    econn_send(h->c, &m, h);
}

static void announce(struct prod *p, struct handle *h)
{
    struct local_msg m = {.type = LOCAL_ANNOUNCE};

    p->announced = h->bound = h->owner = true;
    h->prod = p;
    h->pool = (uint16_t)p->pool;
    h->rights = RIGHT_WRITE | RIGHT_WATCH;
    m.announce.room = p->room;
    m.announce.cell = h->cell;
    m.announce.tag = h->tag;
    m.announce.pool = (uint16_t)p->pool;
    m.announce.storage = p->storage;
    m.announce.flags = p->flags;
    m.announce.max_rows = p->max_rows;
    m.announce.total = p->known ? p->total : ROWS_UNKNOWN;
    m.announce.required_dst = (uint16_t)p->required;
    m.announce.deadline_ms = p->deadline_ms;
    for (const struct prod *q = p->mate; q && !q->h[0]; q = q->mate)
        m.announce.batch++;
    memcpy(m.announce.key.b, &p->key, sizeof(p->key));
    m.announce.secret = secret_of(p->secret);
    if (p->known)
        m.announce.aux = aux_of(p);
    trace("%s announces %llu as instance %u: max %u total %u%s required %u",
        p->d->conf->name, (unsigned long long)p->room, p->instance, p->max_rows,
        p->total, p->known ? "" : " (unknown)", p->required);
    econn_send(h->c, &m, h);
}

static void bind_first(struct prod *p)
{
    struct econn *c = session_conn(p->d, p->session, 0);
    struct handle *h = c ? handle_new(c) : NULL;

    if (!h)
        return;
    p->h[0] = h;
    announce(p, h);
    if (!p->mate || p->mate->h[0])
        return;
    p->mate->led = NULL; /* it may find no place now */
    p->mate->life = p->life;
    bind_first(p->mate);
}

static void bind_further(struct prod *p, uint32_t i)
{
    struct econn *c = session_conn(p->d, p->session, i);
    struct handle *h = c ? handle_new(c) : NULL;

    if (!h)
        return;
    p->h[i] = h;
    bind_view(p, h);
}

static bool gone(const struct handle *h)
{
    return h->released || h->refused || !econn_usable(h->c);
}

static bool all_gone(const struct prod *p)
{
    for (uint32_t i = 0; i < p->conns; i++)
        if (p->h[i] && !gone(p->h[i]))
            return false;
    return true;
}

static void let_go(struct prod *p)
{
    for (uint32_t i = 0; i < p->conns; i++)
        if (p->h[i] && !gone(p->h[i]) && (W.healing || chance(500)))
            handle_release(p->h[i], ROWS_UNKNOWN);
    p->over = all_gone(p);
}

static void give_up(struct prod *p)
{
    struct local_msg m = {.type = LOCAL_ABORT};
    struct handle *h = p->h[0];

    p->aborts = false;
    trace("%s: engine gives room %llu up", p->d->conf->name,
        (unsigned long long)p->room);
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
        m.abort.text = span_str("the engine gave up");
        econn_send(h->c, &m, NULL);
    }
}

/* True if a connection has seen the end. If the owner has to announce again
 * only its own view counts. */
static bool saw_end(const struct prod *p)
{
    for (uint32_t i = 0; i < (p->must_succeed ? 1 : p->conns); i++)
        if (p->h[i] && p->h[i]->ended)
            return true;
    return false;
}

bool prod_saw_done(const struct prod *p)
{
    for (uint32_t i = 0; i < p->conns; i++)
        if (p->h[i] && p->h[i]->seen_done)
            return true;
    return false;
}

/* True if committed rows have not been consumed. A unit that is not full is not
 * sent, and a block is released as a whole, so some rows do not count. */
static bool waits_for_consumer(const struct prod *p)
{
    const struct cons *c = p->paced;
    uint32_t first, rows, slack = 2 * 128;

    if (p->piece == 0 || p->piece >= p->pieces)
        return false;
    piece_of(p, p->piece, &first, &rows);
    while (c->again)
        c = c->again;
    return first > (c->h[0] ? c->h[0]->given : 0) + slack;
}

static void prod_acts(struct prod *p)
{
    struct handle *h = p->h[0];

    for (uint32_t i = 1; i < p->conns; i++)
        if (!p->h[i] && (p->announced || p->early) && !saw_end(p) &&
            chance(300))
            bind_further(p, i);
    if (!h) {
        if (!p->led || p->led->over)
            bind_first(p);
        return;
    }
    if (h->refused || saw_end(p) || gone(h)) {
        /* Without its owner the room is not continued. */
        if (W.healing || chance(400))
            let_go(p);
        return;
    }
    if (p->aborts && W.now_ns >= p->abort_ns) {
        give_up(p);
        return;
    }
    if (p->silent && !W.healing)
        return;
    if (p->final_sent) {
        if ((p->flags & FLAG_OPEN) &&
            (W.is.calm ? cons_room_served(p->room) : W.healing || chance(20)))
            handle_release(h, ROWS_UNKNOWN);
        return;
    }
    if (p->paced && waits_for_consumer(p))
        return;
    h = writer_of_rows(p);
    if (h && p->commit_wrong)
        commit_wrong(p, h);
    if (h)
        commit(p, h);
}

static void prod_tick(void *ptr, uint64_t a, uint64_t b)
{
    struct prod *p = ptr;
    uint64_t pace = W.healing ? 5 * MS : p->pace_ns;

    if (!p->d->alive || (p->life && p->life != p->d->life))
        p->over = true;
    if (p->over)
        return;
    if (!p->life)
        p->life = p->d->life;
    if (chance(W.is.late_rows))
        scribble(p);
    prod_acts(p);
    if (!p->over)
        at_leisure(W.now_ns + 1000 + between(0, 2 * pace), prod_tick, p, 0, 0);
    p->end_ns = W.now_ns;
}

void prod_start(struct prod *p, uint64_t when_ns)
{
    p->start_ns = when_ns;
    at_leisure(when_ns, prod_tick, p, 0, 0);
}

/* True if the engine announces once more. */
static bool comes_again(struct prod *p, enum err e)
{
    bool place = e == ERR_BUSY || e == ERR_QUOTA || e == ERR_NO_BLOCKS;

    p->refused |= e ? UINT32_C(1) << e : 0;
    return p->insists ? place
                      : e == ERR_BUSY && (p->patient || p->must_succeed);
}

void prod_answer(struct handle *h, uint32_t type, const struct local_answer *a)
{
    W.from = h->prod->draws;
    HOLDS(a->err == OK || !h->prod->must_succeed || a->err == ERR_BUSY ||
              h->prod->insists ||
              type == LOCAL_COMMIT, /* the room may have ended meanwhile */
        "a healed world serves", "%s room %llu: %s is refused: %.*s",
        h->prod->d->conf->name, (unsigned long long)h->prod->room,
        local_name((enum local_type)type), (int)a->text.len,
        (const char *)a->text.p);
    if (type == LOCAL_ANNOUNCE && comes_again(h->prod, a->err)) {
        h->prod->h[0] = NULL; /* tries once more */
        h->prod->announced = false;
    }
    if (a->err && (type == LOCAL_ANNOUNCE || type == LOCAL_ATTACH)) {
        h->refused = true;
        h->err = a->err;
        if (h->c->handles[h->cell] == h)
            h->c->handles[h->cell] = NULL;
    }
}

/* Does what the reason advises: encodes the rows again. */
static void announce_again(struct prod *p)
{
    struct prod *n = prod_new(p->d, p->room), *next = n->next;
    struct prod *in_room = n->in_room;
    uint32_t instance = p->key ? p->instance : n->instance;

    *n = *p;
    n->next = next;
    n->in_room = in_room;
    n->instance = instance;
    memset(n->h, 0, sizeof(n->h));
    n->announced = n->final_sent = n->over = false;
    n->piece = 0;
    n->mate = n->led = NULL;
    p->again = n;
    trace(
        "%s encodes %llu again", p->d->conf->name, (unsigned long long)p->room);
    prod_start(n, W.now_ns + between(1, 20) * MS);
}

void prod_event(struct handle *h, const struct local_event *e)
{
    W.from = h->prod->draws;
    if ((e->what & EVENT_FAILED) && e->reason == ERR_NO_BLOCKS &&
        h->prod->must_succeed) {
        HOLDS(h->prod->max_rows > 0,
            "what holds no blocks is not ended for them", "%s room %llu",
            h->prod->d->conf->name, (unsigned long long)h->prod->room);
        if (h->owner)
            announce_again(h->prod);
        return;
    }
    if (e->what & EVENT_HAVE)
        /* another room of the key has the rows, or writes them */
        stop_writing(h->prod);
    if (e->what & EVENT_FAILED)
        HOLDS(!h->prod->must_succeed || e->reason == h->prod->expected ||
                  e->reason == ERR_NO_BLOCKS,
            "a healed world serves", "%s room %llu failed: %s %.*s",
            h->prod->d->conf->name, (unsigned long long)h->prod->room,
            err_name((enum err)e->reason), (int)e->text.len,
            (const char *)e->text.p);
    if (h->owner && (e->what & EVENT_DONE))
        W.succeeded++;
    if (h->owner && (e->what & EVENT_FAILED))
        W.failed++;
}

struct prod *prod_new(struct daemon *d, uint64_t room)
{
    struct prod *p = must_alloc(1, sizeof(*p));

    p->d = d;
    p->draws = W.from;
    p->room = room;
    p->instance = ++W.instances;
    p->conns = 1;
    p->pieces = 1;
    p->storage = STORAGE_COMPACT;
    p->known = true;
    p->required = 1;
    p->pace_ns = MS;
    for (uint32_t i = 0; i < ARRAY_LEN(p->order); i++)
        p->order[i] = i;
    p->next = prods;
    prods = p;
    p->in_room = rooms[room % BUCKETS];
    rooms[room % BUCKETS] = p;
    return p;
}

struct prod *prods_of_room(uint64_t room)
{
    return rooms[room % BUCKETS];
}

void prods_forget(uint64_t for_ns)
{
    struct prod **at = &prods;

    memset(rooms, 0, sizeof(rooms));
    while (*at) {
        struct prod *p = *at;

        if (!p->over || W.now_ns - p->end_ns < for_ns) {
            p->in_room = rooms[p->room % BUCKETS];
            rooms[p->room % BUCKETS] = p;
            at = &p->next;
            continue;
        }
        *at = p->next;
        for (uint32_t i = 0; i < p->conns; i++)
            free(p->h[i]);
        free(p);
    }
}

struct prod *prods_all(void)
{
    return prods;
}

bool prods_over(void)
{
    for (struct prod *p = prods; p; p = p->next)
        if (!p->over)
            return false;
    return true;
}

const char *prods_left(void)
{
    static char text[400];
    size_t n = 0;

    text[0] = 0;
    for (struct prod *p = prods; p && n < 300; p = p->next)
        if (!p->over)
            n += (size_t)snprintf(text + n, sizeof(text) - n, " %s:%llu",
                p->d->conf->name, (unsigned long long)p->room);
    return text;
}

void prods_daemon_gone(struct daemon *d)
{
    for (struct prod *p = prods; p; p = p->next)
        if (p->d == d && p->life)
            p->over = true;
}

struct handle *prod_writer(struct daemon *d, uint32_t pool, uint32_t block)
{
    for (struct prod *p = prods; p; p = p->next)
        for (uint32_t i = 0;
             p->d == d && p->life == d->life && p->pool == pool && i < p->conns;
             i++) {
            struct handle *h = p->h[i];

            if (!h || !h->may_write || h->c->dead || h->c->bye)
                continue;
            for (uint32_t k = 0; k < h->runs; k++)
                if (block >= h->run[k].block &&
                    block - h->run[k].block < h->run[k].blocks)
                    return h;
        }
    return NULL;
}
