/* mtmd-helper.h - the part of libmtmd's helpers that our hosts use, as of
 * llama.cpp b11739, for the doubles beside it. Never installed. */
#ifndef DOUBLE_MTMD_HELPER_H
#define DOUBLE_MTMD_HELPER_H

#include "mtmd.h"

struct mtmd_helper_init_opt {
    int none;
};
typedef struct mtmd_helper_video mtmd_helper_video;
struct mtmd_helper_bitmap_wrapper {
    mtmd_bitmap *bitmap;
    mtmd_helper_video *video_ctx;
};
struct mtmd_helper_embd_batch;
typedef int32_t (*mtmd_helper_post_decode_callback)(
    const struct mtmd_helper_embd_batch *b, void *data);

void mtmd_helper_log_set(ggml_log_callback f, void *data);
struct mtmd_helper_init_opt mtmd_helper_init_opt_default(void);
struct mtmd_helper_bitmap_wrapper mtmd_helper_bitmap_init_from_file(
    const mtmd_context *c, const char *path, bool placeholder,
    struct mtmd_helper_init_opt o);
void mtmd_helper_video_free(mtmd_helper_video *v);
int32_t mtmd_helper_eval_chunks(mtmd_context *m, struct llama_context *c,
    const mtmd_input_chunks *chunks, llama_pos past, llama_seq_id seq,
    int32_t n_batch, bool logits_last, llama_pos *new_past);
int32_t mtmd_helper_eval_chunk_single(mtmd_context *m, struct llama_context *c,
    const mtmd_input_chunk *chunk, llama_pos past, llama_seq_id seq,
    int32_t n_batch, bool logits_last, llama_pos *new_past);
int32_t mtmd_helper_decode_image_chunk(mtmd_context *m, struct llama_context *c,
    const mtmd_input_chunk *chunk, float *rows, llama_pos past,
    llama_seq_id seq, int32_t n_batch, llama_pos *new_past,
    mtmd_helper_post_decode_callback f, void *data);

#endif
