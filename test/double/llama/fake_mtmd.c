/* fake_mtmd.c - an encoder whose rows are small whole numbers, exact in bf16,
 * that follow from the picture. A picture's file says "NX NY SEED", a sound's
 * "NX NY SEED N", and is cut into N chunks of NX x NY rows; a video's, of N
 * frames, "NX NY SEED -N", and there is a token between two of them.
 *
 *   FAKE_ENCODES  a file that gets one byte for each picture encoded
 *   FAKE_HOLD     a pipe's name: encoding waits until it can be read to its end
 *
 * Helpers call functions that another library may replace, as the real ones
 * do. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define MARK     "<__media__>"
#define IN_BATCH 8

struct mtmd_bitmap {
    int nx, ny, seed, parts;
};

struct mtmd_image_tokens {
    int nx, ny, seed, mrope;
};

struct mtmd_input_chunk {
    enum mtmd_input_chunk_type type;
    size_t n;
    llama_token *text;
    struct mtmd_image_tokens image;
    char id[80];
};

struct mtmd_input_chunks {
    size_t n;
    struct mtmd_input_chunk *chunk[4096];
};

struct mtmd_context {
    const struct llama_model *model;
    float *rows;
};

struct mtmd_batch {
    mtmd_context *context;
    size_t n;
    const struct mtmd_input_chunk *chunk[IN_BATCH];
    float *rows[IN_BATCH];
};

struct mtmd_context_params mtmd_context_params_default(void)
{
    return (struct mtmd_context_params){.n_threads = 4};
}

mtmd_context *mtmd_init_from_file(const char *path, const struct llama_model *m,
    const struct mtmd_context_params p)
{
    mtmd_context *c = calloc(1, sizeof *c);

    (void)path;
    (void)p;
    c->model = m;
    return c;
}

void mtmd_free(mtmd_context *c)
{
    free(c->rows);
    free(c);
}

bool mtmd_decode_use_non_causal(
    const mtmd_context *c, const mtmd_input_chunk *chunk)
{
    (void)chunk;
    return c->model->both_ways;
}

bool mtmd_decode_use_mrope(const mtmd_context *c)
{
    return c->model->mrope;
}

void mtmd_helper_log_set(ggml_log_callback f, void *data)
{
    (void)f;
    (void)data;
}

struct mtmd_helper_init_opt mtmd_helper_init_opt_default(void)
{
    return (struct mtmd_helper_init_opt){0};
}

struct mtmd_helper_bitmap_wrapper mtmd_helper_bitmap_init_from_file(
    const mtmd_context *c, const char *path, bool placeholder,
    struct mtmd_helper_init_opt o)
{
    mtmd_bitmap *b = calloc(1, sizeof *b);
    FILE *f = fopen(path, "r");
    bool ok =
        f && fscanf(f, "%d %d %d %d", &b->nx, &b->ny, &b->seed, &b->parts) >= 3;

    (void)c;
    (void)placeholder;
    (void)o;
    if (f)
        fclose(f);
    if (!ok)
        free(b);
    return (struct mtmd_helper_bitmap_wrapper){
        ok ? b : NULL, ok && b->parts < 0 ? calloc(1, 1) : NULL};
}

void mtmd_helper_video_free(mtmd_helper_video *v)
{
    free(v);
}

void mtmd_bitmap_free(mtmd_bitmap *b)
{
    free(b);
}

/* chunks */

mtmd_input_chunks *mtmd_input_chunks_init(void)
{
    return calloc(1, sizeof(mtmd_input_chunks));
}

size_t mtmd_input_chunks_size(const mtmd_input_chunks *c)
{
    return c->n;
}

const mtmd_input_chunk *mtmd_input_chunks_get(
    const mtmd_input_chunks *c, size_t i)
{
    return c->chunk[i];
}

void mtmd_input_chunk_free(mtmd_input_chunk *c)
{
    free(c->text);
    free(c);
}

void mtmd_input_chunks_free(mtmd_input_chunks *c)
{
    for (size_t i = 0; i < c->n; i++)
        mtmd_input_chunk_free(c->chunk[i]);
    free(c);
}

static struct mtmd_input_chunk *chunk_new(mtmd_input_chunks *out, size_t n)
{
    struct mtmd_input_chunk *c = calloc(1, sizeof *c);

    out->chunk[out->n++] = c;
    c->n = n;
    return c;
}

static void add_text(mtmd_input_chunks *out, const char *text, size_t len)
{
    struct mtmd_input_chunk *c = chunk_new(out, len);

    c->text = calloc(len, sizeof *c->text);
    for (size_t i = 0; i < len; i++)
        c->text[i] = text[i] % 32;
}

