/* model.h - what stands in for llama.cpp in the sample: a batch, and a decode
 * that computes nothing and believes nothing. */
#ifndef MMX_TEST_SAMPLE_MODEL_H
#define MMX_TEST_SAMPLE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define CHUNKS_MAX 32

/* One part of the prompt: text, or one picture. */
struct chunk {
    uint64_t room;   /* 0: text */
    uint32_t length; /* tokens or rows */
    uint32_t nx, ny, nt;
    bool causal;
};

struct prompt {
    struct chunk chunks[CHUNKS_MAX];
    uint32_t count;
};

/* The members of llama_batch, one sequence id for each place. pos: one number
 * a place with tokens, four planes of n_tokens with rows. */
struct batch {
    int32_t n_tokens;
    int32_t *token;
    float *embd;
    int32_t *pos;
    int32_t *seq_id;
};

struct model {
    uint32_t n_batch, n_embd;
    int32_t seq_id;
    /* What has been decoded so far. */
    uint32_t chunk, at, computed, rows;
    int32_t n_past;
};

bool prompt_parse(struct prompt *p, int argc, char **argv);
void batch_init(struct batch *b, uint32_t n_batch, uint32_t n_embd);
void batch_fini(struct batch *b);

/* NULL, or what is wrong with the batch; the text is static. */
const char *model_decode(struct model *m, const struct prompt *p,
    const struct batch *b, bool causal);

/* Positions that a picture takes: its longest side. */
int32_t chunk_n_pos(const struct chunk *c);
int32_t token_of(uint32_t position);
/* The value that the encode engine of the test wrote there; exact in bf16. */
float value_of(uint64_t room, uint32_t row, uint32_t column);

#endif
