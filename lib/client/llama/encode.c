/* encode.c - mmx-llama-encode, an encode host: llama.cpp's projector without
 * the weights of the language model. For each line of stdin
 *
 *     REQUEST IMAGE[,IMAGE...] PROMPT
 *
 * it announces a room for each picture of the prompt, prints the line that a
 * language host needs (language.c), encodes, and commits. The line carries the
 * rooms' references. With --digest rooms are named by the picture alone, for
 * programs with libmmx-mtmd.so.
 *
 * The model is loaded without its tensors (no_alloc), never with vocab_only:
 * then its rope type is unknown, and pictures silently get positions as of
 * text. One thread. */
#include "digest.h"
#include "host.h"

#include <mmx_aux.h>
#include <mtmd-helper.h>
#include <mtmd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEDIA_MAX 64  /* of one request */
#define OPEN_MAX  512 /* rooms that are not delivered yet */

struct job {
    mtmd_input_chunks *chunks;
    mtmd_bitmap *pictures[MEDIA_MAX];
    int n_pictures;
    struct {
        const mtmd_input_chunk *chunk;
        mmx_room room;
        bool keyed;
    } media[MEDIA_MAX];
    int n_media;
};

static struct host host;
static struct llama_model *model;
static mtmd_context *mtmd;
static const char *tag;            /* --digest */
static struct mmx_reference known; /* of a digest: the secret of its rooms */
static mmx_room undelivered[OPEN_MAX];
static int n_undelivered;
static bool failed;

static int words_of(const mtmd_input_chunk *c, uint8_t *mem, size_t size)
{
    const mtmd_image_tokens *image = mtmd_input_chunk_get_tokens_image(c);
    uint32_t rows = (uint32_t)mtmd_input_chunk_get_n_tokens(c), one = 1;
    uint32_t modality = image ? MMX_IMAGE : MMX_AUDIO;
    uint32_t flags =
        (mtmd_decode_use_non_causal(mtmd, c) ? MMX_AUX_BOTH_WAYS : 0u) |
        (mtmd_decode_use_mrope(mtmd) ? MMX_AUX_MROPE : 0u);
    uint32_t span = (uint32_t)mtmd_input_chunk_get_n_pos(c);
    static char chunk[MMX_AUX_MAX];
    size_t len = 0;
    struct mmx_aux a;

    mmx_aux_begin(&a, mem, size);
    mmx_aux_put(&a, MMX_AUX_MODALITY, &modality, 1);
    mmx_aux_put(&a, MMX_AUX_FLAGS, &flags, 1);
    if (image) {
        uint32_t nx = (uint32_t)mtmd_image_tokens_get_nx(image);
        uint32_t ny = (uint32_t)mtmd_image_tokens_get_ny(image);
        uint32_t grid[3] = {nx && ny ? rows / nx / ny : 0, ny, nx};

        if (grid[0] * nx * ny == rows) { /* no rows between those of patches */
            mmx_aux_put(&a, MMX_AUX_GRID, grid, 3);
            mmx_aux_put(&a, MMX_AUX_MERGE, &one, 1);
        }
    }
    mmx_aux_put(&a, MMX_AUX_SPAN, &span, 1);
    if (mtmd_input_chunk_save(c, chunk, sizeof chunk, &len) != 0)
        return -MMX_E_TOO_LARGE;
    mmx_aux_put(&a, MMX_AUX_CHUNK, chunk, len);
    return mmx_aux_end(&a);
}

/* Gives back the rooms that have ended, at the end all of them. */
static void settle(bool wait)
{
    int left = 0;

    for (int i = 0; i < n_undelivered; i++) {
        mmx_room r = undelivered[i];
        struct mmx_look look = {.size = sizeof look};
        int e = wait ? mmx_wait_room(host.m, r, MMX_DONE, 60000) : 0;

        if (mmx_look(host.m, r, &look) != 0 || e == -MMX_E_STALE)
            continue; /* DONE has released it */
        if (!wait && !(look.seen & (MMX_DONE | MMX_FAILED))) {
            undelivered[left++] = r;
            continue;
        }
        if (look.seen & MMX_FAILED || e < 0) {
            host_say("a room was not delivered: %s",
                mmx_reason(look.reason ? look.reason : e, NULL, NULL));
            failed = true;
        }
        (void)mmx_release(host.m, r, MMX_ALL, 0);
    }
    n_undelivered = left;
}

