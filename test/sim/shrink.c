/* shrink.c - which parts of a seed's world are changed or left out: by the
 * words of a command line, which describe the world, or by a search for a small
 * world that still fails. Each part draws from a stream of its own, so the
 * other parts stay as they are. */
#include "test/sim/sim.h"

#include "base/check.h"

#include <stddef.h>

#define AS_DRAWN UINT32_MAX

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
#define IS(name, meaning) {#name, offsetof(struct nature, name)},
#include "test/sim/nature.def"
#undef IS
};

static struct {
    /* fields with a value of --set; count 0: none */
    uint32_t set[ARRAY_LEN(fields)], count;
    uint64_t only; /* bit i: delivery i comes */
} given;

static uint32_t *field(struct nature *n, size_t i)
{
    return (uint32_t *)((char *)n + fields[i].offset);
}

static void clear(void)
{
    if (given.count)
        return;
    given.count = ARRAY_LEN(fields);
    given.only = UINT64_MAX;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        given.set[i] = AS_DRAWN;
}

/* Takes NAME=NUMBER. */
static bool set_one(const char *text)
{
    const char *value = strchr(text, '=');

    for (size_t i = 0; value && i < ARRAY_LEN(fields); i++)
        if (strlen(fields[i].name) == (size_t)(value - text) &&
            strncmp(fields[i].name, text, (size_t)(value - text)) == 0) {
            given.set[i] = (uint32_t)strtoul(value + 1, NULL, 0);
            return true;
        }
    return false;
}

/* Takes the number of a delivery that is not left out. */
static bool only_one(const char *text)
{
    unsigned long i = strtoul(text, NULL, 0);

    if (i >= 64)
        return false;
    given.only |= UINT64_C(1) << i;
    return true;
}

static bool each(const char *list, bool (*take)(const char *text))
{
    char text[WORDS_MAX], *save = NULL;

    snprintf(text, sizeof(text), "%s", list);
    for (char *s = strtok_r(text, ",", &save); s;
         s = strtok_r(NULL, ",", &save))
        if (!take(s))
            return false;
    return true;
}

bool option_read(const char *option, const char *value)
{
    clear();
    if (strcmp(option, "--set") == 0)
        return each(value, set_one);
    given.only = 0;
    return strcmp(option, "--only") == 0 && each(value, only_one);
}

bool options_read(const char *words)
{
    char text[WORDS_MAX], *save = NULL, *word, *value;

    snprintf(text, sizeof(text), "%s", words);
    for (word = strtok_r(text, " ", &save); word;
         word = strtok_r(NULL, " ", &save)) {
        value = strtok_r(NULL, " ", &save);
        if (!value || !option_read(word, value))
            return false;
    }
    return true;
}

void options_apply(struct nature *n)
{
    clear();
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if (given.set[i] != AS_DRAWN)
            *field(n, i) = given.set[i];
}

bool option_skips(uint32_t delivery)
{
    return delivery < 64 && !(given.only >> delivery & 1);
}

void options_words(char *out, size_t size)
{
    size_t n = 0;
    const char *before = " --set ";

    clear();
    out[0] = 0;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if (given.set[i] != AS_DRAWN && n < size) {
            n += (size_t)snprintf(out + n, size - n, "%s%s=%u", before,
                fields[i].name, given.set[i]);
            before = ",";
        }
    before = " --only ";
    for (uint32_t i = 0; given.only != UINT64_MAX && i < 64; i++)
        if (!option_skips(i) && n < size) {
            n += (size_t)snprintf(out + n, size - n, "%s%u", before, i);
            before = ",";
        }
}

/* shrinking */

/* Returns the least value of a field. */
static uint32_t least(const char *name)
{
    static const char *const ones[] = {"encodeds", "langds", "pools", "net_us",
        "data_us", "local_us", "shard_us", "copy_us"};

    for (size_t i = 0; i < ARRAY_LEN(ones); i++)
        if (strcmp(name, ones[i]) == 0)
            return 1;
    return strcmp(name, "faults_ms") == 0 ? AS_DRAWN : 0;
}

static bool set_less(bool (*fails)(void), const struct nature *drawn)
{
    struct nature n = *drawn;
    bool less = false;

    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        uint32_t was = given.set[i], low = least(fields[i].name);

        if (low == AS_DRAWN || was == low || *field(&n, i) <= low ||
            strcmp(fields[i].name, "deliveries") == 0)
            continue;
        given.set[i] = low;
        if (fails())
            less = true;
        else
            given.set[i] = was;
    }
    return less;
}

static bool less_come(bool (*fails)(void), uint32_t deliveries)
{
    bool less = false;

    for (uint32_t n = 32; n > 0; n /= 2)
        for (uint32_t i = 0; i < deliveries; i += n) {
            uint64_t was = given.only;

            given.only &= ~(((UINT64_C(1) << n) - 1) << i);
            if (given.only == was)
                continue;
            if (fails())
                less = true;
            else
                given.only = was;
        }
    return less;
}

void shrink(bool (*fails)(void), const struct nature *drawn)
{
    bool smaller = true;

    clear();
    CHECK(drawn->deliveries < 64, "%u deliveries", drawn->deliveries);
    given.only &= (UINT64_C(1) << drawn->deliveries) - 1;
    while (smaller) {
        smaller = set_less(fails, drawn);
        smaller |= less_come(fails, drawn->deliveries);
    }
}
