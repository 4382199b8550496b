/* keys.h - the keys of the fleet, as files: each holds one CURVE secret key, in
 * Z85, on one line. Read at the start and by each reload; any thread. */
#ifndef MMX_IO_KEYS_H
#define MMX_IO_KEYS_H

#include "core/conf/conf.h"

#include <sys/types.h>

#define KEY_TEXT 40 /* characters of a key in Z85 */

struct key_pair {
    char secret[KEY_TEXT + 1], public[KEY_TEXT + 1];
    uint8_t public_bytes[32];
};

/* In memory of its own, which is in no core dump. libzmq has copies of what its
 * sockets use; they are not kept out. */
struct keys {
    uint32_t count; /* 1 to CONF_KEYS_MAX; the first one is a listener's */
    struct key_pair pairs[CONF_KEYS_MAX];
};

/* Loads the files. ERR_MALFORMED: one of them is no good; *bad is its number
 * and e->text says what it is and what is expected. ERR_NO_BLOCKS: no memory;
 * ERR_VERSION: libzmq has no CURVE; *bad is NONE then. A file that the group
 * `engines` may read is no good: who has the key is a daemon. */
MUST_CHECK enum err keys_load(struct keys **out, const struct conf_list *files,
    gid_t engines, uint32_t *bad, struct conf_error *e);
/* Wipes and frees. Accepts NULL. */
void keys_free(struct keys **k);

/* True if the 32 bytes are the public key of a pair. */
bool keys_have(const struct keys *k, const uint8_t *public_bytes);

#endif
