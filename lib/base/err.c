/* err.c - texts of the reasons. Pure data; any thread. */
#include "base/err.h"

static const struct {
    const char *name, *text;
    enum advice advice;
} rows[] = {
#define ERR(name, number, wire, advice, text)                                  \
    [number] = {wire, text, ADVICE_##advice},
#include "base/err.def"
};

#define ERR(name, number, wire, advice, text) +1
enum {
    ROWS_WRITTEN = 0
#include "base/err.def"
};

/* A row out of order makes ERR_COUNT too small, and higher rows unknown. */
_Static_assert(
    ARRAY_LEN(rows) == ROWS_WRITTEN, "a number of err.def is left out");
_Static_assert(
    (int)ERR_COUNT == (int)ROWS_WRITTEN, "err.def is not in order of numbers");

const char *err_name(enum err e)
{
    return (unsigned)e < ERR_COUNT ? rows[e].name : "unknown";
}

const char *err_text(enum err e)
{
    return (unsigned)e < ERR_COUNT ? rows[e].text
                                   : "a reason of a newer version";
}

enum advice err_advice(enum err e)
{
    return (unsigned)e < ERR_COUNT ? rows[e].advice : ADVICE_GIVE_UP;
}

const char *advice_name(enum advice a)
{
    static const char *const names[] = {
        "nothing", "retry", "encode-locally", "give-up"};
    return (unsigned)a < ARRAY_LEN(names) ? names[a] : "give-up";
}
