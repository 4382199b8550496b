/* conf.h - the configuration as values; its rows are in conf.def. Pure: text
 * comes from io/yaml.c or from tests; nothing is read or allocated here. */
#ifndef MMX_CORE_CONF_CONF_H
#define MMX_CORE_CONF_CONF_H

#include "base/bytes.h"
#include "base/err.h"
#include "wire/wire.h"
#include "wire/layout.h"

#define CONF_LIST_MAX  64
#define CONF_POOLS_MAX 16
/* Most bytes of a row of a GPU pool: a row must fit into pinned memory. */
#define CONF_GPU_ROW   (2u << 20)
#define CONF_PEERS_MAX 256
#define CONF_KEYS_MAX  4
#define CONF_TEXT_MAX  1024

struct conf_list {
    uint32_t count;
    char items[CONF_LIST_MAX][128];
};

typedef char conf_TEXT[CONF_TEXT_MAX + 1];
typedef uint64_t conf_COUNT, conf_SIZE, conf_TIME, conf_NAMES;
typedef bool conf_BOOL;
typedef struct conf_list conf_LIST;

#define POOL_KEY(field, key, KIND, def, min, max, ROLES, TAKES, doc)           \
    conf_##KIND field;
struct conf_pool {
#include "core/conf/conf.def"
};

#define PEER_KEY(field, key, KIND, def, min, max, ROLES, TAKES, doc)           \
    conf_##KIND field;
struct conf_peer {
#include "core/conf/conf.def"
};

#define KEY(field, key, KIND, def, min, max, ROLES, TAKES, doc)                \
    conf_##KIND field;
struct conf {
    uint8_t role;
#include "core/conf/conf.def"
    uint32_t pools_count, peers_count;
    struct conf_pool pools[CONF_POOLS_MAX];
    struct conf_peer peers[CONF_PEERS_MAX];
};

#define CONF_WAIT_MAX_NS (3600 * NS_PER_S)

/* Returns how long an engine that asks for `ms` waits; 0: `otherwise`. */
static inline uint64_t conf_wait_ns(uint32_t ms, uint64_t otherwise)
{
    return ms ? min_u64(ms * NS_PER_MS, CONF_WAIT_MAX_NS) : otherwise;
}

/* transfer.same_host */
enum { SAME_HOST_AUTO, SAME_HOST_LEND, SAME_HOST_COPY, SAME_HOST_OFF };
/* `lend` of a pool */
enum { LEND_AUTO, LEND_NO, LEND_TRUSTED };

/* True if the pool's blocks are in GPU memory. */
static inline bool conf_on_gpu(const struct conf_pool *p)
{
    return strcmp(p->memory, "host") != 0;
}

/* True if language engines may read the pool where it is. */
static inline bool conf_lends(const struct conf_pool *p)
{
    return !conf_on_gpu(p) && p->lend != LEND_NO &&
           (!p->huge_pages || p->lend == LEND_TRUSTED);
}

static inline bool conf_uses_gpus(const struct conf *c)
{
    bool any = false;

    for (uint32_t i = 0; i < c->pools_count; i++)
        any |= conf_on_gpu(&c->pools[i]);
    return any;
}

/* True if the pool is restricted to the users and groups that it lists. */
static inline bool conf_for_users(const struct conf_pool *p)
{
    return p->uids.count + p->gids.count > 0;
}

/* The error and its position: "mmx-langd.yaml:12:3: unknown key `pool`; there
 * are
 * ...". line and column count from 1; 0: not from a file. */
struct conf_error {
    uint32_t line, column;
    char text[512];
};

/* True for langd, where rows land: it connects to its peers, and sends them its
 * shards' addresses. */
static inline bool conf_lands(const struct conf *c)
{
    return c->role == ROLE_LANGD;
}

/* Words of transfer.encrypt. */
enum { ENCRYPT_AUTO, ENCRYPT_OFF, ENCRYPT_ON, ENCRYPT_AES_256 };

/* True if rows may go encrypted only. */
static inline bool conf_encrypts(const struct conf *c)
{
    return c->transfer_encrypt >= ENCRYPT_ON;
}

/* True if every control connection uses CURVE: only daemons with a key of the
 * fleet can read HELLO. */
static inline bool conf_secure(const struct conf *c)
{
    return c->control_keys.count > 0;
}

/* The item of control.allow that admits peers with a key. */
#define CONF_ALLOW_KEY "key"

/* Sets all defaults of a role. Pools and peers are written when they are
 * added (conf_set): most of their memory is never touched. */
void conf_init(struct conf *c, uint8_t role);

/* Sets one value. path is "transfer.shards", "pools[0].blocks",
 * "control.allow[2]", "pools[1].uids[0]". Items must come in order; the first
 * key of an item adds it. On error c is unchanged, and e->text says which key,
 * what was read and what is expected (for an unknown key: the keys that there
 * are). */
MUST_CHECK enum err conf_set(
    struct conf *c, const char *path, struct span value, struct conf_error *e);

/* Sets one value from "key=value", as on a command line. A whole list may be
 * given with commas: "transfer.cpus=2,3". */
MUST_CHECK enum err conf_set_assign(
    struct conf *c, const char *assignment, struct conf_error *e);

/* The kind of value at a path in this role. */
enum conf_shape {
    CONF_NOTHING, /* no such key */
    CONF_VALUE,   /* one value */
    CONF_LIST,    /* a list of values; conf_set with empty text empties it */
    CONF_MAP,     /* more keys: "transfer", "pools[0]" */
    CONF_MAPS     /* a list of maps: "pools", "peers" */
};
enum conf_shape conf_shape(uint8_t role, const char *path);

/* Checks what needs the whole configuration: empty required keys, duplicate
 * names, default_blocks beyond blocks, layouts, neither keys nor `insecure`.
 * Fills in derived defaults (name, sockets, advertise). */
MUST_CHECK enum err conf_finish(
    struct conf *c, const char *host_name, struct conf_error *e);

/* Is called for each value that differs: its key ("timeouts.total",
 * "pools[0].uids", "peers: enc-0"), the present value and the file's (cut to
 * CONF_CHANGE_TEXT; empty: none). left: why a reload does not change it; NULL:
 * it does. */
#define CONF_CHANGE_TEXT 128
typedef void conf_change_fn(void *ud, const char *key, const char *was,
    const char *is, const char *left);
/* Reports the differences between the present configuration and the file's,
 * both finished. */
void conf_diff(const struct conf *now, const struct conf *next,
    conf_change_fn *take, void *ud);
/* Changes next, read from the file, into what a reload makes of now: keys that
 * need a restart keep their values. Call conf_finish afterwards. */
void conf_keep(struct conf *next, const struct conf *now);
/* Copies the changed values of next, after conf_keep and conf_finish, and
 * writes no other bytes. */
void conf_take(struct conf *now, const struct conf *next);

/* Writes the configuration as YAML. comments: with the sentence of each key, as
 * in the sample files. False: it does not fit. */
bool conf_print(const struct conf *c, bool comments, struct writer *w);

#endif
