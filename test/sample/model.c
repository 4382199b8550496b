/* model.c - the stub model: goes through the prompt by itself and holds each
 * batch against what it must be, so that a row that is skipped, repeated,
 * misplaced or of another picture is seen at the decode it is in.
 *
 * Invariant: it keeps its own count of everything; of the host it believes
 * only the pictures' sizes. One thread. */
#include "test/sample/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool prompt_parse(struct prompt *p, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        const char *number = strchr(argv[i], ':');
        struct chunk *c = &p->chunks[p->count];
        uint64_t n = number ? strtoull(number + 1, NULL, 10) : 0;

        if (p->count == CHUNKS_MAX || n == 0)
            return false;
        c->causal = strncmp(argv[i], "whole:", 6) != 0;
        if (strncmp(argv[i], "text:", 5) == 0)
            c->length = (uint32_t)n;
        else if (!c->causal || strncmp(argv[i], "image:", 6) == 0)
            c->room = n;
        else
            return false;
        p->count++;
    }
    return p->count > 0;
}

static void *take(size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (!p) {
        fputs("no memory\n", stderr);
        exit(1);
    }
    return p;
}

void batch_init(struct batch *b, uint32_t n_batch, uint32_t n_embd)
{
    b->token = take(n_batch, sizeof *b->token);
    b->embd = take((size_t)n_batch * n_embd, sizeof *b->embd);
    b->pos = take((size_t)n_batch * 4, sizeof *b->pos);
    b->seq_id = take(n_batch, sizeof *b->seq_id);
}

void batch_fini(struct batch *b)
{
    free(b->token);
    free(b->embd);
    free(b->pos);
    free(b->seq_id);
}

int32_t token_of(uint32_t position)
{
    return (int32_t)(position * 7919 % 32000);
}

float value_of(uint64_t room, uint32_t row, uint32_t column)
{
    uint32_t h =
        (uint32_t)room * 0x9e3779b1u + row * 0x85ebca77u + column * 0xc2b2ae3du;

    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    h ^= h >> 12;
    return (float)(h & 255);
}

int32_t chunk_n_pos(const struct chunk *c)
{
    uint32_t side = c->nx > c->ny ? c->nx : c->ny;

    return (int32_t)(side > c->nt ? side : c->nt);
}

static const char *check_text(
    const struct model *m, const struct batch *b, uint32_t i)
{
    if (!b->token || b->embd)
        return "rows where text stands";
    if (b->token[i] != token_of(m->computed + i))
        return "another token";
    return b->pos[i] == m->n_past + (int32_t)i ? NULL : "position of a token";
}

static const char *check_row(const struct model *m, const struct chunk *c,
    const struct batch *b, uint32_t i)
{
    uint32_t row = m->at + i, n = (uint32_t)b->n_tokens;
    uint32_t x = row % c->nx, y = row / c->nx % c->ny, t = row / c->nx / c->ny;

    if (!b->embd || b->token)
        return "tokens where a picture stands";
    for (uint32_t k = 0; k < m->n_embd; k++)
        if (b->embd[(size_t)i * m->n_embd + k] != value_of(c->room, row, k))
            return "a row that is not the picture's";
    if (b->pos[i] != m->n_past + (int32_t)t ||
        b->pos[n + i] != m->n_past + (int32_t)y ||
        b->pos[2 * n + i] != m->n_past + (int32_t)x || b->pos[3 * n + i] != 0)
        return "position of a row";
    return NULL;
}

const char *model_decode(
    struct model *m, const struct prompt *p, const struct batch *b, bool causal)
{
    const struct chunk *c = &p->chunks[m->chunk];
    uint32_t n = (uint32_t)b->n_tokens;
    const char *wrong = NULL;

    if (m->chunk == p->count || n == 0 || n > m->n_batch ||
        n > c->length - m->at)
        return "size of the batch";
    if (causal != c->causal || (!causal && n != c->length))
        return "a picture with attention both ways in parts";
    for (uint32_t i = 0; i < n && !wrong; i++) {
        wrong = c->room ? check_row(m, c, b, i) : check_text(m, b, i);
        if (b->seq_id[i] != m->seq_id)
            wrong = "another sequence";
    }
    if (wrong)
        return wrong;
    m->computed += n;
    m->at += n;
    if (c->room)
        m->rows += n;
    else
        m->n_past += (int32_t)n;
    if (m->at == c->length) {
        m->n_past += c->room ? chunk_n_pos(c) : 0;
        m->chunk++;
        m->at = 0;
    }
    return NULL;
}
