/* wire.h - encode and decode both wires. Structs are generated from local.def
 * and peer.def; PROTOCOL.md beside this file is the page to read.
 *
 * Decoding never copies: spans in a decoded message point into the buffer it
 * came from and are valid as long as that is. Pure; any thread. */
#ifndef MMX_WIRE_WIRE_H
#define MMX_WIRE_WIRE_H

#include "base/bytes.h"
#include "base/err.h"

#define WIRE_VERSION 1

#define LOCAL_MAGIC      UINT32_C(0x4c584d4d) /* "MMXL" */
#define LOCAL_HEADER     12
#define LOCAL_PACKET_MAX 65536 /* one SEQPACKET message, several frames */

#define PEER_MAGIC      UINT32_C(0x50584d4d) /* "MMXP" */
#define PEER_HEADER     48
#define PEER_PACKET_MAX 262144 /* one ZMQ message, several frames */

#define KEY_BYTES    32
#define SECRET_BYTES 16
#define AUX_MAX      32768
#define TAG_MAX      UINT32_C(0x3fffff)

enum {
    FLAG_KEEP = 1,
    FLAG_OPEN = 2,
    FLAG_AUX = 4,
    FLAG_STREAM = 8,
    FLAG_ANNOUNCED = 16,
    FLAG_LEND = 32,
    FLAG_HELD = 64
};
enum { ABLE_LEND = 1 };       /* of HELLO on the Unix socket */
enum { FLAG_FINAL = 1 };      /* of a commit */
enum { FLAG_NO_READERS = 2 }; /* of a release */
enum { DATA_KEY_ENCRYPT = 1, DATA_KEY_AES_256 = 2 };
enum { RIGHT_READ = 1, RIGHT_WRITE = 2, RIGHT_WATCH = 4 };
enum { MODE_WHOLE, MODE_STREAM };
enum { STORAGE_ANY, STORAGE_COMPACT, STORAGE_PADDED, STORAGE_PROMPT };
enum { ROLE_ANY, ROLE_ENCODED, ROLE_LANGD };

static inline const char *role_name(unsigned role)
{
    static const char *const names[] = {"any", "encoded", "langd"};

    return names[role];
}

/* Writes the path of the socket for orders of a daemon whose socket for engines
 * is at `path`: in a sibling folder with -admin added to its name. False: the
 * path has no folder of its own, or the result is too long. */
enum { SOCKET_PATH_MAX = 108 };
MUST_CHECK bool orders_path(const char *path, char out[SOCKET_PATH_MAX]);

/* Returns the role of a daemon's peers. */
static inline uint8_t role_other(uint8_t role)
{
    return (uint8_t)(ROLE_ENCODED + ROLE_LANGD - role);
}

enum {
    EVENT_GRANTED = 1,
    EVENT_HAVE = 2,
    EVENT_WANTED = 4,
    EVENT_DONE = 8,
    EVENT_LENGTH = 16,
    EVENT_LANDED = 32,
    EVENT_READY = 64,
    EVENT_FAILED = 128
};

struct key {
    uint8_t b[KEY_BYTES];
};

static inline bool key_eq(const struct key *a, const struct key *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* Secret bytes that a message needs beside a room's id to use the room; zero:
 * no secret. */
struct secret {
    uint8_t b[SECRET_BYTES];
};

/* True if both are equal. Takes the same time wherever they differ. */
static inline bool secret_eq(const struct secret *a, const struct secret *b)
{
    uint64_t x[2], y[2];

    memcpy(x, a, sizeof(x));
    memcpy(y, b, sizeof(y));
    return ((x[0] ^ y[0]) | (x[1] ^ y[1])) == 0;
}

static inline bool secret_given(const struct secret *s)
{
    static const struct secret none;

    return !secret_eq(s, &none);
}

typedef uint8_t wire_u8;
typedef uint16_t wire_u16;
typedef uint32_t wire_u32;
typedef uint64_t wire_u64;
typedef struct key wire_key;
typedef struct secret wire_secret;

/* A file that does not define FLAGS gets flags as ordinary fields. */
#define FLAGS(name, kind, known, doc) FIELD(name, kind, doc)

#define FIELD(name, kind, doc) wire_##kind name;
#define TEXT(name, max, doc)   struct span name;
#define BLOB(name, max, doc)   struct span name;

#define FRAME(WIRE, wire, NAME, name, number, doc) struct wire##_##name {
#define END(NAME, name)                                                        \
    char end_[0];                                                              \
    }                                                                          \
    ;
