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
 * libmtmd shows rows of a chunk when all of it is encoded, and cuts a long
 * sound into chunks of some seconds, a video into frames: these are windows of
 * one room, each committed as it is made. What is said of MEDIA_MAX windows
 * fits into an aux, so it has no rest in rows, which come last.
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

#define MEDIA_MAX 1024 /* pictures and windows of one request */
#define OPEN_MAX  1024 /* undelivered rooms at once: cells of a handle */
#define SAME_MS   5000 /* wait for the last delivery of the same picture */
#define ALL       UINT64_MAX

struct item {
    mmx_room room;
    uint64_t id; /* of the room, if the picture names it; otherwise 0 */
    uint32_t rows;
    int first, end; /* the windows job.window[first] to [end - 1] */
    bool keyed, have;
};

struct job {
    mtmd_input_chunks *chunks;
    mtmd_bitmap *pictures[MEDIA_MAX];
    mtmd_helper_video *video[MEDIA_MAX];
    int n_pictures;
    const mtmd_input_chunk *window[MEDIA_MAX];
    int n_windows;
    struct item item[MEDIA_MAX];
    int n_items;
};

static struct host host;
static struct llama_model *model;
static mtmd_context *mtmd;
static const char *tag; /* --digest */
/* has the secret of rooms named by pictures */
static struct mmx_reference known;
static struct item undelivered[OPEN_MAX];
static int n_undelivered;
static bool failed;

/* Writes t, h, w of the chunk's rows; false: the rows are no such grid. */
static bool grid_of(const mtmd_input_chunk *c, uint32_t grid[3])
{
    const mtmd_image_tokens *image = mtmd_input_chunk_get_tokens_image(c);
    uint32_t rows = (uint32_t)mtmd_input_chunk_get_n_tokens(c);

    if (!image)
        return false;
    grid[2] = (uint32_t)mtmd_image_tokens_get_nx(image);
    grid[1] = (uint32_t)mtmd_image_tokens_get_ny(image);
    grid[0] = grid[1] && grid[2] ? rows / grid[1] / grid[2] : 0;
    return grid[0] * grid[1] * grid[2] == rows;
}

/* True if positions need no saved chunk: they follow from the grid. */
static bool follows(const mtmd_input_chunk *c)
{
    const mtmd_image_tokens *image = mtmd_input_chunk_get_tokens_image(c);
    uint32_t rows = (uint32_t)mtmd_input_chunk_get_n_tokens(c), g[3];

    if (!image || !mtmd_decode_use_mrope(mtmd))
        return true;
    if (!grid_of(c, g) ||
        mtmd_input_chunk_get_n_pos(c) != (llama_pos)(g[1] > g[2] ? g[1] : g[2]))
        return false;
    for (uint32_t i = 0; i < rows; i++) {
        struct mtmd_decoder_pos p =
            mtmd_image_tokens_get_decoder_pos(image, 0, i);

        if (p.t || p.y != i / g[2] || p.x != i % g[2] || p.z)
            return false;
    }
    return true;
}

/* True if the chunk continues the item of the last one: a part of one sound or
 * picture, or a frame (DIGEST+NUMBER) of one video. */
static bool goes_on(const mtmd_input_chunk *last, const mtmd_input_chunk *c)
{
    const char *old = mtmd_input_chunk_get_id(last),
               *id = mtmd_input_chunk_get_id(c);
    size_t n = strcspn(id, "+");

    return !tag && n && n == strcspn(old, "+") && !memcmp(old, id, n) &&
           follows(last) && follows(c);
}

static int words_of(
    const struct job *j, const struct item *it, uint8_t *mem, size_t size)
{
    static uint32_t rows[MEDIA_MAX], span[MEDIA_MAX], grid[MEDIA_MAX][3];
    static char chunk[MMX_AUX_MAX];
    const mtmd_input_chunk *c = j->window[it->first];
    size_t n = (size_t)(it->end - it->first), len = 0, grids = 0;
    uint32_t modality =
        mtmd_input_chunk_get_tokens_image(c) ? MMX_IMAGE : MMX_AUDIO;
    uint32_t flags =
        (mtmd_decode_use_non_causal(mtmd, c) ? MMX_AUX_BOTH_WAYS : 0u) |
        (mtmd_decode_use_mrope(mtmd) ? MMX_AUX_MROPE : 0u);
    uint32_t one = 1;
    struct mmx_aux a;

    _Static_assert(
        sizeof rows + sizeof span + sizeof grid <= MMX_AUX_MAX / 3 * 2,
        "what is said of all windows fits into an aux");
    for (size_t i = 0; i < n; i++) {
        c = j->window[it->first + (int)i];
        rows[i] = (uint32_t)mtmd_input_chunk_get_n_tokens(c);
        span[i] = (uint32_t)mtmd_input_chunk_get_n_pos(c);
        grids += grid_of(c, grid[i]);
    }
    mmx_aux_begin(&a, mem, size);
    mmx_aux_put(&a, MMX_AUX_MODALITY, &modality, 1);
    mmx_aux_put(&a, MMX_AUX_FLAGS, &flags, 1);
    if (n > 1)
        mmx_aux_put(&a, MMX_AUX_ROWS, rows, n);
    if (grids == n) {
        mmx_aux_put(&a, MMX_AUX_GRID, grid, 3 * n);
        mmx_aux_put(&a, MMX_AUX_MERGE, &one, 1);
    }
    mmx_aux_put(&a, MMX_AUX_SPAN, span, n);
    if (n == 1 && mtmd_input_chunk_save(c, chunk, sizeof chunk, &len) != 0)
        return -MMX_E_TOO_LARGE;
    if (n == 1)
        mmx_aux_put(&a, MMX_AUX_CHUNK, chunk, len);
    return mmx_aux_end(&a);
}

