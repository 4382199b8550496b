/* data.c - rows on their way. A row is a tag that says whose row it is. A
 * message carries the tags that its memory held when it was read; a landing
 * copies them in two halves with time between, so that changes meanwhile are
 * seen.
 *
 * Eager: the tags are read soon after the message was posted, then the sender
 * is told, and they arrive at any time, even if the endpoint is lost meanwhile.
 * Rendezvous: they are read while they land; the sender is told after that. A
 * message is lost only with its endpoint. */
#include "test/sim/sim.h"

#include "base/check.h"
#include "core/share.h"

/* Time in which it is noticed that a daemon is gone. */
#define LOST_AFTER (400 * MS)

struct place {
    uint32_t segment, row, token, pool, n;
    struct piece pieces[PIECES_MAX];
    bool open;
    /* For a copy: its source. A copy by a GPU is not given up. */
    struct foreign *foreign;
    uint32_t from_pool, from_n;
    struct piece from[PIECES_MAX];
    bool by_gpu;
};

struct message {
    struct daemon *from, *to;
    uint32_t from_life, to_life, k, to_k, token;
    bool rendezvous, read, done, lost, arrived;
    bool again; /* a repetition */
    uint32_t rows;
    struct send_batch b;
    uint8_t header[DATA_HEADER_MAX];
    uint32_t header_len;
    uint8_t *said; /* for a copy: the rows' places */
    uint64_t *tags;
    struct place *places;
    uint32_t places_count;
    uint32_t refs; /* entries of the queue that name the message */
    struct message *next, **before;
};

static struct message *messages;
static uint32_t messages_count;

uint64_t tag_of(uint32_t instance, uint32_t row)
{
    return (uint64_t)instance << 24 | row;
}

uint32_t tag_instance(uint64_t tag)
{
    return (uint32_t)(tag >> 24);
}

uint32_t tag_row(uint64_t tag)
{
    return (uint32_t)(tag & 0xffffff);
}

uint32_t data_on_the_way(void)
{
    return messages_count;
}

static bool from_lives(const struct message *m)
{
    return m->from->alive && m->from->life == m->from_life;
}

static bool to_lives(const struct message *m)
{
    return m->to->alive && m->to->life == m->to_life;
}

/* True if a connection to the address can be made. */
static bool reaches(const struct shard *s, const struct address *a)
{
    const struct daemon *to = W.daemons[a->to];
    uint8_t ways = s->d->carriers & (uint8_t)~W.shut[s->d->index][a->to];

    return to->alive && to->life == a->life && (ways >> a->carrier & 1);
}

static void link_in(struct message *m)
{
    m->next = messages;
    m->before = &messages;
    if (messages)
        messages->before = &m->next;
    messages = m;
    messages_count++;
}

static void later(struct message *m, uint64_t ns, happening fn)
{
    m->refs++;
    at(W.now_ns + ns, fn, m, 0, 0);
}

static void done_later(void *p, uint64_t a, uint64_t b);

/* An entry of the queue for m is over. */
static void message_put(struct message *m)
{
    if (--m->refs > 0)
        return;
    if (!m->done && from_lives(m)) {
        /* No daemon is left to receive it: the carrier notices that. */
        m->lost = true;
        later(m, between(1, LOST_AFTER), done_later);
        return;
    }
    if (m->next)
        m->next->before = m->before;
    *m->before = m->next;
    messages_count--;
    free(m->said);
    free(m->tags);
    free(m->places);
    free(m);
}

/* source memory */

static void reads_add(struct message *m, uint16_t n)
{
    const struct piece *p = m->b.pieces;

    for (uint32_t i = 0; !m->b.copy && i < m->b.count; i++) {
        const struct daemon *d = m->from;
        uint32_t pool = m->b.from[i].pool;
        uint32_t block_rows = (uint32_t)d->conf->pools[pool].block_rows;

        for (uint32_t k = 0; k < m->b.from[i].pieces; k++, p++)
            for (uint32_t r = 0; r < p->at + p->rows; r += block_rows)
                d->reads[pool][p->block + r / block_rows] =
                    (uint16_t)(d->reads[pool][p->block + r / block_rows] + n);
    }
}

