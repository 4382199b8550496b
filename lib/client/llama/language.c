/* language.c - mmx-llama-language, a language host: the language model without
 * a projector. Each line of stdin is a prompt as mmx-llama-encode prints it,
 *
 *     REQUEST text:TOKEN,TOKEN... room:REFERENCE:ROWS text:...
 *
 * whose rooms it requests from langd; one that is named again has windows, and
 * with --mode auto or stream each is prefilled as it lands, while the next is
 * encoded. The answer is two lines, "REQUEST tokens N N ..." and "REQUEST text
 * ...", or one, "REQUEST error REASON ...".
 *
 * Where the rows lie as llama.cpp wants them (f32 in one run) they are read in
 * place; otherwise windows of a batch are copied by a plan, which also makes
 * f32 of bf16, and lets a stream go on while a batch is decoded. Positions come
 * from the saved chunk in aux, or from its grid when another engine has
 * encoded. One request at a time, one thread. */
#include "host.h"

#include <mmx_aux.h>
#include <mtmd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOWS_MAX 1024
#define PARTS_MAX   (2 * WINDOWS_MAX + 1)

struct part {
    llama_token *text; /* NULL: this part is a window of a room */
    uint32_t n;        /* number of tokens, or of rows */
    struct mmx_reference named;
    struct part *of;        /* the room's first window. Only that has: */
    mmx_room room;          /* open once the room is requested */
    uint32_t rows, windows; /* of the room */
    uint32_t from, window;  /* of this window */
};

/* What the aux says of a window. */
struct item {
    uint32_t flags, rows, span;
    uint32_t grid[3]; /* merged patches; {0}: not given */
    mtmd_input_chunk *chunk;
};

static struct host host;
static struct llama_model *model;
static struct llama_context *context;
static struct llama_batch_ext *batch;
static const char *encoder = "encoded-0";
static const char *mode = "auto";
static bool stream; /* the present request's rows are read as they land */
static FILE *logits;
static uint32_t batch_max = 512, predict = 64, width;
static bool no_stop, mrope;
static int space;
static float *window;     /* rows of a batch, as f32 */
static const char *wrong; /* why the present request fails */

static bool wrong_is(const char *what)
{
    wrong = what;
    return false;
}

static bool good(int e)
{
    return e >= 0 || wrong_is(host_reason(&host, e));
}

/* text */

static bool decode(void)
{
    return llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch) == 0 ||
           wrong_is("llama.cpp could not decode: the context is full?");
}

/* Decodes tokens after position *past. last: computes logits for the last
 * one. */
static bool put_text(
    uint32_t seq, const llama_token *t, uint32_t n, llama_pos *past, bool last)
{
    for (uint32_t i = 0; i < n;) {
        int32_t at = -1;

        llama_batch_ext_clear(batch);
        for (uint32_t k = 0; i < n && k < batch_max; i++, k++) {
            llama_pos pos[4] = {*past, *past, *past, 0};

            at = llama_batch_ext_add_token(batch, (llama_seq_id)seq, t[i]);
            if (at < 0 || !llama_batch_ext_set_pos(batch, at, pos))
                return wrong_is("llama.cpp refused a token");
            ++*past;
        }
        if (last && i == n)
            llama_batch_ext_set_output_logits(batch, at, true);
        if (!decode())
            return false;
    }
    return true;
}

/* rows */

/* Joins the room's aux with the part of it that is in the room's last rows.
 * *mem: to be freed. */
static bool join_aux(mmx_room r, struct mmx_look *look, uint8_t **mem)
{
    uint32_t row_bytes = host.field->row_bytes;
    int n = mmx_aux_rest(look->aux, look->aux_len, look->total, row_bytes);
    uint32_t more = n > 0 ? (uint32_t)n : 0;
    size_t bytes = (size_t)more * row_bytes, size = look->aux_len + bytes;

    if (n == -MMX_E_TOO_LARGE)
        return wrong_is("the aux claims more rows than the room has");
    if (!more)
        return true; /* read_aux() finds any other error */
    if (stream)
        return wrong_is("more than 32 KiB of aux comes with the last row: not "
                        "with --mode stream");
    *mem = malloc(size + bytes);
    if (!*mem)
        return wrong_is("no memory for the aux");
    look->total -= more;
    n = mmx_gather(host.m, r, NULL, look->total, more, *mem + size, 0);
    if (n == 0)
        n = mmx_aux_join(
            look->aux, look->aux_len, *mem + size, bytes, *mem, size);
    look->aux = *mem;
    look->aux_len = (uint32_t)n;
    return n > 0 || wrong_is("the room's last rows do not go on with its aux");
}

