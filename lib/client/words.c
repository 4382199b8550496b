/* words.c - the calls that need no handle. Pure; any thread. */
#include "client/mmx.h"

#include "base/err.h"
#include "wire/wire.h"

#include <stdio.h>
#include <sys/random.h>

#define ERR(name, number, wire, advice, text)                                  \
    _Static_assert((int)MMX_E_##name == (number), "mmx.h and err.def differ");
#define MMX_E_OK MMX_OK
#include "base/err.def"
#undef MMX_E_OK
#undef ERR

_Static_assert((int)MMX_ADVICE_GIVE_UP == (int)ADVICE_GIVE_UP, "advice");

/* The enums of mmx.h have the numbers of the wire. */
#define SAME(ours, wire)                                                       \
    _Static_assert((int)MMX_##ours == (int)(wire), "mmx.h and wire.h differ")

#define STATE(NAME, number, name, doc) SAME(NAME, number);
#define MMX_FAILED                     MMX_FAILED_STATE
#include "wire/room.def"
#undef MMX_FAILED
#undef STATE

SAME(GRANTED, EVENT_GRANTED);
SAME(HAVE, EVENT_HAVE);
SAME(WANTED, EVENT_WANTED);
SAME(DONE, EVENT_DONE);
SAME(LENGTH, EVENT_LENGTH);
SAME(LANDED, EVENT_LANDED);
SAME(READY, EVENT_READY);
SAME(FAILED, EVENT_FAILED);
SAME(GONE, EVENT_GONE);
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
#undef STATE
    return (unsigned)state < ARRAY_LEN(names) ? names[state] : "unknown";
}

uint64_t mmx_room_id(const void *name, size_t len)
{
    const uint8_t *p = (const uint8_t *)name;
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < len; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    h ^= h >> 33;
    h *= UINT64_C(0xff51afd7ed558ccd);
    h ^= h >> 33;
    h *= UINT64_C(0xc4ceb9fe1a85ec53);
    h ^= h >> 33;
    return h;
}

const char *mmx_version(void)
{
    return MMX_VERSION;
}

int mmx_nonce(char out[17])
{
    uint64_t word;

    if (!out)
        return -MMX_E_MALFORMED;
    if (getrandom(&word, sizeof word, 0) != sizeof word)
        return -MMX_E_SYSTEM;
    snprintf(out, 17, "%016llx", (unsigned long long)word);
    return 0;
}

int mmx_secret(uint8_t out[16])
{
    uint8_t bytes[SECRET_BYTES]; /* so few come all at once */

    if (!out)
        return -MMX_E_MALFORMED;
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return -MMX_E_SYSTEM;
    memcpy(out, bytes, sizeof bytes);
    return 0;
}