/* Reads rows [first, first + rows) of one segment's memory. */
static void tags_read(
    struct message *m, uint32_t segment, uint32_t first, uint32_t rows)
{
    const struct piece *p = m->b.pieces;
    uint32_t pool = m->b.from[segment].pool, base = 0, at_row = 0;
    uint32_t block_rows = (uint32_t)m->from->conf->pools[pool].block_rows;

    for (uint32_t i = 0; i < segment; i++) {
        p += m->b.from[i].pieces;
        base += m->b.segments[i].rows;
    }
    for (uint32_t k = 0; k < m->b.from[segment].pieces; k++, p++)
        for (uint32_t r = 0; r < p->rows; r++, at_row++)
            if (at_row >= first && at_row < first + rows)
                m->tags[base + at_row] =
                    m->from->tags[pool]
                                 [(uint64_t)p->block * block_rows + p->at + r];
}

/* memory of others of the host */

static void copy_reads(struct place *pl, uint16_t n)
{
    const struct foreign *f = pl->foreign;

    W.copying += n == 1 ? 1 : UINT32_MAX;
    for (uint32_t i = 0; i < pl->from_n; i++) {
        const struct piece *p = &pl->from[i];

        for (uint32_t r = 0; r < p->at + p->rows; r += f->block_rows) {
            uint16_t *reads = &f->reads[p->block + r / f->block_rows];

            *reads = (uint16_t)(*reads + n);
        }
    }
}

/* Reads rows [first, first + rows) of the segment in its encoder's memory. The
 * encoder must still keep them for this, unless it is dead. */
static void copy_read(
    struct message *m, const struct place *pl, uint32_t first, uint32_t rows)
{
    const struct foreign *f = pl->foreign;
    bool kept = f->of->alive && f->of->life == f->life;
    uint32_t row = 0, seen = NONE;

    for (uint32_t i = 0; i < pl->from_n; i++)
        for (uint32_t r = 0; r < pl->from[i].rows; r++, row++) {
            uint64_t at_row = (uint64_t)pl->from[i].block * f->block_rows +
                              pl->from[i].at + r;
            uint32_t block = (uint32_t)(at_row / f->block_rows);

            if (row < first || row >= first + rows)
                continue;
            /* Rows that an older run of the encoder sent land only in failed
             * rooms. */
            if (m->from_life != f->life)
                HOLDS(!langd_room_lives(m->to, &m->b.segments[pl->segment]),
                    "rows of another run do not land", "block %u", block);
            else if (kept && block != seen)
                encoded_watch_copy(
                    f->of, pl->from_pool, block, &m->b.segments[pl->segment]);
            seen = block;
            m->tags[pl->row + row] = f->tags[at_row];
        }
}

/* the sender is told */

static void told_quiet(void *ud, const struct data_note *n)
{
    shard_note(ud, n);
}

static void done(struct message *m)
{
    struct shard *s = &m->from->shards[m->k];

    if (m->done)
        return;
    m->done = true;
    if (!from_lives(m))
        return;
    reads_add(m, UINT16_MAX); /* one reader less */
    sending_done(s->sending, m->token, told_quiet, s);
    data_pump(s);
}

static void done_later(void *p, uint64_t a, uint64_t b)
{
    const struct message *m = p;

    if (stands_still(m->from, SHARD(m->k), done_later, p, a, b))
        return;
    done(p);
    message_put(p);
}

/* landing */

static void copy(
    struct message *m, const struct place *pl, uint32_t from, uint32_t rows)
{
    struct daemon *d = m->to;
    const struct segment *seg = &m->b.segments[pl->segment];
    uint32_t block_rows = (uint32_t)d->conf->pools[pl->pool].block_rows;
    uint32_t row = 0, seen = NONE;

    for (uint32_t i = 0; i < pl->n; i++)
        for (uint32_t r = 0; r < pl->pieces[i].rows; r++, row++) {
            uint64_t to = (uint64_t)pl->pieces[i].block * block_rows +
                          pl->pieces[i].at + r;
            uint32_t block = (uint32_t)(to / block_rows);

            if (row < from || row >= from + rows)
                continue;
            if (block != seen)
                langd_watch_landing(d, pl->pool, block, seg);
            seen = block;
            d->tags[pl->pool][to] = m->tags[pl->row + row];
        }
}

