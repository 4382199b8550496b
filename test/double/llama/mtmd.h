/* mtmd.h - the part of libmtmd's interface that our hosts use, as of llama.cpp
 * b11739, for the doubles beside it. Never installed. */
#ifndef DOUBLE_MTMD_H
#define DOUBLE_MTMD_H

#include "llama.h"

typedef struct mtmd_context mtmd_context;
typedef struct mtmd_bitmap mtmd_bitmap;
typedef struct mtmd_image_tokens mtmd_image_tokens;
typedef struct mtmd_input_chunk mtmd_input_chunk;
typedef struct mtmd_input_chunks mtmd_input_chunks;
typedef struct mtmd_batch mtmd_batch;

enum mtmd_input_chunk_type {
    MTMD_INPUT_CHUNK_TYPE_TEXT,
    MTMD_INPUT_CHUNK_TYPE_IMAGE,
    MTMD_INPUT_CHUNK_TYPE_AUDIO
};
typedef struct mtmd_input_text {
    const char *text;
    size_t text_len;
    bool add_special, parse_special;
} mtmd_input_text;
struct mtmd_context_params {
    bool use_gpu, print_timings, warmup;
    int n_threads;
};
struct mtmd_decoder_pos {
    uint32_t t, x, y, z;
};

struct mtmd_context_params mtmd_context_params_default(void);
mtmd_context *mtmd_init_from_file(const char *path, const struct llama_model *m,
    const struct mtmd_context_params p);
void mtmd_free(mtmd_context *c);
bool mtmd_decode_use_non_causal(
    const mtmd_context *c, const mtmd_input_chunk *chunk);
bool mtmd_decode_use_mrope(const mtmd_context *c);
void mtmd_bitmap_free(mtmd_bitmap *b);
int32_t mtmd_tokenize(const mtmd_context *c, mtmd_input_chunks *out,
    const mtmd_input_text *text, const mtmd_bitmap *const *pictures, size_t n);
mtmd_input_chunks *mtmd_input_chunks_init(void);
size_t mtmd_input_chunks_size(const mtmd_input_chunks *c);
const mtmd_input_chunk *mtmd_input_chunks_get(
    const mtmd_input_chunks *c, size_t i);
void mtmd_input_chunks_free(mtmd_input_chunks *c);
enum mtmd_input_chunk_type mtmd_input_chunk_get_type(const mtmd_input_chunk *c);
const llama_token *mtmd_input_chunk_get_tokens_text(
    const mtmd_input_chunk *c, size_t *n);
const mtmd_image_tokens *mtmd_input_chunk_get_tokens_image(
    const mtmd_input_chunk *c);
size_t mtmd_input_chunk_get_n_tokens(const mtmd_input_chunk *c);
const char *mtmd_input_chunk_get_id(const mtmd_input_chunk *c);
llama_pos mtmd_input_chunk_get_n_pos(const mtmd_input_chunk *c);
int32_t mtmd_input_chunk_save(
    const mtmd_input_chunk *c, char *out, size_t size, size_t *len);
mtmd_input_chunk *mtmd_input_chunk_load(const char *p, size_t len);
void mtmd_input_chunk_free(mtmd_input_chunk *c);
size_t mtmd_image_tokens_get_nx(const mtmd_image_tokens *t);
size_t mtmd_image_tokens_get_ny(const mtmd_image_tokens *t);
struct mtmd_decoder_pos mtmd_image_tokens_get_decoder_pos(
    const mtmd_image_tokens *t, llama_pos first, size_t i);
int32_t mtmd_encode_chunk(mtmd_context *c, const mtmd_input_chunk *chunk);
float *mtmd_get_output_embd(mtmd_context *c);
mtmd_batch *mtmd_batch_init(mtmd_context *c);
void mtmd_batch_free(mtmd_batch *b);
int32_t mtmd_batch_add_chunk(mtmd_batch *b, const mtmd_input_chunk *chunk);
int32_t mtmd_batch_encode(mtmd_batch *b);
float *mtmd_batch_get_output_embd(mtmd_batch *b, const mtmd_input_chunk *chunk);

#endif
