/* consumer.c - a language-only host in the manner of llama.cpp, as a sample of
 * the language side of mmx.h and as a test of it.
 *
 *   consumer --socket PATH [--encoder NAME] [--batch N] [--n-seq-max N]
 * CHUNK... text:N      N tokens image:ROOM  a picture with M-RoPE positions,
 * decoded as its rows land whole:ROOM  a picture with attention both ways: one
 * decode or none
 *
 * What such a host has to do by itself, since it has neither the pixels nor
 * the projector: cut the prompt into windows of n_batch, turn rows into
 * float32, make four planes of positions from the picture's size, which comes
 * in aux (mmx_aux.h: the grid, whose patches are merged by `merge`), and go on
 * by n_pos positions where n_rows rows were read. The context's sequence ids
 * are leased by langd: the request takes one and gives it back. llama_batch and
 * llama_decode are stood in for by a struct with the same members and by
 * model.c's check of every value, position and sequence id.
 *
 * One thread. Rejected: waiting for each picture as a whole before the first
 * decode. Rows are decoded as they land and given back behind, so that a
 * picture larger than the pool passes through it. */
#include "test/sample/model.h"

#include "client/mmx.h"
#include "client/mmx_aux.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_MS 20000
#define REQUEST  "prompt"

struct host {
    mmx *m;
    struct mmx_pool pool;
    struct prompt prompt;
    struct mmx_placeholder places[CHUNKS_MAX]; /* of chunk i, room i */
    mmx_room rooms[CHUNKS_MAX];
    struct model model;
    struct batch batch;
    uint64_t *plan_mem;
    size_t plan_bytes;
    const char *socket, *encoder;
    uint32_t computed; /* positions of the prompt: one for each row or token */
    int32_t n_past;    /* positions of the model */
    uint32_t n_seq_max;
    int space; /* of sequence ids: those of this host's context */
    struct mmx_seq seq;
    uint32_t decodes;
};

static void die(const char *what, int err)
{
    const char *text;
    int advice;
    const char *name = mmx_reason(err, &text, &advice);

    fprintf(stderr, "consumer: %s: %s: %s (%s)\n", what, name, text,
        mmx_advice_name(advice));
    exit(1);
}

static int ok(const char *what, int err)
{
    if (err < 0)
        die(what, err);
    return err;
}

/* Something happens, or the host gives up. Failures end the host here; a
 * server would fail the request and do what the advice says. */
static void wait_event(struct host *h, const char *what)
{
    struct mmx_event ev[16];
    int n = ok(what, mmx_wait(h->m, ev, 16, LIMIT_MS));

    if (n == 0)
        die(what, MMX_E_TIMEOUT);
    for (int i = 0; i < n; i++)
        if (ev[i].what & (MMX_FAILED | MMX_REFUSED | MMX_DOWN))
            die(ev[i].text ? ev[i].text : what, ev[i].reason);
}

static void open_host(struct host *h)
{
    struct mmx_opt o = {.size = sizeof o,
        .role = MMX_LANGD,
        .socket = h->socket,
        .engine = "sample",
        .timeout_ms = LIMIT_MS};

    ok("open", mmx_open(&o, &h->m));
    h->pool.size = sizeof h->pool;
    ok("pool", mmx_pool(h->m, NULL, NULL, LIMIT_MS, &h->pool));
    h->model.n_embd = h->pool.fields[0].elements;
    batch_init(&h->batch, h->model.n_batch, h->model.n_embd);
}

/* All rooms at once, in the order of the prompt: a daemon serves who asked
 * first, so that the picture that is read first never waits for the others.
 * One that must be whole is asked for as a whole. */
static void request_all(struct host *h)
{
    for (uint32_t i = 0; i < h->prompt.count; i++) {
        const struct chunk *c = &h->prompt.chunks[i];
        struct mmx_request q = {.size = sizeof q,
            .id = c->room,
            .pool = h->pool.id,
            .mode = c->causal ? MMX_STREAM : MMX_WHOLE,
            .storage = MMX_COMPACT,
            .encoder = h->encoder};

        if (c->room)
            ok("request", mmx_request(h->m, &q, &h->rooms[i]));
    }
}

/* Sizes come in aux, long before the rows. Returns the rows that may be asked
 * for at once: in stream mode, what can always be resident. */