/* Reads the aux of window p. A room that another engine filled is one
 * window. */
static bool read_aux(
    const struct mmx_look *look, const struct part *p, struct item *it)
{
    static uint32_t rows[WINDOWS_MAX], grid[WINDOWS_MAX][3];
    uint32_t merge = 1, modality = 0, windows = p->of->windows;
    const void *chunk = NULL;
    int n = mmx_aux_at(look->aux, look->aux_len, MMX_AUX_CHUNK, &chunk), r, g;

    it->rows = it->span = p->n;
    if (n < 0 ||
        mmx_aux_get(look->aux, look->aux_len, MMX_AUX_FLAGS, &it->flags, 1) < 0)
        return wrong_is("the aux is not one of mmx_aux.h");
    if (it->flags & ~(uint32_t)(MMX_AUX_BOTH_WAYS | MMX_AUX_MROPE))
        return wrong_is("the aux has flags of a newer release");
    if (!!(it->flags & MMX_AUX_MROPE) != mrope)
        return wrong_is(mrope ? "this model has M-RoPE, the encoder's not"
                              : "the encoder's model has M-RoPE, this not");
    (void)mmx_aux_get(look->aux, look->aux_len, MMX_AUX_MERGE, &merge, 1);
    (void)mmx_aux_get(look->aux, look->aux_len, MMX_AUX_MODALITY, &modality, 1);
    r = mmx_aux_get(look->aux, look->aux_len, MMX_AUX_ROWS, rows, WINDOWS_MAX);
    g = mmx_aux_get(
        look->aux, look->aux_len, MMX_AUX_GRID, grid, 3 * WINDOWS_MAX);
    if (look->total != p->of->rows)
        return wrong_is("the room has another number of rows than the prompt");
    if (!merge || (r != (int)windows && (r || windows > 1)) ||
        (r && rows[p->window] != p->n) || (g && g != 3 * (int)windows))
        return wrong_is("the room has other items than the prompt");
    if (g) {
        it->grid[0] = grid[p->window][0];
        it->grid[1] = grid[p->window][1] / merge;
        it->grid[2] = grid[p->window][2] / merge;
    }
    if (n > 0) {
        /* The chunk says positions, or there are none but the rows' order. */
        memset(it->grid, 0, sizeof(it->grid));
        it->chunk = mtmd_input_chunk_load(chunk, (size_t)n);
        if (!it->chunk || mtmd_input_chunk_get_n_tokens(it->chunk) != it->rows)
            return wrong_is("the saved chunk does not fit the rows");
        it->span = (uint32_t)mtmd_input_chunk_get_n_pos(it->chunk);
        return true;
    }
    if (!mrope || modality == MMX_AUDIO)
        return true;
    if ((uint64_t)it->grid[0] * it->grid[1] * it->grid[2] != it->rows)
        return wrong_is("M-RoPE needs a grid that makes the rows");
    it->span = 0;
    for (int i = 0; i < 3; i++)
        if (it->grid[i] > it->span)
            it->span = it->grid[i];
    return true;
}

/* Computes the position of row i in llama.cpp's form: t, y, x, z. */
static void position(
    const struct item *it, llama_pos past, uint32_t i, llama_pos pos[4])
{
    const mtmd_image_tokens *image =
        it->chunk ? mtmd_input_chunk_get_tokens_image(it->chunk) : NULL;

    pos[0] = pos[1] = pos[2] = pos[3] = past + (llama_pos)i;
    if (!mrope)
        return;
    if (image) {
        struct mtmd_decoder_pos d =
            mtmd_image_tokens_get_decoder_pos(image, past, i);

        pos[0] = (llama_pos)d.t;
        pos[1] = (llama_pos)d.y;
        pos[2] = (llama_pos)d.x;
        pos[3] = (llama_pos)d.z;
    } else if (it->grid[0]) {
        uint32_t plane = it->grid[1] * it->grid[2];

        pos[0] = past + (llama_pos)(i / plane);
        pos[1] = past + (llama_pos)(i % plane / it->grid[2]);
        pos[2] = past + (llama_pos)(i % it->grid[2]);
        pos[3] = 0;
    }
}

/* Waits until rows [0, end) may be read; stream mode only. */
static bool landed(mmx_room r, uint32_t end)
{
    struct mmx_event ev[16];
    struct mmx_look look = {.size = sizeof look};

    for (;;) {
        if (!good(mmx_look(host.m, r, &look)))
            return false;
        if (look.state == MMX_FAILED_STATE)
            return good(-look.reason);
        if (look.rows >= end) /* rows of an event: their runs came with it */
            return true;
        (void)mmx_wait(host.m, ev, 16, 1000);
    }
}