/* Releases the rooms that have ended. First waits for the undelivered room of
 * this id, so that the id can be used again; ALL: waits for all rooms and
 * releases them. */
static void settle(uint64_t id)
{
    int left = 0;

    for (int i = 0; i < n_undelivered; i++) {
        mmx_room r = undelivered[i].room;
        struct mmx_look look = {.size = sizeof look};
        bool same = id && undelivered[i].id == id;
        int e = id == ALL || same
                    ? mmx_wait_room(host.m, r, MMX_DONE, same ? SAME_MS : 60000)
                    : 0;

        if (mmx_look(host.m, r, &look) != 0 || e == -MMX_E_STALE)
            continue; /* DONE has released the room */
        if (id != ALL && !(look.seen & (MMX_DONE | MMX_FAILED))) {
            undelivered[left++] = undelivered[i];
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
    struct item *it = &j->item[i];
    const char *id = mtmd_input_chunk_get_id(j->window[it->first]);
    static uint8_t aux[MMX_AUX_MAX];
    uint8_t key[32];
    int len = words_of(j, it, aux, sizeof aux);
    struct mmx_announce a = {.size = sizeof a,
        .pool = host.pool.id,
        .rows = it->rows,
        .batch = (uint16_t)(j->n_items - 1 - i),
        .aux = aux};

    if (len < 0)
        return len;
    a.aux_len = (uint32_t)len;
    if (tag) {
        known.id = it->id;
        a.reference = &known;
        if (digest_key(tag, id, key)) {
            a.key = key;
            a.flags = MMX_KEEP;
            it->keyed = true;
        }
    }
    return mmx_announce(host.m, &a, &it->room);
}

/* Prints what a language host needs: tokens of text, rooms and their rows. The
 * windows of one room name it one after another. */
static void print_line(const struct job *j, const char *request)
{
    size_t n = mtmd_input_chunks_size(j->chunks), rows;
    const struct item *it = j->item;
    int window = 0;

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

            it += window++ == it->end;
            (void)mmx_reference(host.m, it->room, &r);
            (void)mmx_reference_text(&r, text);
            printf(" room:%s:%zu", text, mtmd_input_chunk_get_n_tokens(c));
        }
    }
    putchar('\n');
    fflush(stdout);
}

/* Waits until the daemon has opened a room named by its picture. Before that
 * the last room of the name, whose rows are kept, would answer for it. */
static int enter(struct item *it)
{
    struct mmx_look look = {.size = sizeof look};
    int e;

    if (!it->keyed)
        return 0;
    e = mmx_wait_room(host.m, it->room, MMX_GRANTED | MMX_HAVE, 60000);
    if (e == 0)
        e = mmx_look(host.m, it->room, &look);
    it->have = look.seen & MMX_HAVE;
    return e;
}

/* Encodes into a room, window by window, unless its rows are there already. */
static int encode(const struct job *j, const struct item *it)
{
    struct mmx_state s;
    uint32_t at = 0, rows;
    int e = 0;

    if (it->have) {
        host_say("%u rows are there already", it->rows);
        return 0;
    }
    for (int i = it->first; i < it->end && e == 0; i++, at += rows) {
        if (mmx_poll(host.m, &it->room, 1, &s) == MMX_FAILED_STATE)
            /* the request that asked for the room has ended */
            return -s.reason;
        rows = (uint32_t)mtmd_input_chunk_get_n_tokens(j->window[i]);
        if (mtmd_encode_chunk(mtmd, j->window[i]) != 0) {
            (void)mmx_abort(
                host.m, it->room, MMX_E_INTERNAL, "the encoder failed");
            return -MMX_E_INTERNAL;
        }
        e = mmx_wait_room(host.m, it->room, MMX_GRANTED, 60000);
        if (e == 0)
            e = mmx_scatter_f32(host.m, it->room, NULL, at, rows,
                mtmd_get_output_embd(mtmd), 0);
        if (e == 0 && i + 1 < it->end)
            e = mmx_commit(host.m, it->room, at, rows);
        else if (e == 0)
            e = mmx_commit_final(host.m, it->room, at, rows, it->rows, NULL, 0);
    }
    return e;
}