static int announce(struct job *j, int i)
{
    const mtmd_input_chunk *c = j->media[i].chunk;
    const char *id = mtmd_input_chunk_get_id(c);
    static uint8_t aux[MMX_AUX_MAX];
    uint8_t key[32];
    int len = words_of(c, aux, sizeof aux);
    struct mmx_announce a = {.size = sizeof a,
        .pool = host.pool.id,
        .rows = (uint32_t)mtmd_input_chunk_get_n_tokens(c),
        .batch = (uint16_t)(j->n_media - 1 - i),
        .aux = aux};

    if (len < 0)
        return len;
    a.aux_len = (uint32_t)len;
    if (tag) {
        known.id = digest_room(tag, id);
        a.reference = &known;
        if (digest_key(tag, id, key)) {
            a.key = key;
            a.flags = MMX_KEEP;
            j->media[i].keyed = true;
        }
    }
    return mmx_announce(host.m, &a, &j->media[i].room);
}

/* Prints what a language host needs: tokens of text, rooms and their rows. */
static void print_line(const struct job *j, const char *request)
{
    size_t n = mtmd_input_chunks_size(j->chunks), rows;
    int media = 0;

    printf("%s", request);
    for (size_t i = 0; i < n; i++) {
        const mtmd_input_chunk *c = mtmd_input_chunks_get(j->chunks, i);

        if (mtmd_input_chunk_get_type(c) == MTMD_INPUT_CHUNK_TYPE_TEXT) {
            const llama_token *t = mtmd_input_chunk_get_tokens_text(c, &rows);

            for (size_t k = 0; k < rows; k++)
                printf("%s%d", k ? "," : " text:", t[k]);
        } else {
            struct mmx_reference r = {0};
            char text[MMX_REFERENCE_TEXT] = "";

            (void)mmx_reference(host.m, j->media[media++].room, &r);
            (void)mmx_reference_text(&r, text);
            printf(" room:%s:%zu", text, mtmd_input_chunk_get_n_tokens(c));
        }
    }
    putchar('\n');
    fflush(stdout);
}

/* Encodes one picture into its room, unless its rows are there already. */
static int encode(const struct job *j, int i)
{
    const mtmd_input_chunk *c = j->media[i].chunk;
    uint32_t rows = (uint32_t)mtmd_input_chunk_get_n_tokens(c);
    struct mmx_look look = {.size = sizeof look};
    mmx_room r = j->media[i].room;
    int e;

    if (j->media[i].keyed) {
        e = mmx_wait_room(host.m, r, MMX_GRANTED | MMX_HAVE, 60000);
        if (e == 0)
            e = mmx_look(host.m, r, &look);
        if (e < 0)
            return e;
        if (look.seen & MMX_HAVE) {
            host_say("%u rows are there already", rows);
            return 0;
        }
    }
    if (mtmd_encode_chunk(mtmd, c) != 0) {
        (void)mmx_abort(host.m, r, MMX_E_INTERNAL, "the encoder failed");
        return -MMX_E_INTERNAL;
    }
    e = mmx_wait_room(host.m, r, MMX_GRANTED, 60000);
    if (e == 0)
        e = mmx_scatter_f32(
            host.m, r, NULL, 0, rows, mtmd_get_output_embd(mtmd), 0);
    if (e == 0)
        e = mmx_commit_final(host.m, r, 0, rows, rows, NULL, 0);
    return e;
}

static void undo(struct job *j)
{
    for (int i = 0; i < j->n_pictures; i++)
        mtmd_bitmap_free(j->pictures[i]);
    mtmd_input_chunks_free(j->chunks);
}

/* Reads the pictures and cuts the prompt; NULL, or what is wrong. */
static const char *prepare(struct job *j, char *images, const char *prompt)
{
    struct mtmd_input_text text = {prompt, strlen(prompt), true, true};
    static char wrong[300];
    char *state = NULL;

    j->chunks = mtmd_input_chunks_init();
    for (char *s = strcmp(images, "-") ? strtok_r(images, ",", &state) : NULL;
         s; s = strtok_r(NULL, ",", &state)) {
        if (j->n_pictures == MEDIA_MAX)
            return "too many pictures";
        j->pictures[j->n_pictures] = mtmd_helper_bitmap_init_from_file(
            mtmd, s, false, mtmd_helper_init_opt_default())
                                         .bitmap;
        if (!j->pictures[j->n_pictures++]) {
            j->n_pictures--;
            snprintf(wrong, sizeof wrong, "cannot read %s", s);
            return wrong;
        }
    }
    if (mtmd_tokenize(mtmd, j->chunks, &text, (const mtmd_bitmap **)j->pictures,
            (size_t)j->n_pictures) != 0)
        return "the prompt needs one <__media__> for each picture";
    for (size_t i = 0; i < mtmd_input_chunks_size(j->chunks); i++) {
        const mtmd_input_chunk *c = mtmd_input_chunks_get(j->chunks, i);
        const char *id = mtmd_input_chunk_get_id(c);

        if (mtmd_input_chunk_get_type(c) == MTMD_INPUT_CHUNK_TYPE_TEXT)
            continue;
        if (j->n_media == MEDIA_MAX)
            return "too many pictures";
        if (mtmd_input_chunk_get_n_tokens(c) >
            (size_t)host.pool.blocks * host.pool.block_rows)
            return "a picture has more rows than the pool: more blocks";
        if (tag && !digest_room(tag, id))
            return "a picture has no digest";
        for (int k = 0; tag && k < j->n_media; k++)
            if (!strcmp(id, mtmd_input_chunk_get_id(j->media[k].chunk)))
                return "--digest: one picture is cut into several, or twice "
                       "there";
        j->media[j->n_media++].chunk = c;
    }
    return NULL;
}

