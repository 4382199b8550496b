/* words.c - the calls that need no handle. Pure; any thread. */
#include "client/client.h"

#include "base/err.h"

#include <stdio.h>
#include <sys/random.h>

#define ERR(name, number, wire, advice, text)                                  \
    _Static_assert((int)MMX_E_##name == (number), "mmx.h and err.def differ");
#define MMX_E_OK MMX_OK
#include "base/err.def"
#undef MMX_E_OK

_Static_assert((int)MMX_ADVICE_GIVE_UP == (int)ADVICE_GIVE_UP, "advice");

/* The enums of mmx.h have the numbers of the wire. */
#define SAME(ours, wire)                                                       \
    _Static_assert((int)MMX_##ours == (int)(wire), "mmx.h and wire.h differ")

#define STATE(NAME, number, name, doc) SAME(NAME, number);
#define MMX_FAILED                     MMX_FAILED_STATE
#include "wire/room.def"
#undef MMX_FAILED

SAME(GRANTED, EVENT_GRANTED);
SAME(HAVE, EVENT_HAVE);
SAME(WANTED, EVENT_WANTED);
SAME(DONE, EVENT_DONE);
SAME(LENGTH, EVENT_LENGTH);
SAME(LANDED, EVENT_LANDED);
SAME(READY, EVENT_READY);
SAME(FAILED, EVENT_FAILED);
SAME(ANY, ROLE_ANY);
SAME(ENCODED, ROLE_ENCODED);
SAME(LANGD, ROLE_LANGD);
SAME(COMPACT, STORAGE_COMPACT);
SAME(PADDED, STORAGE_PADDED);
SAME(PROMPT, STORAGE_PROMPT);
SAME(WHOLE, MODE_WHOLE);
SAME(STREAM, MODE_STREAM);
SAME(READ, RIGHT_READ);
SAME(WRITE, RIGHT_WRITE);
SAME(WATCH, RIGHT_WATCH);
SAME(KEEP, FLAG_KEEP);
SAME(OPEN, FLAG_OPEN);

static const struct {
    const char *name, *text;
    int advice;
} own_words[] = {
    {"split", "the rows do not lie in one run", MMX_ADVICE_NOTHING},
    {"forked", "the handle belongs to the parent process", MMX_ADVICE_GIVE_UP},
    {"system", "the operating system refused; errno says what",
        MMX_ADVICE_RETRY},
};

const char *mmx_reason(int reason, const char **text, int *advice)
{
    unsigned r = reason < 0 ? 0u - (unsigned)reason : (unsigned)reason;
    unsigned own = r - MMX_E_SPLIT;
    bool ours = own < ARRAY_LEN(own_words);

    if (text)
        *text = ours ? own_words[own].text : err_text((enum err)r);
    if (advice)
        *advice = ours ? own_words[own].advice : (int)err_advice((enum err)r);
    return ours ? own_words[own].name : err_name((enum err)r);
}

const char *mmx_advice_name(int advice)
{
    return advice_name((enum advice)advice);
}

const char *mmx_state_name(int state)
{
#define STATE(NAME, number, name, doc) [number] = name,
    static const char *const names[] = {
#include "wire/room.def"
    };
    return (unsigned)state < ARRAY_LEN(names) ? names[state] : "unknown";
}

/* Ends an id's FNV-1a. */
static uint64_t mixed(uint64_t h)
{
    h = (h ^ h >> 33) * UINT64_C(0xff51afd7ed558ccd);
    h = (h ^ h >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ h >> 33;
}

uint64_t mmx_room_id(const void *name, size_t len)
{
    return mixed(fnv(FNV_BEGIN, name, len));
}

/* True if a comes before b. full: an encoder of this load takes no more. */
static bool placed_before(
    const struct mmx_encoder *a, const struct mmx_encoder *b, uint64_t full)
{
    if ((a->load >= full) != (b->load >= full))
        return a->load < full;
    if (a->weight != b->weight)
        return a->weight > b->weight;
    return strcmp(a->name, b->name) < 0;
}

/* Shell's sort, as qsort may allocate. */
int mmx_place(const void *key, size_t len, struct mmx_encoder *encoders, int n,
    unsigned bound)
{
    uint64_t h = fnv(FNV_BEGIN, key, len), full = 1;

    bound = bound ? bound : 125;
    if (n < 1 || n > 1 << 16 || bound < 100 || bound > 10000)
        return -MMX_E_MALFORMED;
    for (struct mmx_encoder *e = encoders; e < encoders + n; e++) {
        e->weight = mixed(fnv(h, e->name, strlen(e->name)));
        full += e->load;
    }
    /* the mean load with the new item, times bound, rounded up */
    full = (full * bound + 100 * (uint64_t)n - 1) / (100 * (uint64_t)n);
    for (int gap = n / 2; gap > 0; gap /= 2)
        for (int i = gap; i < n; i++) {
            const struct mmx_encoder e = encoders[i];
            int at = i;

            for (; at >= gap && placed_before(&e, &encoders[at - gap], full);
                 at -= gap)
                encoders[at] = encoders[at - gap];
            encoders[at] = e;
        }
    assert(n == 1 || !placed_before(&encoders[1], &encoders[0], full));
    return 0;
}

const char *mmx_version(void)
{
    return MMX_VERSION;
}

/* references */

int mmx_reference_draw(struct mmx_reference *out)
{
    uint8_t bytes[MMX_REFERENCE_BYTES]; /* so few bytes come in one call of
                                           getrandom() */

    if (!out)
        return -MMX_E_MALFORMED;
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return -MMX_E_SYSTEM;
    bytes[0] |= 1; /* an id of 0 is none; a secret of 0 is none */
    bytes[sizeof bytes - 1] |= 1;
    return mmx_reference_read(bytes, sizeof bytes, out);
}

int mmx_reference_bytes(
    const struct mmx_reference *r, uint8_t out[MMX_REFERENCE_BYTES])
{
    if (!r || !out || !r->id)
        return -MMX_E_MALFORMED;
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(r->id >> 8 * i);
    memcpy(out + 8, r->secret, sizeof r->secret);
    return MMX_REFERENCE_BYTES;
}

int mmx_reference_text(
    const struct mmx_reference *r, char out[MMX_REFERENCE_TEXT])
{
    static const uint8_t none[SECRET_BYTES];
    int n;

    if (!r || !out || !r->id)
        return -MMX_E_MALFORMED;
    n = snprintf(out, MMX_REFERENCE_TEXT, "%016llx", (unsigned long long)r->id);
    if (memcmp(r->secret, none, sizeof none) == 0)
        return n;
    out[n++] = '-';
    for (size_t i = 0; i < sizeof r->secret; i++)
        n += snprintf(out + n, 3, "%02x", r->secret[i]);
    assert(n == MMX_REFERENCE_TEXT - 1);
    return n;
}

/* Reads n bytes of two lower-case hex digits each. */
static bool read_hex(const char *text, size_t n, uint8_t *out)
{
    static const char digits[] = "0123456789abcdef";

    assert(n <= SECRET_BYTES);
    for (size_t i = 0; i < n; i++) {
        const char *high = memchr(digits, text[2 * i], 16);
        const char *low = memchr(digits, text[2 * i + 1], 16);

        if (!high || !low)
            return false;
        out[i] = (uint8_t)((high - digits) << 4 | (low - digits));
    }
    return true;
}

int mmx_reference_read(const void *from, size_t len, struct mmx_reference *out)
{
    struct mmx_reference r = {0};
    const char *text = from;
    uint8_t id[8];

    if (!from || !out)
        return -MMX_E_MALFORMED;
    if (len == MMX_REFERENCE_BYTES) {
        for (int i = 0; i < 8; i++)
            id[i] = ((const uint8_t *)from)[7 - i];
        memcpy(r.secret, text + 8, sizeof r.secret);
    } else if ((len != 16 && len != MMX_REFERENCE_TEXT - 1) ||
               !read_hex(text, 8, id) ||
               (len > 16 &&
                   (text[16] != '-' || !read_hex(text + 17, 16, r.secret)))) {
        return -MMX_E_MALFORMED;
    }
    for (int i = 0; i < 8; i++)
        r.id = r.id << 8 | id[i];
    if (!r.id)
        return -MMX_E_MALFORMED;
    *out = r;
    return 0;
}
