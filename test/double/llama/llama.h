/* llama.h - the part of llama.cpp's interface that our hosts use, as of b11739,
 * for the doubles beside it. Never installed. */
#ifndef DOUBLE_LLAMA_H
#define DOUBLE_LLAMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int32_t llama_pos, llama_token, llama_seq_id;
typedef struct llama_memory_i *llama_memory_t;

enum ggml_log_level { GGML_LOG_LEVEL_NONE, GGML_LOG_LEVEL_ERROR = 4 };
typedef void (*ggml_log_callback)(enum ggml_log_level, const char *, void *);

enum llama_rope_type {
    LLAMA_ROPE_TYPE_NEOX = 2,
    LLAMA_ROPE_TYPE_MROPE = 8,
    LLAMA_ROPE_TYPE_IMROPE = 40
};
enum { LLAMA_LOAD_MODE_NONE };
enum llama_process_type {
    LLAMA_PROCESS_TYPE_ENCODE,
    LLAMA_PROCESS_TYPE_DECODE
};

struct llama_model_params {
    int load_mode;
    bool no_alloc;
};
struct llama_context_params {
    uint32_t n_ctx, n_batch, n_ubatch, n_seq_max;
    int32_t n_threads, n_threads_batch;
};
struct llama_embd {
    const float *data;
    size_t n_rows, n_embd;
};
struct llama_model;
struct llama_vocab;
struct llama_context;
struct llama_batch_ext;

void llama_log_set(ggml_log_callback f, void *data);
void llama_backend_init(void);
struct llama_model_params llama_model_default_params(void);
struct llama_model *llama_model_load_from_file(
    const char *path, struct llama_model_params p);
void llama_model_free(struct llama_model *m);
int32_t llama_model_n_embd_inp(const struct llama_model *m);
enum llama_rope_type llama_model_rope_type(const struct llama_model *m);
const struct llama_vocab *llama_model_get_vocab(const struct llama_model *m);
int32_t llama_vocab_n_tokens(const struct llama_vocab *v);
bool llama_vocab_is_eog(const struct llama_vocab *v, llama_token t);
int32_t llama_token_to_piece(const struct llama_vocab *v, llama_token t,
    char *out, int32_t size, int32_t strip, bool special);
struct llama_context_params llama_context_default_params(void);
struct llama_context *llama_init_from_model(
    struct llama_model *m, struct llama_context_params p);
void llama_free(struct llama_context *c);
const struct llama_model *llama_get_model(const struct llama_context *c);
uint32_t llama_n_seq_max(const struct llama_context *c);
struct llama_batch_ext *llama_batch_ext_init(struct llama_context *c);
void llama_batch_ext_free(struct llama_batch_ext *b);
void llama_batch_ext_clear(struct llama_batch_ext *b);
int32_t llama_batch_ext_add_token(
    struct llama_batch_ext *b, llama_seq_id seq, llama_token t);
int32_t llama_batch_ext_add_embd(
    struct llama_batch_ext *b, llama_seq_id seq, struct llama_embd e);
bool llama_batch_ext_set_pos(
    struct llama_batch_ext *b, int32_t at, const llama_pos *pos);
bool llama_batch_ext_set_output_logits(
    struct llama_batch_ext *b, int32_t at, bool value);
int32_t llama_process(struct llama_context *c, enum llama_process_type type,
    struct llama_batch_ext *b);
float *llama_get_logits_ith(struct llama_context *c, int32_t i);
void llama_set_causal_attn(struct llama_context *c, bool causal);
llama_memory_t llama_get_memory(const struct llama_context *c);
bool llama_memory_seq_rm(
    llama_memory_t m, llama_seq_id seq, llama_pos from, llama_pos to);

#endif