#include "wire/messages.def"

#define FIELD(name, kind, doc)
#define TEXT(name, max, doc)
#define BLOB(name, max, doc)
#define END(NAME, name)

#define MESSAGE(NAME, name, number, doc) LOCAL_##NAME = (number),
enum local_type {
#include "wire/local.def"
};
#define MESSAGE(NAME, name, number, doc) PEER_##NAME = (number),
enum peer_type {
#include "wire/peer.def"
};

/* The fault of a received frame that is complete. field NULL: there is no
 * fault, or the frame is cut. */
struct wire_fault {
    const char *field;
    uint64_t value, known; /* its bits, and those known here */
    bool length;           /* or its length, and the limit */
};

struct local_msg {
    enum local_type type;
    uint32_t seq;
    struct wire_fault fault; /* of local_get */
    union {
#define MESSAGE(NAME, name, number, doc) struct local_##name name;
#include "wire/local.def"
    };
};

struct peer_msg {
    enum peer_type type;
    uint32_t seq;
    uint64_t from_epoch, to_epoch, room, generation;
    struct wire_fault fault; /* of peer_get */
    union {
#define MESSAGE(NAME, name, number, doc) struct peer_##name name;
#include "wire/peer.def"
    };
};
#undef FIELD
#undef TEXT
#undef BLOB
#undef END

/* How rows travel between two daemons. CARRIER_AUTO means in the configuration:
 * the best for a pair; in a message: not given. */
enum carrier_number {
    CARRIER_AUTO,
#define CARRIER(NAME, number, name, doc) CARRIER_##NAME = (number),
#include "wire/carrier.def"
    CARRIER_END
};

/* Whether a grant is firm: it is not taken back, and is all that the room
 * needs. */
enum { FIRM_NO, FIRM_YES };

/* Appends one frame. False: it does not fit, or a field exceeds its limit; w is
 * unchanged. */
bool local_put(struct writer *w, const struct local_msg *m);
bool peer_put(struct writer *w, const struct peer_msg *m);

/* Takes one frame off the reader.
 *   OK             *m is filled
 *   ERR_VERSION    (peer) the frame's version is not ours; skipped
 *   ERR_NOT_READY  the reader is at its end
 *   ERR_MALFORMED  the frame contradicts its table, or ends before its last
 *                  field. If the frame's own length was valid, the reader is
 *                  behind the frame, else at its own end.
 *                  m->type and m->seq are set if they could be read.
 *                  m->fault has the flags, or the header's zero, with unknown
 *                  bits (all else of *m is set then), or the text or blob
 *                  that is too long
 *   ERR_BUSY       unknown type: skipped; m->type and m->seq are set */
MUST_CHECK enum err local_get(struct reader *r, struct local_msg *m);
MUST_CHECK enum err peer_get(struct reader *r, struct peer_msg *m);

/* Writes the fault of the field as text; returns text. */
enum { WIRE_FAULT_TEXT = 96 };
const char *wire_fault_text(
    const struct wire_fault *f, char text[WIRE_FAULT_TEXT]);

/* Returns "announce"; "unknown" for a number that no row has. */
const char *local_name(unsigned type);
const char *peer_name(unsigned type);

/* Returns the word of a status cell. */
static inline uint64_t cell_word(
    unsigned state, unsigned reason, uint32_t tag, uint32_t rows)
{
    return (uint64_t)(state & 15) | (uint64_t)(reason & 63) << 4 |
           (uint64_t)(tag & TAG_MAX) << 10 | (uint64_t)rows << 32;
}
static inline unsigned cell_state(uint64_t w)
{
    return w & 15;
}
static inline unsigned cell_reason(uint64_t w)
{
    return w >> 4 & 63;
}
static inline uint32_t cell_tag(uint64_t w)
{
    return w >> 10 & TAG_MAX;
}
static inline uint32_t cell_rows(uint64_t w)
{
    return (uint32_t)(w >> 32);
}

#endif