static void place_end(struct message *m, struct place *pl, bool ok)
{
    struct shard *s = &m->to->shards[m->to_k];
    struct data_note note, quiet;
    uint32_t quiets;

    pl->open = false;
    if (pl->foreign)
        copy_reads(pl, UINT16_MAX); /* one reader less */
    if (landing_end(s->landing, pl->token, ok, &note, &quiets, &quiet))
        shard_note(s, &note);
    for (; quiets > 0; quiets--)
        shard_note(s, &quiet);
}

/* True if the source can still be read. */
static bool readable(const struct message *m)
{
    return !m->rendezvous || (from_lives(m) && !m->done);
}

static void finish(struct message *m)
{
    for (uint32_t i = 0; i < m->places_count; i++)
        if (m->places[i].open)
            return;
    if (m->rendezvous && !m->lost)
        later(m, delay_us(W.is.data_us), done_later);
}

static void half_two(void *p, uint64_t i, uint64_t b)
{
    struct message *m = p;
    struct place *pl = &m->places[i];
    uint32_t rows = m->b.segments[pl->segment].rows, half = rows / 2;
    bool ok;

    if (stands_still(m->to, SHARD(m->to_k), half_two, p, i, b))
        return;
    ok = readable(m);
    if (!to_lives(m) || !pl->open) {
        message_put(m);
        return;
    }
    if (pl->foreign)
        ok = pl->by_gpu ||
             landing_counts(m->to->shards[m->to_k].landing, pl->token);
    if (ok && pl->foreign)
        copy_read(m, pl, half, rows - half);
    if (ok && m->rendezvous)
        tags_read(m, pl->segment, half, rows - half);
    if (ok)
        copy(m, pl, half, rows - half);
    place_end(m, pl, ok);
    finish(m);
    message_put(m);
}

static void half_one(struct message *m, uint32_t i)
{
    struct place *pl = &m->places[i];
    uint32_t half = m->b.segments[pl->segment].rows / 2;

    if (readable(m)) {
        if (pl->foreign)
            copy_read(m, pl, 0, half);
        if (m->rendezvous)
            tags_read(m, pl->segment, 0, half);
        copy(m, pl, 0, half);
    }
    m->refs++;
    if (m->rendezvous || pl->foreign)
        at(W.now_ns + delay_us(pl->foreign ? W.is.copy_us : W.is.data_us),
            half_two, m, i, 0);
    else
        half_two(m, i, 0);
}

/* Returns the segment's place at the receiver, or NULL if it may not land. */
static struct place *segment_comes(
    struct message *m, uint32_t i, uint32_t row, const struct segment *seg)
{
    struct shard *s = &m->to->shards[m->to_k];
    struct place *pl = &m->places[m->places_count];
    uint32_t bad;
    enum err e = landing_begin(
        s->landing, NONE, seg, &pl->pool, pl->pieces, &pl->n, &pl->token, &bad);

    if (bad != NONE) {
        struct data_note n = {.type = NOTE_LAND_BAD,
            .slot = bad,
            .attempt = seg->attempt,
            .generation = seg->generation};

        shard_note(s, &n);
    }
    if (e != OK) {
        trace("%s drops %llu g%llx a%u rows %u+%u: %s", m->to->conf->name,
            (unsigned long long)seg->room,
            (unsigned long long)seg->generation & 0xffffff, seg->attempt,
            seg->first, seg->rows, err_name(e));
        return NULL;
    }
    pl->segment = i;
    pl->row = row;
    pl->open = true;
    m->places_count++;
    return pl;
}