static uint32_t picture(struct host *h, uint32_t i)
{
    struct chunk *c = &h->prompt.chunks[i];
    struct mmx_look look = {.size = sizeof look};
    uint32_t grid[3], merge = 1;
    int more; /* rows that go on with the aux: this host needs only its grid */

    for (;;) {
        ok("look", mmx_look(h->m, h->rooms[i], &look));
        if (look.total != MMX_UNKNOWN && look.aux_len &&
            (!c->causal || look.stream_rows))
            break;
        wait_event(h, "the picture's size");
    }
    if (mmx_aux_get(look.aux, look.aux_len, MMX_AUX_GRID, grid, 3) != 3 ||
        mmx_aux_get(look.aux, look.aux_len, MMX_AUX_MERGE, &merge, 1) < 0 ||
        !merge)
        die("the aux has no grid of one picture", MMX_E_ITEM_MISMATCH);
    c->nt = grid[0];
    c->ny = grid[1] / merge;
    c->nx = grid[2] / merge;
    more = mmx_aux_rest(
        look.aux, look.aux_len, look.total, h->pool.fields[0].row_bytes);
    ok("aux", more);
    c->length = look.total - (uint32_t)more;
    if ((uint64_t)c->nx * c->ny * c->nt != c->length)
        die("rows are not nx * ny * nt", MMX_E_ITEM_MISMATCH);
    h->places[i] = (struct mmx_placeholder){.offset = h->computed,
        .length = c->length,
        .room = i,
        .elements = h->model.n_embd,
        .storage = MMX_COMPACT,
        .flags = c->causal ? 0 : MMX_INDIVISIBLE};
    return c->causal ? look.stream_rows : c->length;
}

/* The step's plan, in memory that is reused only when its copy is over. */
static const struct mmx_plan *plan_step(
    struct host *h, uint32_t i, uint32_t length)
{
    struct mmx_window w = {.size = sizeof w,
        .computed = h->computed,
        .length = length,
        .rooms = h->prompt.count,
        .elements = h->model.n_embd};
    const struct mmx_plan *plan;
    int64_t need = mmx_plan_bytes(&w, h->places, (int)i + 1, NULL);

    if (need == -MMX_E_TOO_LARGE)
        die("the picture must be decoded at once: raise --batch", (int)need);
    ok("plan", need < 0 ? (int)need : 0);
    if ((size_t)need > h->plan_bytes) {
        free(h->plan_mem);
        h->plan_bytes = (size_t)need;
        h->plan_mem = malloc(h->plan_bytes);
        if (!h->plan_mem)
            die("plan", MMX_E_NO_BLOCKS);
    }
    ok("plan", mmx_plan(&w, h->places, (int)i + 1, h->plan_mem, h->plan_bytes,
                   &plan, NULL));
    return plan;
}

/* Rows into batch.embd, as float32 whatever the pool has. */
static void fill_rows(struct host *h, const struct mmx_plan *plan)
{
    struct mmx_tensor t = {.size = sizeof t,
        .data = h->batch.embd,
        .rows = h->model.n_batch,
        .elements = h->model.n_embd,
        .dtype = "f32"};
    int err;

    while ((err = mmx_plan_run(h->m, plan, h->rooms, NULL, &t, NULL)) ==
           -MMX_E_NOT_READY)
        wait_event(h, "rows");
    ok("rows", err);
}

/* Four planes, one after the other: time, height, width and one that pictures
 * do not use. */
static void fill_positions(
    struct host *h, const struct chunk *c, uint32_t first, uint32_t n)
{
    int32_t *pos = h->batch.pos;

    for (uint32_t j = 0; j < n; j++) {
        uint32_t r = first + j;

        pos[j] = h->n_past + (int32_t)(r / (c->nx * c->ny));
        pos[n + j] = h->n_past + (int32_t)(r / c->nx % c->ny);
        pos[2 * n + j] = h->n_past + (int32_t)(r % c->nx);
        pos[3 * n + j] = 0;
    }
}

static void decode(struct host *h, uint32_t n, bool embd, bool causal)
{
    struct batch *b = &h->batch;
    struct batch view = *b;
    const char *wrong;

    /* As in llama.cpp: a batch holds tokens or rows, never both. */
    if (embd)
        view.token = NULL;
    else
        view.embd = NULL;
    view.n_tokens = (int32_t)n;
    for (uint32_t j = 0; j < n; j++)
        b->seq_id[j] = (int32_t)h->seq.id;
    wrong = model_decode(&h->model, &h->prompt, &view, causal);
    if (wrong) {
        fprintf(stderr, "consumer: decode: %s\n", wrong);
        exit(1);
    }
    h->computed += n;
    h->decodes++;
}