/* Adds chunk k of a picture, a sound or a video. */
static void add_media(
    mtmd_input_chunks *out, const mtmd_bitmap *b, int k, int mrope)
{
    struct mtmd_input_chunk *c = chunk_new(out, (size_t)b->nx * (size_t)b->ny);
    uint64_t h = fake_mix(1, b, sizeof *b);

    c->type = b->parts > 0 ? MTMD_INPUT_CHUNK_TYPE_AUDIO
                           : MTMD_INPUT_CHUNK_TYPE_IMAGE;
    c->image = (struct mtmd_image_tokens){b->nx, b->ny, b->seed + k, mrope};
    for (int i = 0; i < 4; i++)
        snprintf(c->id + 16 * i, 17, "%016llx",
            (unsigned long long)(h = fake_mix(h, &h, sizeof h)));
    if (b->parts < 0)
        snprintf(c->id + 64, 16, "+%d", k);
}

int32_t mtmd_tokenize(const mtmd_context *m, mtmd_input_chunks *out,
    const mtmd_input_text *text, const mtmd_bitmap *const *pictures, size_t n)
{
    const char *at = text->text, *mark;
    size_t used = 0;

    for (; *at; at = mark) {
        mark = strstr(at, MARK);
        size_t len = mark ? (size_t)(mark - at) : strlen(at);

        if (len)
            add_text(out, at, len);
        if (!mark)
            break;
        if (used == n)
            return 1;
        const mtmd_bitmap *b = pictures[used++];

        for (int k = 0; k == 0 || k < abs(b->parts); k++) {
            if (k && b->parts < 0)
                add_text(out, "|", 1);
            add_media(out, b, k, m->model->mrope);
        }
        mark += strlen(MARK);
    }
    return used != n;
}

enum mtmd_input_chunk_type mtmd_input_chunk_get_type(const mtmd_input_chunk *c)
{
    return c->type;
}

const llama_token *mtmd_input_chunk_get_tokens_text(
    const mtmd_input_chunk *c, size_t *n)
{
    *n = c->n;
    return c->text;
}

const mtmd_image_tokens *mtmd_input_chunk_get_tokens_image(
    const mtmd_input_chunk *c)
{
    return c->type == MTMD_INPUT_CHUNK_TYPE_IMAGE ? &c->image : NULL;
}

size_t mtmd_input_chunk_get_n_tokens(const mtmd_input_chunk *c)
{
    return c->n;
}

const char *mtmd_input_chunk_get_id(const mtmd_input_chunk *c)
{
    return c->id;
}

llama_pos mtmd_input_chunk_get_n_pos(const mtmd_input_chunk *c)
{
    const struct mtmd_image_tokens *t = &c->image;

    if (!t->mrope || c->type != MTMD_INPUT_CHUNK_TYPE_IMAGE)
        return (llama_pos)c->n;
    return t->nx > t->ny ? t->nx : t->ny;
}

int32_t mtmd_input_chunk_save(
    const mtmd_input_chunk *c, char *out, size_t size, size_t *len)
{
    *len = sizeof *c;
    if (size < sizeof *c)
        return 1;
    memcpy(out, c, sizeof *c);
    return 0;
}

mtmd_input_chunk *mtmd_input_chunk_load(const char *p, size_t len)
{
    struct mtmd_input_chunk *c = calloc(1, sizeof *c);

    if (len != sizeof *c) {
        free(c);
        return NULL;
    }
    memcpy(c, p, len);
    c->text = NULL;
    return c;
}

size_t mtmd_image_tokens_get_nx(const mtmd_image_tokens *t)
{
    return (size_t)t->nx;
}

size_t mtmd_image_tokens_get_ny(const mtmd_image_tokens *t)
{
    return (size_t)t->ny;
}

struct mtmd_decoder_pos mtmd_image_tokens_get_decoder_pos(
    const mtmd_image_tokens *t, llama_pos first, size_t i)
{
    return (struct mtmd_decoder_pos){.t = (uint32_t)first,
        .x = (uint32_t)first + (uint32_t)i % (uint32_t)t->nx,
        .y = (uint32_t)first + (uint32_t)i / (uint32_t)t->nx,
        .z = t->mrope == 2};
}

/* encoding */

void fake_hold(const char *variable)
{
    const char *pipe = getenv(variable);
    FILE *f = pipe ? fopen(pipe, "r") : NULL;

    if (f) {
        while (fgetc(f) != EOF)
            ;
        fclose(f);
    }
}

static void held(void)
{
    const char *count = getenv("FAKE_ENCODES");
    FILE *f = count ? fopen(count, "a") : NULL;

    if (f) {
        fputc('.', f);
        fclose(f);
    }
    fake_hold("FAKE_HOLD");
}

static float *rows_of(const mtmd_context *m, const mtmd_input_chunk *c)
{
    size_t width = (size_t)m->model->width;
    float *rows = calloc(c->n * width, sizeof *rows);

    for (size_t i = 0; i < c->n * width; i++)
        rows[i] = (float)((i * 31 + (size_t)c->image.seed * 7) % 251);
    return rows;
}