static void undo(struct job *j)
{
    for (int i = 0; i < j->n_pictures; i++) {
        mtmd_bitmap_free(j->pictures[i]);
        if (j->video[i])
            mtmd_helper_video_free(j->video[i]);
    }
    mtmd_input_chunks_free(j->chunks);
}

/* Reads the pictures and cuts the prompt into windows. Returns NULL, or what is
 * wrong. */
static const char *prepare(struct job *j, char *images, const char *prompt)
{
    struct mtmd_input_text text = {prompt, strlen(prompt), true, true};
    struct mtmd_helper_bitmap_wrapper got;
    struct item *it;
    static char wrong[300];
    char *state = NULL;

    j->chunks = mtmd_input_chunks_init();
    for (char *s = strcmp(images, "-") ? strtok_r(images, ",", &state) : NULL;
         s; s = strtok_r(NULL, ",", &state)) {
        if (j->n_pictures == MEDIA_MAX)
            return "too many pictures";
        got = mtmd_helper_bitmap_init_from_file(
            mtmd, s, false, mtmd_helper_init_opt_default());
        if (!got.bitmap) {
            snprintf(wrong, sizeof wrong, "cannot read %s", s);
            return wrong;
        }
        j->video[j->n_pictures] = got.video_ctx;
        j->pictures[j->n_pictures++] = got.bitmap;
    }
    if (mtmd_tokenize(mtmd, j->chunks, &text, (const mtmd_bitmap **)j->pictures,
            (size_t)j->n_pictures) != 0)
        return "the prompt needs one <__media__> for each picture";
    for (size_t i = 0; i < mtmd_input_chunks_size(j->chunks); i++) {
        const mtmd_input_chunk *c = mtmd_input_chunks_get(j->chunks, i);
        const char *id = mtmd_input_chunk_get_id(c);
        int n = j->n_windows;

        if (mtmd_input_chunk_get_type(c) == MTMD_INPUT_CHUNK_TYPE_TEXT)
            continue;
        if (n == MEDIA_MAX)
            return "too many pictures";
        if (tag && !digest_room(tag, id))
            return "a picture has no digest, or TAG over 256 bytes";
        for (int k = 0; tag && k < n; k++)
            if (!strcmp(id, mtmd_input_chunk_get_id(j->window[k])))
                return "--digest: one picture is cut into several, or twice "
                       "there";
        j->window[n] = c;
        if (!n || !goes_on(j->window[n - 1], c)) {
            j->item[j->n_items].id = tag ? digest_room(tag, id) : 0;
            j->item[j->n_items++].first = n;
        }
        it = &j->item[j->n_items - 1];
        it->end = ++j->n_windows;
        it->rows += (uint32_t)mtmd_input_chunk_get_n_tokens(c);
        if (it->rows > (uint64_t)host.pool.blocks * host.pool.block_rows)
            return "a picture has more rows than the pool: more blocks";
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
    settle(n_undelivered + j.n_items > OPEN_MAX ? ALL : 0);
    for (int i = 0; tag && i < j.n_items; i++)
        settle(j.item[i].id);
    if (!wrong && (e = host_up(&host)) != 0)
        wrong = host_reason(&host, e);
    if (!wrong) {
        (void)mmx_cork(host.m); /* they get their blocks together */
        while (opened < j.n_items && (e = announce(&j, opened)) == 0)
            opened++;
        (void)mmx_uncork(host.m);
        for (int i = 0; i < opened && e == 0; i++)
            e = enter(&j.item[i]);
        if (e == 0)
            print_line(&j, request);
        for (int i = 0; i < j.n_items && e == 0; i++)
            e = encode(&j, &j.item[i]);
        for (int i = 0; i < opened; i++)
            if (e == 0)
                undelivered[n_undelivered++] = j.item[i];
            else
                (void)mmx_release(host.m, j.item[i].room, MMX_ALL, 0);
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
    failed = host_serve(&host, serve) || failed;
    settle(ALL);
    mtmd_free(mtmd);
    llama_model_free(model);
    mmx_close(&host.m);
    return failed;
}
