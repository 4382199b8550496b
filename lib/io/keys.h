/* keys.h - the keyring: our keys, as files that hold one CURVE secret key each,
 * in Z85, on one line; and who is let in. That is who has one of these keys,
 * under any name, or with control.identities the daemons of that file, each
 * under its own name. Read at the start and by each reload; any thread. */
#ifndef MMX_IO_KEYS_H
#define MMX_IO_KEYS_H

#include "core/conf/conf.h"
#include "core/flow.h"

#include <sys/types.h>

#define KEY_TEXT 40 /* characters of a key in Z85 */

struct key_pair {
    char secret[KEY_TEXT + 1], public[KEY_TEXT + 1];
    uint8_t public_bytes[32];
};

/* A line of control.identities. */
struct key_line {
    struct identity who;
    char public[KEY_TEXT + 1];
    uint8_t public_bytes[32];
};
#define KEY_LINES_MAX 4096

/* In memory of its own, which is in no core dump. libzmq has copies of what its
 * sockets use; they are not kept out. */
struct keys {
    uint32_t count; /* 1 to CONF_KEYS_MAX; the first one is a listener's */
    struct key_pair pairs[CONF_KEYS_MAX];
    uint32_t lines_count; /* 0: pairs are shared by the fleet */
    struct key_line *lines;
};

/* Loads the files. ERR_MALFORMED: one of them is no good; *bad is its number
 * and e->text says what it is and what is expected. ERR_NO_BLOCKS: no memory;
 * ERR_VERSION: libzmq has no CURVE; *bad is NONE then. A file that the group
 * `engines` may read is no good: who has the key is a daemon. */
MUST_CHECK enum err keys_load(struct keys **out, const struct conf_list *files,
    gid_t engines, uint32_t *bad, struct conf_error *e);
/* Writes the path of a key file as the configuration names it. */
void keys_path(const char *file, char *out, size_t size);
/* Wipes and frees. Accepts NULL. */
void keys_free(struct keys **k);

/* Adds the lines of control.identities, of which one has to be c's own daemon's
 * with the key in k. ERR_MALFORMED: e->text says what is wrong. */
MUST_CHECK enum err keys_load_lines(
    struct keys *k, const struct conf *c, struct conf_error *e);

/* Those that are let in are numbered from 0: by line, or by pair. */
uint32_t keys_count(const struct keys *k);
const char *keys_public(const struct keys *k, uint32_t i);
const uint8_t *keys_bytes(const struct keys *k, uint32_t i);
/* Returns the number of this public key, of 32 bytes; NONE: it is not let
 * in. */
uint32_t keys_find(const struct keys *k, const uint8_t *public_bytes);
/* Returns the daemon that owns the key: one of role ROLE_ANY if i is NONE;
 * NULL: keys are shared by the fleet. */
const struct identity *keys_owner(const struct keys *k, uint32_t i);
/* Returns the first number from `from` on, round and round, whose key the
 * encoder of that name may have (empty: any name); NONE: there is none. */
uint32_t keys_next(const struct keys *k, uint32_t from, const char *name);
/* Counts the numbers that keys_next() finds. */
uint32_t keys_fitting(const struct keys *k, const char *name);
/* True if the key is let in by both, as the same daemon. */
bool keys_both(
    const struct keys *a, const struct keys *b, const uint8_t *public_bytes);
/* True if both are the same, in the same order. */
bool keys_same(const struct keys *a, const struct keys *b);

#endif