/* Returns the mapped pool, if it has all of the rows, or NULL. */
static struct foreign *foreign_of(const struct message *m,
    const struct segment *seg, uint32_t from, const struct piece *pieces,
    uint32_t n)
{
    const struct shard *s = &m->to->shards[m->to_k];
    struct foreign *f;
    uint32_t peer, pool;

    if (!landing_peer(s->landing, seg->generation, &peer, &pool))
        return NULL;
    f = W.is.hosts ? s->foreign[peer][from] : NULL;
    if (!f ||
        strcmp(f->layout->text, brain_layout(m->to->brain, pool)->text) != 0)
        return NULL;
    HOLDS(pieces_inside(pieces, n, f->blocks, f->block_rows),
        "pieces lie in their pool", "%u of pool %u", n, from);
    return f;
}

/* A message with the rows' places arrives. */
static void sources_come(struct message *m, const struct segment *segs)
{
    struct reader r = reader_of(m->said, m->b.bytes);
    struct piece pieces[PIECES_MAX];
    struct foreign *f;
    struct place *pl;
    uint32_t n, row = 0;
    uint16_t from;

    for (uint32_t i = 0; i < m->b.count; row += segs[i++].rows) {
        CHECK(source_get(&r, &segs[i], &from, pieces, &n) == OK,
            "pieces of our own");
        f = foreign_of(m, &segs[i], from, pieces, n);
        if (!f)
            trace("%s: pool %u of %s is not mapped", m->to->conf->name, from,
                m->from->conf->name);
        pl = f ? segment_comes(m, i, row, &segs[i]) : NULL;
        if (!pl)
            continue;
        pl->foreign = f;
        pl->from_pool = from;
        pl->from_n = n;
        pl->by_gpu = chance(300);
        memcpy(pl->from, pieces, n * sizeof(*pieces));
        W.copies++;
        copy_reads(pl, 1);
    }
}

void data_purge(const struct shard *s)
{
    for (struct message *m = W.copying ? messages : NULL; m; m = m->next)
        for (uint32_t i = 0;
             to_lives(m) && &m->to->shards[m->to_k] == s && i < m->places_count;
             i++) {
            struct place *pl = &m->places[i];

            if (pl->open && pl->foreign && !pl->by_gpu &&
                !landing_counts(s->landing, pl->token))
                place_end(m, pl, false);
        }
}

static void arrives(void *p, uint64_t a, uint64_t b);

/* Makes a segment name a room in which it must not land. */
static void forge(struct message *m)
{
    for (uint32_t i = 0; i < m->b.count; i++) {
        struct segment *s = &m->b.segments[i];
        uint64_t slots = m->to->conf->limit_rooms;

        if (chance(300))
            s->room += between(1, 2);
        else if (chance(500))
            s->generation += slots * between(1, 3) * (chance(500) ? 1 : -1ull);
        else
            s->attempt += 1;
    }
    m->header_len =
        segments_put(m->header, m->b.segments, m->b.count, SEGMENTS_BYTES);
}

/* The carrier, or a stranger, delivers the message once more, some time
 * later. */
static void comes_again(const struct message *of, bool forged)
{
    struct message *m = must_alloc(1, sizeof(*m));

    *m = *of;
    m->again = m->done = m->lost = m->read = true;
    m->arrived = false;
    m->tags = must_alloc(m->rows, sizeof(uint64_t));
    memcpy(m->tags, of->tags, m->rows * sizeof(uint64_t));
    m->places = must_alloc(m->b.count, sizeof(*m->places));
    m->places_count = 0;
    m->said = NULL;
    m->refs = 0;
    link_in(m);
    if (forged)
        forge(m);
    later(m, between(0, chance(300) ? 5000 : 50) * MS, arrives);
}

