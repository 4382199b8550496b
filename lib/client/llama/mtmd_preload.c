/* mtmd_preload.c - libmmx-mtmd.so: an unmodified program that uses libmtmd
 * (llama-server, llama-mtmd-cli, ...) gets its pictures' rows from an encode
 * host. Preloaded, or linked before libmtmd:
 *
 *     LD_PRELOAD=libmmx-mtmd.so MMX_ENCODER=encoded-0 llama-server ...
 *
 * Encoding a picture becomes waiting for a room that is named by the picture's
 * digest (digest.h). Whatever goes wrong, libmtmd encodes by itself, and one
 * line on stderr says why:
 *
 *   MMX_ENCODER       name or address of the encoder (encoded-0)
 *   MMX_LANGD_SOCKET  of langd; MMX_POOL: its pool, else the first
 *   MMX_MODEL         tag of the model, as --digest of mmx-llama-encode
 *   MMX_SECRET        of the rooms, as the encode host's: 32 digits of hex
 *   MMX_WAIT_MS       limit of the wait until a picture is announced (300):
 *                     llama-server serves nothing else meanwhile;
 *                     after one that was not the next ones wait a tenth, until
 *                     a picture comes or 30 s have passed. Once as well for
 *                     langd, by the first picture
 *   MMX_ROWS_MS       limit of the wait for announced rows (60000)
 *
 * Rows of single pictures are copied, so that an idle program holds no blocks;
 * those of a batch are read in place, where the pool is f32, until the program
 * frees the batch. A batch of which one picture's rows are missing is encoded
 * here as a whole. A handle of libmmx serves all threads, one of them ours; the
 * lock below guards the list of what is had and the link, and no wait for rows.
 * Rejected: answering libmtmd's tokenizer as well, which would spare the
 * projector but follows its inner types. */
#include "digest.h"

#include <dlfcn.h>
#include <llama.h>
#include <mtmd.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { WAIT_MS = 300, KEEP_MS = 20 };

/* The rows of one chunk: of a batch, or a single one of a context. */
struct have {
    struct have *next;
    const void *owner; /* mtmd_batch or mtmd_context */
    const mtmd_input_chunk *chunk;
    mmx_room room; /* open: requested, or read in place */
    bool open;
    float *copy;       /* NULL: read in place */
    const float *rows; /* NULL: not there yet, or not available */
};

static struct have *first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    mmx *m;
    struct mmx_pool pool;
    uint64_t epoch;
    bool off;  /* rows are never requested again: this program encodes by
                  itself */
    bool away; /* a line has said so */
    int waits; /* threads that step the handle themselves */
    int width;
    /* when a wait for a picture last failed, ms; 0: the last one came */
    int64_t silent;
} link;

static const char *setting(const char *name, const char *other)
{
    const char *s = getenv(name);

    return s && *s ? s : other;
}

static int limit(const char *name, int other)
{
    const char *s = getenv(name);
    int v = s ? atoi(s) : 0;

    return v > 0 ? v : other;
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The function of libmtmd that this library replaces. */
#define REAL(name) ((__typeof__(&(name)))real(#name))

static void *real(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);

    if (!f) {
        fprintf(stderr, "mmx: no %s behind libmmx-mtmd.so\n", name);
        abort();
    }
    return f;
}

/* link */

/* Maps the pool of a restarted daemon, unless rows of its last run may still be
 * read: their map would be removed. Called with the lock held. */
static bool map_pool(uint64_t epoch)
{
    const struct mmx_field *f = &link.pool.fields[0];
    int e;

    for (const struct have *h = first; h; h = h->next)
        if (h->open) {
            fputs("mmx: rows of langd's last run are in use; pictures are "
                  "encoded here\n",
                stderr);
            return false;
        }
    link.pool.size = sizeof link.pool;
    e = mmx_pool(link.m, getenv("MMX_POOL"), NULL, 2000, &link.pool);
    if (e) {
        fprintf(stderr, "mmx: no pool: %s; pictures are encoded here\n",
            mmx_reason(e, NULL, NULL));
        return false;
    }
    link.epoch = epoch;
    if (link.pool.gpu == -1 &&
        (!link.width || (uint32_t)link.width == f->elements) &&
        (!strcmp(f->dtype, "f32") || !strcmp(f->dtype, "bf16") ||
            !strcmp(f->dtype, "f16")))
        return true;
    fprintf(stderr,
        "mmx: rows of pool %s are %s:%u%s, this model's f32, bf16 or f16 of "
        "%d; pictures are encoded here\n",
        link.pool.name, f->dtype, f->elements,
        link.pool.gpu == -1 ? "" : " on a GPU", link.width);
    link.off = true;
    return false;
}

