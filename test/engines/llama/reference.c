/* reference.c - llama.cpp unsplit, as libmtmd's own examples do it: for each
 * line REQUEST IMAGE[,IMAGE...] PROMPT the tokens, and all logits in a file.
 *
 *     reference MODEL MMPROJ BATCH PREDICT LOGITS
 *
 * With BATCHED set pictures are encoded by the batch calls, as llama-server
 * does. BESIDE names a file: between the first batch's encoding and its use
 * each character in there is another slot's picture, answered by a line. What
 * the split hosts and the preloaded library are compared with. */
#include <llama.h>
#include <mtmd-helper.h>
#include <mtmd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIE(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))

static struct llama_context *context;
static mtmd_context *mtmd;
static int batch_max, predict;

static void quiet(enum ggml_log_level level, const char *text, void *data)
{
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static void one_token(llama_token t, llama_pos past)
{
    struct llama_batch_ext *b = llama_batch_ext_init(context);
    llama_pos pos[4] = {past, past, past, 0};
    int32_t at = llama_batch_ext_add_token(b, 0, t);

    llama_batch_ext_set_pos(b, at, pos);
    llama_batch_ext_set_output_logits(b, at, true);
    if (llama_process(context, LLAMA_PROCESS_TYPE_DECODE, b))
        DIE("decode failed");
    llama_batch_ext_free(b);
}

static void greedy(llama_pos past, FILE *logits)
{
    const struct llama_vocab *v =
        llama_model_get_vocab(llama_get_model(context));
    int n = llama_vocab_n_tokens(v);

    for (int i = 0; i < predict; i++) {
        const float *l = llama_get_logits_ith(context, -1);
        llama_token best = 0;

        for (int k = 1; k < n; k++)
            if (l[k] > l[best])
                best = k;
        fwrite(l, sizeof *l, (size_t)n, logits);
        printf(" %d", best);
        one_token(best, past++);
    }
    putchar('\n');
}

/* Does what llama-server's other slots would do beside the first batch. */
static void beside(const mtmd_input_chunk *picture)
{
    const char *name = getenv("BESIDE");
    FILE *said = name ? fopen(name, "r") : NULL;

    if (!said)
        return;
    unsetenv("BESIDE");
    while (fgetc(said) != EOF) {
        mtmd_batch *b = mtmd_batch_init(mtmd);

        if (mtmd_batch_add_chunk(b, picture) || mtmd_batch_encode(b))
            DIE("encode failed");
        mtmd_batch_free(b);
        puts("beside");
        fflush(stdout);
    }
    fclose(said);
}

/* Decodes as llama-server: encodes the pictures as one batch, then decodes
 * chunk by chunk. */
static void batched(const mtmd_input_chunks *chunks, llama_pos *past)
{
    size_t n = mtmd_input_chunks_size(chunks);
    mtmd_batch *b = NULL;

    for (size_t i = 0; i < n; i++) {
        const mtmd_input_chunk *c = mtmd_input_chunks_get(chunks, i);
        float *rows = NULL;

        if (mtmd_input_chunk_get_type(c) == MTMD_INPUT_CHUNK_TYPE_TEXT) {
            if (mtmd_helper_eval_chunk_single(
                    mtmd, context, c, *past, 0, batch_max, i == n - 1, past))
                DIE("text failed");
            continue;
        }
        if (b)
            rows = mtmd_batch_get_output_embd(b, c);
        if (!rows) {
            if (b)
                mtmd_batch_free(b);
            b = mtmd_batch_init(mtmd);
            for (size_t k = i; k < n; k++) {
                const mtmd_input_chunk *d = mtmd_input_chunks_get(chunks, k);

                if (mtmd_input_chunk_get_type(d) !=
                        MTMD_INPUT_CHUNK_TYPE_TEXT &&
                    mtmd_batch_add_chunk(b, d))
                    break;
            }
            if (mtmd_batch_encode(b))
                DIE("encode failed");
            rows = mtmd_batch_get_output_embd(b, c);
            beside(c);
        }
        if (!rows || mtmd_helper_decode_image_chunk(mtmd, context, c, rows,
                         *past, 0, batch_max, past, NULL, NULL))
            DIE("picture failed");
    }
    if (b)
        mtmd_batch_free(b);
}

static void serve(char *line, FILE *logits)
{
    char *state = NULL, *request = strtok_r(line, " ", &state);
    char *images = strtok_r(NULL, " ", &state), *inner = NULL;
    struct mtmd_input_text text = {state, strlen(state), true, true};
    mtmd_input_chunks *chunks = mtmd_input_chunks_init();
    const mtmd_bitmap *pictures[64];
    mtmd_helper_video *video[64];
    llama_pos past = 0;
    size_t n = 0;

    for (char *s = strtok_r(images, ",", &inner); s;
         s = strtok_r(NULL, ",", &inner)) {
        struct mtmd_helper_bitmap_wrapper got =
            mtmd_helper_bitmap_init_from_file(
                mtmd, s, false, mtmd_helper_init_opt_default());

        video[n] = got.video_ctx;
        pictures[n++] = got.bitmap;
    }
    if (mtmd_tokenize(mtmd, chunks, &text, pictures, n))
        DIE("tokenize failed");
    if (getenv("BATCHED"))
        batched(chunks, &past);
    else if (mtmd_helper_eval_chunks(
                 mtmd, context, chunks, 0, 0, batch_max, true, &past))
        DIE("eval failed");
    printf("%s tokens", request);
    greedy(past, logits);
    fflush(stdout);
    llama_memory_seq_rm(llama_get_memory(context), 0, -1, -1);
    mtmd_input_chunks_free(chunks);
    while (n--) {
        mtmd_bitmap_free((mtmd_bitmap *)pictures[n]);
        if (video[n])
            mtmd_helper_video_free(video[n]);
    }
}

int main(int argc, char **argv)
{
    struct mtmd_context_params cp = mtmd_context_params_default();
    struct llama_context_params p = llama_context_default_params();
    struct llama_model *model;
    char *line = NULL;
    size_t size = 0;
    FILE *logits;
    ssize_t n;

    if (argc != 6)
        DIE("usage: reference MODEL MMPROJ BATCH PREDICT LOGITS");
    llama_log_set(quiet, NULL);
    mtmd_helper_log_set(quiet, NULL);
    batch_max = atoi(argv[3]);
    predict = atoi(argv[4]);
    logits = fopen(argv[5], "wb");
    llama_backend_init();
    model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model || !logits)
        DIE("no model, or no file for logits");
    cp.use_gpu = false;
    cp.n_threads = 1;
    cp.print_timings = false;
    cp.warmup = false;
    mtmd = mtmd_init_from_file(argv[2], model, cp);
    p.n_ctx = 4096;
    p.n_batch = p.n_ubatch = (uint32_t)batch_max;
    p.n_threads = p.n_threads_batch = 1;
    context = llama_init_from_model(model, p);
    if (!mtmd || !context)
        DIE("no context");
    while ((n = getline(&line, &size, stdin)) > 0) {
        line[n - 1] = 0;
        serve(line, logits);
    }
    mtmd_free(mtmd);
    llama_free(context);
    llama_model_free(model);
    fclose(logits);
    free(line);
    return 0;
}