/* Serves one line; false if it is wrong or a room failed. */
static bool serve(char *line)
{
    struct job j = {0};
    char *state = NULL, *request = strtok_r(line, " ", &state);
    char *images = strtok_r(NULL, " ", &state), *prompt = state;
    const char *wrong = "a line is REQUEST IMAGE[,IMAGE...] PROMPT";
    int e = 0, opened = 0;

    if (!request || !images || !prompt || !*prompt)
        return host_say("%s", wrong), false;
    wrong = prepare(&j, images, prompt);
    settle(n_undelivered + j.n_media > OPEN_MAX);
    if (!wrong && !host_up(&host))
        wrong = "the daemon is away";
    if (!wrong) {
        (void)mmx_cork(host.m); /* they get their blocks together */
        while (opened < j.n_media && (e = announce(&j, opened)) == 0)
            opened++;
        (void)mmx_uncork(host.m);
        if (e == 0)
            print_line(&j, request);
        for (int i = 0; i < j.n_media && e == 0; i++)
            e = encode(&j, i);
        for (int i = 0; i < opened; i++)
            if (e == 0)
                undelivered[n_undelivered++] = j.media[i].room;
            else
                (void)mmx_release(host.m, j.media[i].room, MMX_ALL, 0);
        if (e < 0)
            wrong = host_reason(&host, e);
    }
    if (wrong) {
        printf("%s error %s\n", request, wrong);
        fflush(stdout);
        host_say("%s: %s", request, wrong);
    }
    undo(&j);
    return !wrong;
}

static const char usage[] =
    "usage: mmx-llama-encode --model GGUF --mmproj GGUF [OPTION...]\n"
    "Reads lines REQUEST IMAGE[,IMAGE...] PROMPT, with <__media__> in\n"
    "the prompt for each image, and prints lines for "
    "mmx-llama-language.\n"
    "  --socket PATH   of mmx-encoded; else $MMX_ENCODED_SOCKET\n"
    "  --pool NAME     else the daemon's first\n"
    "  --digest TAG    rooms named by the pictures and TAG, for\n"
    "                  programs with libmmx-mtmd.so and MMX_MODEL=TAG\n"
    "  --threads N     for the projector (4)\n"
    "  --gpu           projector on the GPU, if llama.cpp has one\n";

static void load(const char *path, const char *mmproj, int threads, bool gpu)
{
    struct llama_model_params mp = llama_model_default_params();
    struct mtmd_context_params cp = mtmd_context_params_default();

    mp.no_alloc = true;
    mp.load_mode = LLAMA_LOAD_MODE_NONE;
    model = llama_model_load_from_file(path, mp);
    if (!model)
        host_die("cannot load %s", path);
    host_fits(&host, llama_model_n_embd_inp(model));
    cp.use_gpu = gpu;
    cp.n_threads = threads;
    cp.print_timings = false;
    cp.warmup = false;
    mtmd = mtmd_init_from_file(mmproj, model, cp);
    if (!mtmd)
        host_die("cannot load %s", mmproj);
}

int main(int argc, char **argv)
{
    const char *path = NULL, *mmproj = NULL, *socket = NULL, *pool = NULL;
    const char *secret = getenv("MMX_SECRET");
    uint32_t threads = 4;
    bool gpu = false;
    const struct host_option options[] = {{"model", .text = &path},
        {"mmproj", .text = &mmproj}, {"socket", .text = &socket},
        {"pool", .text = &pool}, {"digest", .text = &tag},
        {"threads", .number = &threads, .max = 1024}, {"gpu", .flag = &gpu},
        {0}};

    host_name = "mmx-llama-encode";
    host_options(argc, argv, options, usage);
    if (!path || !mmproj)
        host_die("--model and --mmproj are needed: see --help");
    if (tag && secret && *secret && !digest_hex(secret, known.secret, 16))
        host_die("MMX_SECRET is not 32 digits of hex");
    host_quiet();
    host_open(&host, MMX_ENCODED, socket, pool);
    llama_backend_init();
    load(path, mmproj, (int)threads, gpu);
    failed = host_serve(serve) || failed;
    settle(true);
    mtmd_free(mtmd);
    llama_model_free(model);
    mmx_close(&host.m);
    return failed;
}