/* Steps the handle while the program asks for no picture. Otherwise it keeps
 * maps of daemons that have ended, and blocks that were lent to others. */
static void *keep(void *unused)
{
    struct mmx_event ev[64];
    struct pollfd p = {.fd = mmx_fd(link.m), .events = POLLIN};

    for (bool busy = false;;) {
        (void)poll(NULL, 0, busy ? KEEP_MS : 0);
        (void)poll(&p, 1, -1);
        pthread_mutex_lock(&lock);
        busy = link.waits > 0;
        if (!busy)
            (void)mmx_step(link.m, ev, 64);
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

static void waits(int more)
{
    pthread_mutex_lock(&lock);
    link.waits += more;
    pthread_mutex_unlock(&lock);
}

/* True if rooms can be requested: connected, with a pool that fits. Called with
 * the lock held. */
static bool up(void)
{
    struct mmx_opt o = {.size = sizeof o,
        .role = MMX_LANGD,
        .engine = "libmmx-mtmd",
        .timeout_ms = 0};
    struct mmx_info info = {.size = sizeof info};
    struct mmx_event ev[64];
    bool ok = false, fresh = false;
    char why[256] = "";
    pthread_t thread;

    if (!link.off && !link.m) {
        int e = mmx_open(&o, &link.m);

        fresh = e == 0;
        link.off = e != 0;
        if (e == 0 && pthread_create(&thread, NULL, keep, NULL) == 0)
            pthread_detach(thread);
        if (e)
            fprintf(stderr, "mmx: %s; pictures are encoded here\n",
                mmx_reason(e, NULL, NULL));
    }
    if (!link.off) {
        while (mmx_step(link.m, ev, 64) > 0)
            ;
        if (mmx_info(link.m, &info) == 0 && !info.up)
            (void)mmx_wait(
                link.m, ev, 64, fresh ? limit("MMX_WAIT_MS", WAIT_MS) : 50);
        ok = mmx_info(link.m, &info) == 0 && info.up;
    }
    if (!ok && !link.off && !link.away) {
        (void)mmx_error_text(link.m, why, sizeof why);
        fprintf(stderr, "mmx: langd is away%s%s; pictures are encoded here\n",
            why[0] ? ": " : "", why);
    }
    link.away = !ok;
    if (ok && info.epoch != link.epoch)
        ok = map_pool(info.epoch);
    return ok;
}

/* rooms */

/* Requests the rows of the entry's picture. True if the request was sent. */
static bool ask(struct have *h)
{
    const char *tag = setting("MMX_MODEL", ""), *id;
    const char *said = setting("MMX_SECRET", "");
    uint8_t key[32];
    struct mmx_reference named = {0};
    struct mmx_request q = {.size = sizeof q,
        .encoder = setting("MMX_ENCODER", "encoded-0"),
        .rows = (uint32_t)mtmd_input_chunk_get_n_tokens(h->chunk)};
    int e;

    if (mtmd_input_chunk_get_type(h->chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT)
        return false;
    id = mtmd_input_chunk_get_id(h->chunk);
    named.id = digest_room(tag, id);
    q.reference = &named;
    if (said[0] && !digest_hex(said, named.secret, 16)) {
        fputs(
            "mmx: MMX_SECRET is not 32 digits of hex; encoding here\n", stderr);
        return false;
    }
    if (digest_key(tag, id, key))
        q.key = key;
    pthread_mutex_lock(&lock);
    if (named.id && up()) {
        q.pool = link.pool.id;
        e = mmx_request(link.m, &q, &h->room);
        h->open = e == 0;
        if (e == -MMX_E_STALE) /* the same run, connected again */
            link.epoch = 0;
        if (e)
            fprintf(
                stderr, "mmx: %s; encoding here\n", mmx_reason(e, NULL, NULL));
    }
    pthread_mutex_unlock(&lock);
    return h->open;
}

/* Releases the entry's room, whose rows are not read any more. */
static void leave(struct have *h)
{
    if (!h->open)
        return;
    (void)mmx_release(link.m, h->room, MMX_ALL, 0);
    pthread_mutex_lock(&lock);
    h->open = false;
    pthread_mutex_unlock(&lock);
}

/* Returns how long to wait for a picture to be announced. */
static int patience(void)
{
    int ms = limit("MMX_WAIT_MS", WAIT_MS);
    bool silent;

    pthread_mutex_lock(&lock);
    silent = link.silent && now_ms() - link.silent < 30000;
    pthread_mutex_unlock(&lock);
    return silent ? ms / 10 + 1 : ms;
}

/* Waits for the rows. Returns 0, or why they do not come. */
static int wait_rows(mmx_room r)
{
    int e;

    waits(1);
    e = mmx_wait_room(link.m, r, MMX_LENGTH | MMX_READY, patience());
    pthread_mutex_lock(&lock);
    link.silent = e == -MMX_E_TIMEOUT || e == -MMX_E_PEER_LOST ? now_ms() : 0;
    pthread_mutex_unlock(&lock);
    if (e == 0)
        e = mmx_wait_room(link.m, r, MMX_READY, limit("MMX_ROWS_MS", 60000));
    waits(-1);
    return e;
}

/* Copies n rows as f32. */
static int copy_rows(mmx_room r, uint32_t n, float *out)
{
    const struct mmx_field *f = &link.pool.fields[0];
    struct mmx_placeholder place = {.length = n, .elements = f->elements};
    struct mmx_window w = {
        .size = sizeof w, .length = n, .rooms = 1, .elements = f->elements};
    struct mmx_tensor to = {.size = sizeof to,
        .data = out,
        .rows = n,
        .elements = f->elements,
        .dtype = "f32"};
    int64_t bytes = mmx_plan_bytes(&w, &place, 1, NULL);
    const struct mmx_plan *plan;
    void *mem = bytes > 0 ? malloc((size_t)bytes) : NULL;
    int e = mem ? mmx_plan(&w, &place, 1, mem, (size_t)bytes, &plan, NULL)
                : -MMX_E_SYSTEM;

    if (e == 0)
        e = mmx_plan_run(link.m, plan, &r, f->name, &to, NULL);
    free(mem);
    return e;
}

/* Gets the rows that ask() requested: in place, or copied and released. */
static int fetch(struct have *h, bool in_place)
{
    uint32_t n = (uint32_t)mtmd_input_chunk_get_n_tokens(h->chunk);
    struct mmx_look look = {.size = sizeof look};
    struct mmx_view v;
    int e = wait_rows(h->room);

    if (e == 0)
        e = mmx_look(link.m, h->room, &look);
    if (e == 0 && look.total != n)
        e = -MMX_E_ITEM_MISMATCH;
    if (e == 0 && in_place && !strcmp(link.pool.fields[0].dtype, "f32") &&
        mmx_view(link.m, h->room, NULL, 0, n, &v) == 0) {
        h->rows = v.data;
        return 0;
    }
    if (e == 0) {
        h->copy = malloc((size_t)n * link.pool.fields[0].elements * 4);
        e = h->copy ? copy_rows(h->room, n, h->copy) : -MMX_E_SYSTEM;
        h->rows = e ? NULL : h->copy;
    }
    leave(h);
    return e;
}

/* The list of entries. Only the owner's thread uses an entry. */

/* Returns the owner's entry after `after`, or its first one; chunk NULL: for
 * any chunk. */
static struct have *entry_of(
    const void *owner, const mtmd_input_chunk *chunk, const struct have *after)
{
    struct have *h;

    pthread_mutex_lock(&lock);
    h = after ? after->next : first;
    while (h && (h->owner != owner || (chunk && h->chunk != chunk)))
        h = h->next;
    pthread_mutex_unlock(&lock);
    return h;
}

static struct have *entry_new(const void *owner, const mtmd_input_chunk *chunk)
{
    struct have *h = calloc(1, sizeof *h);

    if (!h)
        return NULL;
    h->owner = owner;
    h->chunk = chunk;
    pthread_mutex_lock(&lock);
    h->next = first;
    first = h;
    pthread_mutex_unlock(&lock);
    return h;
}

static void entry_free(struct have *h)
{
    struct have **at = &first;

    leave(h);
    pthread_mutex_lock(&lock);
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    pthread_mutex_unlock(&lock);
    free(h->copy);
    free(h);
}

static void forget(const void *owner)
{
    for (struct have *h; (h = entry_of(owner, NULL, NULL));)
        entry_free(h);
}

static void tell(const struct have *h, int e)
{
    uint32_t n = (uint32_t)mtmd_input_chunk_get_n_tokens(h->chunk);

    if (e)
        fprintf(stderr, "mmx: %s for %s; encoding here\n",
            mmx_reason(e, NULL, NULL), mtmd_input_chunk_get_id(h->chunk));
    else
        fprintf(stderr, "mmx: %u rows of %s %s\n", n,
            mtmd_input_chunk_get_id(h->chunk), h->copy ? "copied" : "in place");
}

/* what libmtmd's callers call */

__attribute__((visibility("default"))) mtmd_context *mtmd_init_from_file(
    const char *mmproj, const struct llama_model *model,
    const struct mtmd_context_params params)
{
    int width = model ? llama_model_n_embd_inp(model) : 0;

    if (width > 0) {
        pthread_mutex_lock(&lock);
        if (link.width && link.width != width) {
            fprintf(stderr,
                "mmx: models of two widths, %d and %d; pictures "
                "are encoded here\n",
                link.width, width);
            link.off = true;
        }
        link.width = width;
        pthread_mutex_unlock(&lock);
    }
    return REAL(mtmd_init_from_file)(mmproj, model, params);
}

__attribute__((visibility("default"))) void mtmd_free(mtmd_context *ctx)
{
    forget(ctx);
    REAL(mtmd_free)(ctx);
}

__attribute__((visibility("default"))) int32_t mtmd_encode_chunk(
    mtmd_context *ctx, const mtmd_input_chunk *chunk)
{
    struct have *h;
    int e;

    forget(ctx);
    h = entry_new(ctx, chunk);
    if (h && ask(h)) {
        e = fetch(h, false);
        tell(h, e);
        if (e == 0)
            return 0;
    }
    if (h)
        entry_free(h);
    return REAL(mtmd_encode_chunk)(ctx, chunk);
}

__attribute__((visibility("default"))) float *mtmd_get_output_embd(
    mtmd_context *ctx)
{
    struct have *h = entry_of(ctx, NULL, NULL);

    return h ? h->copy : REAL(mtmd_get_output_embd)(ctx);
}

/* libmtmd gets the chunk too: its rules say which chunks fit into one batch,
 * and it may have to encode after all. */
__attribute__((visibility("default"))) int32_t mtmd_batch_add_chunk(
    mtmd_batch *batch, const mtmd_input_chunk *chunk)
{
    int32_t e = REAL(mtmd_batch_add_chunk)(batch, chunk);
    struct have *h;

    if (e != 0)
        return e;
    h = entry_new(batch, chunk);
    if (!h)
        return 1;
    (void)ask(h);
    return 0;
}

__attribute__((visibility("default"))) int32_t mtmd_batch_encode(
    mtmd_batch *batch)
{
    struct have *h = entry_of(batch, NULL, NULL);
    bool all = h != NULL;

    for (; h && all; h = entry_of(batch, NULL, h)) {
        if (h->open && !h->rows)
            tell(h, fetch(h, true));
        all = h->rows != NULL;
    }
    if (all)
        return 0;
    forget(batch);
    return REAL(mtmd_batch_encode)(batch);
}

__attribute__((visibility("default"))) float *mtmd_batch_get_output_embd(
    mtmd_batch *batch, const mtmd_input_chunk *chunk)
{
    struct have *h = entry_of(batch, chunk, NULL);

    return h ? (float *)h->rows
             : REAL(mtmd_batch_get_output_embd)(batch, chunk);
}

__attribute__((visibility("default"))) void mtmd_batch_free(mtmd_batch *batch)
{
    forget(batch);
    REAL(mtmd_batch_free)(batch);
}