/* The message arrives. */
static void arrives(void *p, uint64_t a, uint64_t b)
{
    struct message *m = p;
    struct segment segs[SEGMENTS_MAX];
    enum segment_kind kind;
    uint32_t count, row = 0;

    if (stands_still(m->to, SHARD(m->to_k), arrives, p, a, b))
        return;
    if (!to_lives(m) || !readable(m) || !m->read) {
        message_put(m);
        return;
    }
    if (W.cut[m->from->index][m->to->index]) {
        later(m, 50 * MS, arrives); /* TCP sends it again */
        message_put(m);
        return;
    }
    /* A shard takes its loop's commands before it looks at a message. */
    shard_drain(&m->to->shards[m->to_k]);
    CHECK(segments_get(span_of(m->header, m->header_len), m->b.bytes, &kind,
              segs, &count) == OK &&
              (kind == SEGMENTS_SOURCES) == m->b.copy && count == m->b.count,
        "a header of our own");
    for (uint32_t i = 0; canary("attempt") && i < count; i++)
        langd_any_attempt(m->to, &segs[i]);
    if (m->b.copy)
        sources_come(m, segs);
    for (uint32_t i = 0; !m->b.copy && i < count; row += segs[i++].rows)
        (void)segment_comes(m, i, row, &segs[i]);
    m->arrived = true;
    for (uint32_t i = 0; i < m->places_count; i++)
        half_one(m, i);
    if (m->places_count == 0)
        finish(m);
    if (!m->again && !m->rendezvous && !m->b.copy && !W.healing) {
        if (chance(W.is.stale))
            comes_again(m, false);
        if (chance(W.is.forged))
            comes_again(m, true);
    }
    message_put(m);
}

/* Eager: from now on the carrier has a copy. */
static void eager_read(void *p, uint64_t a, uint64_t b)
{
    struct message *m = p;

    if (stands_still(m->from, SHARD(m->k), eager_read, p, a, b))
        return;
    if (from_lives(m) && !m->done && !m->lost) {
        for (uint32_t i = 0; !m->b.copy && i < m->b.count; i++)
            tags_read(m, i, 0, m->b.segments[i].rows);
        m->read = true;
        later(m, delay_us(W.is.data_us), arrives);
        later(m, delay_us(W.is.data_us), done_later);
    }
    message_put(m);
}

/* sending */

static void say_sources(struct message *m)
{
    struct writer w =
        writer_of(must_alloc(1, SOURCES_BYTES_MAX), SOURCES_BYTES_MAX);
    const struct piece *p = m->b.pieces;

    for (uint32_t i = 0; i < m->b.count; i++) {
        source_put(&w, m->b.from[i].pool, p, m->b.from[i].pieces);
        p += m->b.from[i].pieces;
    }
    CHECK(!w.failed && w.len == m->b.bytes, "%zu of %llu bytes of places",
        w.len, (unsigned long long)m->b.bytes);
    m->said = w.p;
}

static void message_new(
    struct shard *s, const struct send_batch *b, uint32_t token)
{
    const struct address *a = &s->peers[b->peer];
    struct message *m = must_alloc(1, sizeof(*m));

    CHECK(b->address < a->count, "address %u of %u", b->address, a->count);
    m->from = s->d;
    m->from_life = s->d->life;
    m->k = s->k;
    m->to = W.daemons[a->to];
    m->to_life = a->life;
    m->to_k = b->address;
    m->token = token;
    m->b = *b;
    m->header_len = segments_put(m->header, b->segments, b->count,
        b->copy ? SEGMENTS_SOURCES : SEGMENTS_BYTES);
    m->rendezvous = !b->copy && chance(W.is.rendezvous);
    if (b->copy)
        say_sources(m);
    for (uint32_t i = 0; i < b->count; i++)
        m->rows += b->segments[i].rows;
    m->tags = must_alloc(m->rows, sizeof(uint64_t));
    m->places = must_alloc(b->count, sizeof(*m->places));
    m->refs = 1;
    link_in(m);
    reads_add(m, 1);
    if (!reaches(s, a)) {
        later(m, between(1, LOST_AFTER), done_later);
        m->lost = true;
    } else if (m->rendezvous) {
        m->read = true;
        later(m, delay_us(W.is.data_us), arrives);
    } else {
        later(m, delay_us(W.is.data_us / 4), eager_read);
    }
    message_put(m);
}

/* what: the peer, and the carrier that does not reach it */
static void peer_not_there(void *p, uint64_t life, uint64_t what)
{
    struct shard *s = p;
    uint32_t peer = (uint32_t)what;

    if (s->d->alive && s->d->life == life &&
        s->peers[peer].carrier == what >> 32)
        data_break(s, peer);
}