/* Returns rows [at, at + n) of the room as f32, or NULL. In stream mode waits
 * for at most `most` rows at a time (0: for all n), copies and releases
 * them. */
static const float *rows_of(
    const struct part *of, uint32_t at, uint32_t n, uint32_t most)
{
    static uint64_t mem[4096];
    struct mmx_placeholder place = {.length = of->rows, .elements = width};
    struct mmx_window w = {.size = sizeof w, .rooms = 1, .elements = width};
    struct mmx_tensor to = {
        .size = sizeof to, .elements = width, .dtype = "f32"};
    const struct mmx_plan *plan;
    struct mmx_view v;
    int e = -MMX_E_SPLIT;

    if (!stream && strcmp(mode, "plan") && !strcmp(host.field->dtype, "f32"))
        e = mmx_view(host.m, of->room, NULL, at, n, &v);
    if (e == 0)
        return v.data;
    for (uint32_t k = 0; k < n; k += w.length) {
        w.computed = at + k;
        to.rows = w.length = most && most < n - k ? most : n - k;
        to.data = window + (size_t)k * width;
        if (stream && !landed(of->room, w.computed + w.length))
            return NULL;
        e = mmx_plan(&w, &place, 1, mem, sizeof mem, &plan, NULL);
        if (e == 0)
            e = mmx_plan_run(
                host.m, plan, &of->room, host.field->name, &to, NULL);
        if (e == 0 && stream && w.computed + w.length < of->rows)
            e = mmx_release(host.m, of->room, w.computed + w.length, 0);
        if (!good(e))
            return NULL;
    }
    return window;
}

static bool put_batch(const struct item *it, const float *rows, uint32_t seq,
    uint32_t at, uint32_t n, llama_pos past)
{
    llama_batch_ext_clear(batch);
    for (uint32_t i = 0; i < n; i++) {
        struct llama_embd e = {rows + (size_t)i * width, 1, width};
        int32_t k = llama_batch_ext_add_embd(batch, (llama_seq_id)seq, e);
        llama_pos pos[4];

        position(it, past, at + i, pos);
        if (k < 0 || !llama_batch_ext_set_pos(batch, k, pos))
            return wrong_is("llama.cpp refused a row");
    }
    return decode();
}

/* Decodes the rows of window p; in stream mode batch by batch as rows land. */
static bool put_rows(const struct part *p, const struct item *it, uint32_t seq,
    llama_pos past, uint32_t most)
{
    bool both_ways = it->flags & MMX_AUX_BOTH_WAYS, ok = true;

    if (both_ways && p->n > batch_max)
        return wrong_is("rows that attend both ways must fit into a batch: "
                        "raise --batch");
    llama_set_causal_attn(context, !both_ways);
    for (uint32_t at = 0; ok && at < p->n;) {
        uint32_t n = p->n - at < batch_max ? p->n - at : batch_max;
        const float *rows = rows_of(p->of, p->from + at, n, most);

        ok = rows && put_batch(it, rows, seq, at, n, past);
        at += n;
    }
    llama_set_causal_attn(context, true);
    return ok;
}

static bool put_window(const struct part *p, uint32_t seq, llama_pos *past)
{
    struct part *of = p->of;
    struct mmx_look look = {.size = sizeof look};
    struct item it = {0};
    uint8_t *joined = NULL;
    bool ok;

    ok = good(mmx_wait_room(host.m, of->room,
             stream ? MMX_LENGTH | MMX_READY : MMX_READY, 60000)) &&
         good(mmx_look(host.m, of->room, &look)) &&
         join_aux(of->room, &look, &joined) && read_aux(&look, p, &it);
    free(joined);
    ok = ok && put_rows(p, &it, seq, *past, look.stream_rows);
    if (it.chunk)
        mtmd_input_chunk_free(it.chunk);
    *past += (llama_pos)it.span;
    if (ok && p->from + p->n == of->rows) {
        ok = good(mmx_release(host.m, of->room, MMX_ALL, 0));
        of->room = (mmx_room){0};
    }
    return ok;
}

/* a request */

/* Reads "text:1,2,3" or "room:REFERENCE:ROWS". *room: the last room read so
 * far; set to this one if the word names a room. */
