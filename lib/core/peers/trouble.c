/* trouble.c - see trouble.h. Any thread. */
#include "core/peers/trouble.h"

#include "base/check.h"

static const struct {
    const char *name, *key, *mend;
} rows[TROUBLE_END] = {
    [TROUBLE_NONE] = {"", "", ""},
#define TROUBLE(NAME, number, name, key, mend, doc)                            \
    [TROUBLE_##NAME] = {(name), (key), (mend)},
#include "core/peers/trouble.def"
};

const char *trouble_name(enum trouble t)
{
    CHECK(t < TROUBLE_END && rows[t].name, "trouble %u", t);
    return rows[t].name;
}

const char *trouble_key(enum trouble t)
{
    CHECK(t < TROUBLE_END && rows[t].key, "trouble %u", t);
    return rows[t].key;
}

const char *trouble_mend(enum trouble t)
{
    CHECK(t < TROUBLE_END && rows[t].mend, "trouble %u", t);
    return rows[t].mend;
}