/* A connection that is tried is made or refused, some time later. */
static void try_ends(void *p, uint64_t life, uint64_t what)
{
    struct shard *s = p;
    const struct address *a = &s->peers[what >> 48];
    struct data_note n = {.type = NOTE_PEER_TRIED,
        .peer = (uint32_t)(what >> 48),
        .slot = what >> 32 & 0xffff,
        .attempt = (uint32_t)what};

    if (!s->d->alive || s->d->life != life)
        return;
    if (a->count == 0 || !reaches(s, a) || W.cut[s->d->index][a->to])
        n.rows = TROUBLE_DATA_REFUSED;
    shard_note(s, &n);
}

void data_try(struct shard *s, const struct data_cmd *c)
{
    if (c->a % s->d->shards_count == s->k && c->a < s->peers[c->peer].count)
        at(W.now_ns + (1 + c->attempt % 16) * MS, try_ends, s, s->d->life,
            (uint64_t)c->peer << 48 | (uint64_t)c->a << 32 | c->attempt);
}

void data_pump(struct shard *s)
{
    struct send_batch b;
    uint32_t token;

    while (sending_next(s->sending, &b, &token)) {
        const struct address *a = &s->peers[b.peer];

        message_new(s, &b, token);
        if (!reaches(s, a))
            at(W.now_ns + between(1, 20) * MS, peer_not_there, s, s->d->life,
                (uint64_t)a->carrier << 32 | b.peer);
    }
}

/* what goes wrong */

/* A shard's endpoint to a peer is lost: messages that were read may still
 * arrive, others never will; the sender is soon told of all. */
void data_break(struct shard *s, uint32_t peer)
{
    struct data_note note = {
        .type = NOTE_PEER_BROKEN, .peer = peer, .slot = s->k, .first = s->k};

    trace("%s shard %u: endpoint of peer %u is lost", s->d->conf->name, s->k,
        peer);
    W.broke[s->d->index][s->peers[peer].to] |=
        (uint8_t)(1u << s->peers[peer].carrier);
    for (struct message *m = messages; m; m = m->next)
        if (m->from == s->d && m->from_life == s->d->life && m->k == s->k &&
            m->b.peer == peer && !m->done && !m->lost) {
            m->lost = true;
            later(m, between(0, 5) * MS, done_later);
        }
    sending_broken(s->sending, peer);
    shard_note(s, &note);
}

void data_break_one(void)
{
    uint32_t i = (uint32_t)between(0, W.daemons_count - 1);
    struct daemon *d = W.daemons[i];
    uint32_t peer = (uint32_t)between(0, share_peers(d->conf) - 1);
    struct shard *s = &d->shards[between(0, d->shards_count - 1)];

    if (d->alive && d->role == ROLE_ENCODED && s->peers[peer].count > 0)
        data_break(s, peer);
}

static void daemon_lost(void *p, uint64_t life, uint64_t index)
{
    struct daemon *d = p;

    for (uint32_t k = 0; d->alive && d->life == life && k < d->shards_count;
         k++)
        for (uint32_t peer = 0; peer < LINKS_MAX; peer++) {
            const struct address *a = &d->shards[k].peers[peer];

            if (a->count > 0 && a->to == index &&
                (!W.daemons[index]->alive || W.daemons[index]->life != a->life))
                data_break(&d->shards[k], peer);
        }
}

/* Endpoints to a daemon that died are lost; messages that were read from its
 * memory may still land elsewhere. */
void data_daemon_gone(struct daemon *gone)
{
    for (struct message *m = messages; m; m = m->next)
        for (uint32_t i = 0;
             m->to == gone && m->to_life == gone->life && i < m->places_count;
             i++)
            if (m->places[i].open && m->places[i].foreign) {
                copy_reads(&m->places[i], UINT16_MAX);
                m->places[i].open = false;
            }
    for (uint32_t i = 0; i < W.daemons_count; i++) {
        struct daemon *d = W.daemons[i];

        if (d->role == ROLE_ENCODED && d->alive)
            at(W.now_ns + between(1, 30) * MS, daemon_lost, d, d->life,
                gone->index);
    }
}