static bool read_part(struct part *p, char *word, struct part **room)
{
    char *end = word + 5;

    if (!strncmp(word, "room:", 5)) {
        size_t len = strcspn(end, ":");

        if (mmx_reference_read(end, len, &p->named) || end[len] != ':')
            return false;
        p->n = (uint32_t)strtoul(end + len + 1, &end, 10);
        if (!*room || memcmp(&(*room)->named, &p->named, sizeof p->named))
            *room = p;
        p->of = *room;
        p->from = p->of->rows;
        p->of->rows += p->n;
        p->window = p->of->windows++;
        return !*end && p->n && p->window < WINDOWS_MAX;
    }
    if (strncmp(word, "text:", 5))
        return false;
    p->text = calloc(strlen(word), sizeof *p->text);
    while (p->text) {
        p->text[p->n++] = (llama_token)strtol(end, &end, 10);
        if (*end++ != ',')
            return !end[-1];
    }
    return false;
}

static bool ask(struct part *p, int n, const char *request)
{
    struct mmx_request q = {
        .size = sizeof q, .pool = host.pool.id, .encoder = encoder};
    int rooms = 0, e = 0;

    stream = !strcmp(mode, "stream");
    for (int i = 0; i < n; i++) {
        rooms += p[i].of == &p[i];
        stream = stream || (p[i].window && !strcmp(mode, "auto"));
    }
    if (!stream && rooms > 1) { /* they get their blocks together */
        q.group = mmx_room_id(request, strlen(request));
        q.group_size = (uint16_t)rooms;
    }
    q.mode = stream ? MMX_STREAM : MMX_WHOLE;
    (void)mmx_cork(host.m);
    for (int i = 0; i < n && e == 0; i++)
        if (p[i].of == &p[i]) {
            q.reference = &p[i].named;
            q.rows = p[i].rows;
            e = mmx_request(host.m, &q, &p[i].room);
        }
    (void)mmx_uncork(host.m);
    return good(e);
}

static void print_piece(llama_token t)
{
    char piece[256];
    int n = llama_token_to_piece(
        llama_model_get_vocab(model), t, piece, sizeof piece, 0, false);

    for (int i = 0; i < n; i++)
        if (piece[i] == '\n')
            fputs("\\n", stdout);
        else
            putchar(piece[i]);
}

/* Samples greedily until the end of the answer. */
static bool answer(uint32_t seq, llama_pos past, const char *request)
{
    const struct llama_vocab *v = llama_model_get_vocab(model);
    int n_vocab = llama_vocab_n_tokens(v);
    uint32_t n = 0;
    llama_token *out = calloc(predict, sizeof *out);
    bool ok = out != NULL;

    while (ok && n < predict) {
        const float *l = llama_get_logits_ith(context, -1);
        llama_token best = 0;

        for (int k = 1; k < n_vocab; k++)
            if (l[k] > l[best])
                best = k;
        if (logits)
            fwrite(l, sizeof *l, (size_t)n_vocab, logits);
        if (!no_stop && llama_vocab_is_eog(v, best))
            break;
        out[n++] = best;
        ok = n == predict || put_text(seq, &best, 1, &past, true);
    }
    if (ok) {
        printf("%s tokens", request);
        for (uint32_t i = 0; i < n; i++)
            printf(" %d", out[i]);
        printf("\n%s text ", request);
        for (uint32_t i = 0; i < n; i++)
            print_piece(out[i]);
        putchar('\n');
    }
    free(out);
    return ok;
}

/* Prefills and answers, with a sequence id that langd leases. */
static bool run(struct part *p, int n, const char *request)
{
    struct mmx_ticket ticket = {
        .size = sizeof ticket, .space = space, .request = request};
    struct mmx_seq seq;
    llama_pos past = 0;
    bool ok;

    if (!good(mmx_ticket(host.m, &ticket)))
        return false;
    if (!good(mmx_ticket_wait(host.m, space, request, 60000, &seq))) {
        /* langd would still lease an id to the request, for good */
        (void)mmx_ticket_release(host.m, space, request, MMX_UNKNOWN);
        return false;
    }
    ok = (p[n - 1].text || wrong_is("the prompt ends with a picture")) &&
         ask(p, n, request);
    for (int i = 0; ok && i < n; i++)
        ok = p[i].text ? put_text(seq.id, p[i].text, p[i].n, &past, i == n - 1)
                       : put_window(&p[i], seq.id, &past);
    ok = ok && answer(seq.id, past, request);
    for (int i = 0; i < n; i++)
        if (p[i].room.tag)
            (void)mmx_release(host.m, p[i].room, MMX_ALL, 0);
    llama_memory_seq_rm(
        llama_get_memory(context), (llama_seq_id)seq.id, -1, -1);
    (void)mmx_ticket_release(host.m, space, request, seq.generation);
    return ok;
}

