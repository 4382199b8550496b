/* keys.h - the keyring. It has our own keys, from files with one CURVE secret
 * key each (Z85, on one line), and the keys that are admitted: our own, under
 * any name; or with control.identities those of the daemons in that file, each
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

/* In its own memory, excluded from core dumps. libzmq's copies of keys in use
 * are not excluded. */
struct keys {
    uint32_t count; /* 1 to CONF_KEYS_MAX; listeners use the first one */
    struct key_pair pairs[CONF_KEYS_MAX];
    uint32_t lines_count; /* 0: the fleet shares the pairs */
    struct key_line *lines;
};

/* Loads the files. ERR_MALFORMED: a file is invalid; *bad is its number and
 * e->text says what it contains and what is expected. own: the daemon's user,
 * who may own files, as root may. engines: a group that may read no key, since
 * a program with the key can act as a daemon. -1: unknown, not judged by.
 * ERR_NO_BLOCKS: no memory; ERR_VERSION: libzmq has no CURVE; *bad is NONE in
 * both cases. */
MUST_CHECK enum err keys_load(struct keys **out, const struct conf_list *files,
    uid_t own, gid_t engines, uint32_t *bad, struct conf_error *e);
/* Reads a secret key, and derives its public half. Returns what is wrong with
 * the file; NULL: k is the pair, for the caller to wipe. */
const char *keys_read_pair(int fd, struct key_pair *k);
/* Writes the path of a key file from its name in the configuration. */
void keys_path(const char *file, char *out, size_t size);
/* Wipes and frees the keys. Accepts NULL. */
void keys_free(struct keys **k);

/* Adds the lines of control.identities. One of them must be for c's own daemon,
 * with a key in k. ERR_MALFORMED: e->text says what is wrong. */
MUST_CHECK enum err keys_load_lines(
    struct keys *k, const struct conf *c, uid_t own, struct conf_error *e);

/* Returns the number of admitted keys. Their indices begin at 0; each is that
 * of a line, or of a pair. */
uint32_t keys_count(const struct keys *k);
const char *keys_public(const struct keys *k, uint32_t i);
const uint8_t *keys_bytes(const struct keys *k, uint32_t i);
/* Returns the index of this public key, of 32 bytes; NONE: not admitted. */
uint32_t keys_find(const struct keys *k, const uint8_t *public_bytes);
/* Returns the daemon that owns key i: one of role ROLE_ANY if i is NONE; NULL:
 * the fleet shares the keys. */
const struct identity *keys_owner(const struct keys *k, uint32_t i);
/* Returns the first index from `from` on, cyclically, whose key the encoder of
 * that name may have (empty: any name); NONE: there is none. */
uint32_t keys_next(const struct keys *k, uint32_t from, const char *name);
/* Returns how many indices keys_next() can find. */
uint32_t keys_fitting(const struct keys *k, const char *name);
/* True if both admit the key, for the same daemon. */
bool keys_both(
    const struct keys *a, const struct keys *b, const uint8_t *public_bytes);
/* True if both have the same keys in the same order. */
bool keys_same(const struct keys *a, const struct keys *b);

#endif