int32_t mtmd_encode_chunk(mtmd_context *m, const mtmd_input_chunk *c)
{
    held();
    free(m->rows);
    m->rows = rows_of(m, c);
    return 0;
}

float *mtmd_get_output_embd(mtmd_context *m)
{
    return m->rows;
}

mtmd_batch *mtmd_batch_init(mtmd_context *m)
{
    mtmd_batch *b = calloc(1, sizeof *b);

    b->context = m;
    return b;
}

void mtmd_batch_free(mtmd_batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        free(b->rows[i]);
    free(b);
}

int32_t mtmd_batch_add_chunk(mtmd_batch *b, const mtmd_input_chunk *c)
{
    if (c->type == MTMD_INPUT_CHUNK_TYPE_TEXT)
        return 1;
    if (b->n == IN_BATCH)
        return 2;
    b->chunk[b->n++] = c;
    return 0;
}

int32_t mtmd_batch_encode(mtmd_batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        held();
        b->rows[i] = rows_of(b->context, b->chunk[i]);
    }
    return b->n == 0;
}

float *mtmd_batch_get_output_embd(mtmd_batch *b, const mtmd_input_chunk *c)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->chunk[i] == c)
            return b->rows[i];
    return NULL;
}

/* helpers */

int32_t mtmd_helper_decode_image_chunk(mtmd_context *m, struct llama_context *c,
    const mtmd_input_chunk *chunk, float *rows, llama_pos past,
    llama_seq_id seq, int32_t n_batch, llama_pos *new_past,
    mtmd_helper_post_decode_callback f, void *data)
{
    struct llama_batch_ext *b = llama_batch_ext_init(c);
    size_t width = (size_t)m->model->width;
    int32_t e = 0;

    (void)f;
    (void)data;
    llama_set_causal_attn(c, !m->model->both_ways);
    for (size_t i = 0; i < chunk->n && e == 0;) {
        llama_batch_ext_clear(b);
        for (int k = 0; i < chunk->n && k < n_batch; i++, k++) {
            struct llama_embd row = {rows + i * width, 1, width};
            int32_t at = llama_batch_ext_add_embd(b, seq, row);
            llama_pos p = past + (llama_pos)i, pos[4] = {p, p, p, p};

            if (m->model->mrope && chunk->type == MTMD_INPUT_CHUNK_TYPE_IMAGE) {
                struct mtmd_decoder_pos d =
                    mtmd_image_tokens_get_decoder_pos(&chunk->image, past, i);

                pos[0] = (llama_pos)d.t;
                pos[1] = (llama_pos)d.y;
                pos[2] = (llama_pos)d.x;
                pos[3] = (llama_pos)d.z;
            }
            llama_batch_ext_set_pos(b, at, pos);
        }
        e = llama_process(c, LLAMA_PROCESS_TYPE_DECODE, b);
    }
    llama_set_causal_attn(c, true);
    llama_batch_ext_free(b);
    *new_past = past + mtmd_input_chunk_get_n_pos(chunk);
    return e;
}

int32_t mtmd_helper_eval_chunk_single(mtmd_context *m, struct llama_context *c,
    const mtmd_input_chunk *chunk, llama_pos past, llama_seq_id seq,
    int32_t n_batch, bool logits_last, llama_pos *new_past)
{
    struct llama_batch_ext *b;
    int32_t e = 0;

    if (chunk->type != MTMD_INPUT_CHUNK_TYPE_TEXT)
        return mtmd_encode_chunk(m, chunk) ||
               mtmd_helper_decode_image_chunk(m, c, chunk,
                   mtmd_get_output_embd(m), past, seq, n_batch, new_past, NULL,
                   NULL);
    b = llama_batch_ext_init(c);
    for (size_t i = 0; i < chunk->n && e == 0; i++, past++) {
        llama_pos pos[4] = {past, past, past, 0};
        int32_t at;

        llama_batch_ext_clear(b);
        at = llama_batch_ext_add_token(b, seq, chunk->text[i]);
        llama_batch_ext_set_pos(b, at, pos);
        llama_batch_ext_set_output_logits(
            b, at, logits_last && i == chunk->n - 1);
        e = llama_process(c, LLAMA_PROCESS_TYPE_DECODE, b);
    }
    llama_batch_ext_free(b);
    *new_past = past;
    return e;
}

int32_t mtmd_helper_eval_chunks(mtmd_context *m, struct llama_context *c,
    const mtmd_input_chunks *chunks, llama_pos past, llama_seq_id seq,
    int32_t n_batch, bool logits_last, llama_pos *new_past)
{
    for (size_t i = 0; i < chunks->n; i++)
        if (mtmd_helper_eval_chunk_single(m, c, chunks->chunk[i], past, seq,
                n_batch, logits_last && i == chunks->n - 1, &past))
            return 1;
    *new_past = past;
    return 0;
}