static bool serve(char *line)
{
    static struct part part[PARTS_MAX];
    struct part *room = NULL;
    char *state = NULL, *request = strtok_r(line, " ", &state), *word;
    bool ok = true;
    int n = 0;

    wrong = "the line is not one of mmx-llama-encode";
    memset(part, 0, sizeof part);
    if (!request)
        return true;
    while (ok && (word = strtok_r(NULL, " ", &state))) {
        if (n == 0 && !strcmp(word, "error")) {
            ok = wrong_is(state);
            break;
        }
        ok = n < PARTS_MAX && read_part(&part[n++], word, &room);
    }
    ok = ok && n > 0;
    ok = ok && good(host_up(&host));
    if (ok) {
        space = mmx_space(host.m, host_name, llama_n_seq_max(context), 5000);
        ok = good(space) && run(part, n, request);
    }
    if (!ok)
        printf("%s error %s\n", request, wrong);
    fflush(stdout);
    for (int i = 0; i < n; i++)
        free(part[i].text);
    return ok;
}

/* start */

static const char usage[] =
    "usage: mmx-llama-language --model GGUF [OPTION...]\n"
    "Reads lines that mmx-llama-encode prints; answers each.\n"
    "  --socket PATH   of mmx-langd; else $MMX_LANGD_SOCKET\n"
    "  --pool NAME     else the daemon's first\n"
    "  --encoder NAME  of langd's peers, or an address (encoded-0)\n"
    "  --mode MODE     view: rows in place where they can be, plan: copied\n"
    "                  by batches, stream: as they land, also more than the\n"
    "                  pool; auto (default): stream for windows, else view\n"
    "  --batch N       rows or tokens at once (512)\n"
    "  --context N     positions (4096)    --threads N (4)\n"
    "  --predict N     tokens at most (64)\n"
    "  --no-stop       not even at the end of the answer\n"
    "  --logits FILE   appends those of every token, f32\n";

static void load(const char *path, uint32_t positions, uint32_t threads)
{
    struct llama_context_params p = llama_context_default_params();
    enum llama_rope_type rope;

    llama_backend_init();
    model = llama_model_load_from_file(path, llama_model_default_params());
    if (!model)
        host_die("cannot load %s", path);
    host_fits(&host, llama_model_n_embd_inp(model));
    width = (uint32_t)llama_model_n_embd_inp(model);
    rope = llama_model_rope_type(model);
    mrope = rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE;
    p.n_ctx = positions;
    p.n_batch = p.n_ubatch = batch_max;
    p.n_threads = p.n_threads_batch = (int)threads;
    context = llama_init_from_model(model, p);
    window = calloc(batch_max, width * sizeof *window);
    if (!context || !window)
        host_die("no context of %u positions", positions);
    batch = llama_batch_ext_init(context);
}

int main(int argc, char **argv)
{
    const char *path = NULL, *socket = NULL, *pool = NULL, *file = NULL;
    uint32_t positions = 4096, threads = 4;
    bool failed;
    const struct host_option options[] = {{"model", .text = &path},
        {"socket", .text = &socket}, {"pool", .text = &pool},
        {"encoder", .text = &encoder}, {"mode", .text = &mode},
        {"batch", .number = &batch_max, .max = 1 << 20},
        {"context", .number = &positions, .max = 1 << 24},
        {"threads", .number = &threads, .max = 1024},
        {"predict", .number = &predict, .max = 1 << 20},
        {"no-stop", .flag = &no_stop}, {"logits", .text = &file}, {0}};

    host_name = "mmx-llama-language";
    host_options(argc, argv, options, usage);
    if (!path || (strcmp(mode, "auto") && strcmp(mode, "view") &&
                     strcmp(mode, "plan") && strcmp(mode, "stream")))
        host_die("--model is needed, or --mode is unknown: see --help");
    logits = file ? fopen(file, "ab") : NULL;
    if (file && !logits)
        host_die("cannot write %s", file);
    host_quiet();
    host_open(&host, MMX_LANGD, socket, pool);
    load(path, positions, threads);
    failed = host_serve(&host, serve);
    if (logits)
        fclose(logits);
    llama_batch_ext_free(batch);
    llama_free(context);
    llama_model_free(model);
    mmx_close(&host.m);
    free(window);
    return failed;
}