static void walk_text(struct host *h, const struct chunk *c)
{
    for (uint32_t at = 0, n; at < c->length; at += n) {
        n = c->length - at < h->model.n_batch ? c->length - at
                                              : h->model.n_batch;
        for (uint32_t j = 0; j < n; j++) {
            h->batch.token[j] = token_of(h->computed + j);
            h->batch.pos[j] = h->n_past++;
        }
        decode(h, n, false, true);
    }
}

/* Lets rows pass that go on with the aux, of which this host needs the grid
 * alone. They land last: a room that is left before has failed. */
static void pass_rest(struct host *h, uint32_t i)
{
    struct mmx_look look = {.size = sizeof look};

    for (;;) {
        ok("look", mmx_look(h->m, h->rooms[i], &look));
        if (look.seen & MMX_READY)
            return;
        if (h->prompt.chunks[i].causal)
            ok("release", mmx_release(h->m, h->rooms[i], look.rows, 0));
        wait_event(h, "the last rows");
    }
}

static void walk_picture(struct host *h, uint32_t i)
{
    struct chunk *c = &h->prompt.chunks[i];
    uint32_t most = picture(h, i), end = h->computed + c->length;

    if (most > h->model.n_batch)
        most = h->model.n_batch;
    while (h->computed < end) {
        uint32_t left = end - h->computed,
                 first = h->computed - (end - c->length);
        const struct mmx_plan *plan =
            plan_step(h, i, left < most ? left : most);
        uint32_t keep = plan->needs[i].keep;

        fill_rows(h, plan);
        fill_positions(h, c, first, plan->positions);
        decode(h, plan->positions, true, c->causal);
        /* The rows are in the model: their blocks are for the next ones. */
        if (keep != MMX_ALL && c->causal)
            ok("release", mmx_release(h->m, h->rooms[i], keep, 0));
    }
    pass_rest(h, i);
    ok("release", mmx_release(h->m, h->rooms[i], MMX_ALL, 0));
    /* Not by the rows: the next token stands behind the longest side. */
    h->n_past += chunk_n_pos(c);
}

/* One id for the request, kept from its first decode to its last. */
static void take_seq(struct host *h)
{
    struct mmx_ticket t = {.size = sizeof(t), .request = REQUEST};

    h->space = ok("space", mmx_space(h->m, "ctx", h->n_seq_max, LIMIT_MS));
    t.space = h->space;
    ok("ticket", mmx_ticket(h->m, &t));
    ok("ticket", mmx_ticket_wait(h->m, h->space, REQUEST, LIMIT_MS, &h->seq));
    h->model.seq_id = (int32_t)h->seq.id;
}

static void give_seq(struct host *h)
{
    ok("ticket",
        mmx_ticket_release(h->m, h->space, REQUEST, h->seq.generation));
}

static bool arguments(struct host *h, int argc, char **argv)
{
    int i = 1;

    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        if (strcmp(argv[i], "--socket") == 0)
            h->socket = argv[i + 1];
        else if (strcmp(argv[i], "--encoder") == 0)
            h->encoder = argv[i + 1];
        else if (strcmp(argv[i], "--batch") == 0)
            h->model.n_batch = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--n-seq-max") == 0)
            h->n_seq_max = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else
            return false;
    }
    return h->socket && h->model.n_batch && h->n_seq_max &&
           prompt_parse(&h->prompt, argc - i, argv + i);
}

int main(int argc, char **argv)
{
    static struct host h = {
        .encoder = "enc0", .model.n_batch = 512, .n_seq_max = 4};

    if (!arguments(&h, argc, argv)) {
        fputs("usage: consumer --socket PATH [--encoder NAME] [--batch N] "
              "[--n-seq-max N] text:N|image:ROOM|whole:ROOM...\n",
            stderr);
        return 2;
    }
    open_host(&h);
    request_all(&h);
    take_seq(&h);
    for (uint32_t i = 0; i < h.prompt.count; i++)
        if (h.prompt.chunks[i].room)
            walk_picture(&h, i);
        else
            walk_text(&h, &h.prompt.chunks[i]);
    printf("{\"positions\": %u, \"rows\": %u, \"decodes\": %u, "
           "\"n_past\": %d, \"seq_id\": %u}\n",
        h.computed, h.model.rows, h.decodes, h.n_past, h.seq.id);
    give_seq(&h);
    mmx_close(&h.m);
    batch_fini(&h.batch);
    free(h.plan_mem);
    return 0;
}
