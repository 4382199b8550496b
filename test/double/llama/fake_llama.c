/* fake_llama.c - a language model whose answer depends on everything that it
 * was given: each token, each value of each row, each position, and whether
 * attention was causal, in order. A model's file says "WIDTH MROPE BOTH_WAYS",
 * three numbers; MROPE 2: positions are not those of the grid.
 *
 *   FAKE_ROWS    a file that gets one byte for each row decoded
 *   FAKE_DECODE  a pipe's name: after that, decoding waits until it can be read
 *                to its end
 *   FAKE_LATE    a file: the monotonic clock is ahead by a second for each of
 *                its bytes */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define VOCAB 32
#define SEQS  1

struct llama_context {
    struct llama_model *model;
    uint32_t batch_max;
    bool causal;
    uint64_t state[SEQS];
    float logits[VOCAB];
};

struct entry {
    llama_seq_id seq;
    llama_token token;
    const float *row; /* NULL: a token */
    llama_pos pos[4];
    bool logits;
};

struct llama_batch_ext {
    struct llama_context *context;
    int32_t n;
    struct entry entry[4096];
};

int clock_gettime(clockid_t id, struct timespec *t)
{
    const char *late = getenv("FAKE_LATE");
    int r = (int)syscall(SYS_clock_gettime, id, t);
    struct stat st;

    if (r == 0 && id == CLOCK_MONOTONIC && late && stat(late, &st) == 0)
        t->tv_sec += st.st_size;
    return r;
}

uint64_t fake_mix(uint64_t h, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001b3;
    return h;
}

void llama_log_set(ggml_log_callback f, void *data)
{
    (void)f;
    (void)data;
}

void llama_backend_init(void) {}

struct llama_model_params llama_model_default_params(void)
{
    return (struct llama_model_params){.load_mode = -1};
}

struct llama_model *llama_model_load_from_file(
    const char *path, struct llama_model_params p)
{
    struct llama_model *m = calloc(1, sizeof *m);
    FILE *f = fopen(path, "r");
    bool ok =
        f && fscanf(f, "%d %d %d", &m->width, &m->mrope, &m->both_ways) == 3;

    (void)p;
    if (f)
        fclose(f);
    if (!ok)
        free(m);
    return ok ? m : NULL;
}

void llama_model_free(struct llama_model *m)
{
    free(m);
}

int32_t llama_model_n_embd_inp(const struct llama_model *m)
{
    return m->width;
}

enum llama_rope_type llama_model_rope_type(const struct llama_model *m)
{
    return m->mrope ? LLAMA_ROPE_TYPE_MROPE : LLAMA_ROPE_TYPE_NEOX;
}

const struct llama_vocab *llama_model_get_vocab(const struct llama_model *m)
{
    return (const struct llama_vocab *)m;
}

int32_t llama_vocab_n_tokens(const struct llama_vocab *v)
{
    (void)v;
    return VOCAB;
}

bool llama_vocab_is_eog(const struct llama_vocab *v, llama_token t)
{
    (void)v;
    return t == 0;
}

int32_t llama_token_to_piece(const struct llama_vocab *v, llama_token t,
    char *out, int32_t size, int32_t strip, bool special)
{
    (void)v;
    (void)strip;
    (void)special;
    if (size < 1)
        return -1;
    *out = t == 1 ? '\n' : (char)('a' + t % 26);
    return 1;
}

struct llama_context_params llama_context_default_params(void)
{
    return (struct llama_context_params){.n_batch = 2048, .n_seq_max = SEQS};
}

struct llama_context *llama_init_from_model(
    struct llama_model *m, struct llama_context_params p)
{
    struct llama_context *c = calloc(1, sizeof *c);

    c->model = m;
    c->batch_max = p.n_batch;
    c->causal = true;
    return c;
}

void llama_free(struct llama_context *c)
{
    free(c);
}

const struct llama_model *llama_get_model(const struct llama_context *c)
{
    return c->model;
}

uint32_t llama_n_seq_max(const struct llama_context *c)
{
    (void)c;
    return SEQS;
}

struct llama_batch_ext *llama_batch_ext_init(struct llama_context *c)
{
    struct llama_batch_ext *b = calloc(1, sizeof *b);

    b->context = c;
    return b;
}

void llama_batch_ext_free(struct llama_batch_ext *b)
{
    free(b);
}

void llama_batch_ext_clear(struct llama_batch_ext *b)
{
    b->n = 0;
}

static int32_t add(struct llama_batch_ext *b, struct entry e)
{
    if (b->n >= (int32_t)b->context->batch_max || e.seq < 0 || e.seq >= SEQS)
        return -1;
    b->entry[b->n] = e;
    return b->n++;
}

int32_t llama_batch_ext_add_token(
    struct llama_batch_ext *b, llama_seq_id seq, llama_token t)
{
    return add(b, (struct entry){.seq = seq, .token = t});
}

int32_t llama_batch_ext_add_embd(
    struct llama_batch_ext *b, llama_seq_id seq, struct llama_embd e)
{
    if (e.n_rows != 1 || e.n_embd != (size_t)b->context->model->width)
        return -1;
    return add(b, (struct entry){.seq = seq, .row = e.data});
}

bool llama_batch_ext_set_pos(
    struct llama_batch_ext *b, int32_t at, const llama_pos *pos)
{
    int n = b->context->model->mrope ? 4 : 1;

    memcpy(b->entry[at].pos, pos, (size_t)n * sizeof *pos);
    return true;
}

bool llama_batch_ext_set_output_logits(
    struct llama_batch_ext *b, int32_t at, bool value)
{
    b->entry[at].logits = value;
    return true;
}

int32_t llama_process(struct llama_context *c, enum llama_process_type type,
    struct llama_batch_ext *b)
{
    size_t row = (size_t)c->model->width * sizeof(float);
    const char *count = getenv("FAKE_ROWS");
    FILE *f = count ? fopen(count, "a") : NULL;

    if (type != LLAMA_PROCESS_TYPE_DECODE || b->n == 0)
        return 1;
    for (int32_t i = 0; i < b->n; i++) {
        const struct entry *e = &b->entry[i];
        uint64_t *h = &c->state[e->seq];

        if (f && e->row)
            fputc('.', f);
        *h = e->row ? fake_mix(*h, e->row, row)
                    : fake_mix(*h, &e->token, sizeof e->token);
        *h = fake_mix(*h, e->pos, sizeof e->pos);
        *h = fake_mix(*h, &c->causal, sizeof c->causal);
        for (int k = 0; e->logits && k < VOCAB; k++)
            c->logits[k] = (float)(*h >> k & 0xffff);
    }
    if (f)
        fclose(f);
    if (b->entry[0].row)
        fake_hold("FAKE_DECODE");
    return 0;
}

float *llama_get_logits_ith(struct llama_context *c, int32_t i)
{
    return i == -1 ? c->logits : NULL;
}

void llama_set_causal_attn(struct llama_context *c, bool causal)
{
    c->causal = causal;
}

llama_memory_t llama_get_memory(const struct llama_context *c)
{
    return (llama_memory_t)(uintptr_t)c;
}

bool llama_memory_seq_rm(
    llama_memory_t m, llama_seq_id seq, llama_pos from, llama_pos to)
{
    (void)from;
    (void)to;
    ((struct llama_context *)(uintptr_t)m)->state[seq] = 0;
    return true;
}
