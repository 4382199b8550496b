/* err.h - one enum for results and reasons; the rows are in err.def. */
#ifndef MMX_BASE_ERR_H
#define MMX_BASE_ERR_H

#include "base/base.h"

enum err {
#define ERR(name, number, wire, advice, text) ERR_##name = (number),
#include "base/err.def"
    ERR_COUNT
};
#define OK ERR_OK

enum advice {
    ADVICE_NOTHING,
    ADVICE_RETRY,
    ADVICE_ENCODE_LOCALLY,
    ADVICE_GIVE_UP
};

/* Returns a static string; "unknown" if the number is out of range. */
const char *err_name(enum err e);
const char *err_text(enum err e);
enum advice err_advice(enum err e);
const char *advice_name(enum advice a);

#endif
