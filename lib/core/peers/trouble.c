/* trouble.c - see trouble.h. Any thread. */
#include "core/peers/trouble.h"

_Static_assert(TROUBLE_NONE == 0, "no trouble is the first row");

const struct trouble_words trouble_words[TROUBLE_END] = {
    [TROUBLE_NONE] = {"", "", ""},
#define TROUBLE(NAME, number, name, key, mend, doc)                            \
    [TROUBLE_##NAME] = {(name), (key), (mend)},
#include "core/peers/trouble.def"
};
