/* carriers.c - see carriers.h. Owned by the loop's thread. */
#include "wire/carriers.h"

#include "base/check.h"

#include <stdio.h>

#define BIT(number) ((uint8_t)(1u << (number)))

static const struct {
    uint8_t number;
    const char *name;
} rows[] = {
#define CARRIER(NAME, number, name, doc) {(number), name},
#include "wire/carrier.def"
};
_Static_assert(CARRIER_END <= 8, "carriers are bits of a byte");

const char *carrier_name(uint8_t number)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].number == number)
            return rows[i].name;
    return "auto";
}

/* Returns the bit of the carrier that the entry begins with; 0: unknown. */
static uint8_t bit_of(const char *entry, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        size_t n = strlen(rows[i].name);

        if (len >= n && memcmp(entry, rows[i].name, n) == 0 &&
            (len == n || entry[n] == ' '))
            return BIT(rows[i].number);
    }
    return 0;
}

uint8_t carriers_read(struct span text)
{
    const char *p = (const char *)text.p;
    uint8_t bits = 0;

    for (size_t at = 0, end; at < text.len; at = end + 1) {
        while (at < text.len && p[at] == ' ')
            at++;
        for (end = at; end < text.len && p[end] != ';';)
            end++;
        bits |= bit_of(p + at, end - at);
    }
    return bits;
}

/* Returns the best of the carriers: the one with the highest number. */
static uint8_t best(uint8_t bits)
{
    uint8_t number = CARRIER_AUTO;

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (bits & BIT(rows[i].number))
            number = (uint8_t)max_u32(number, rows[i].number);
    return number;
}

uint8_t carriers_first(uint8_t here)
{
    return here & BIT(CARRIER_TCP) ? CARRIER_TCP : best(here);
}

bool carriers_choose(struct carrier_pair *p, uint8_t here, uint8_t there)
{
    uint8_t both = here & there;
    uint8_t whole = both & (uint8_t)~p->broken;
    uint8_t chosen = best(whole ? whole : both);

    if (chosen != p->chosen) {
        p->breaks = 0;
        p->worked = false;
    }
    p->there = there;
    p->chosen = chosen;
    return chosen != CARRIER_AUTO;
}

bool carriers_broke(
    struct carrier_pair *p, uint8_t here, uint64_t now_ns, uint64_t outage_ns)
{
    uint64_t one_ns = p->worked ? outage_ns : CARRIER_BREAK_NS;
    uint8_t others = here & p->there & (uint8_t)~BIT(p->chosen);
    uint8_t left = others & (uint8_t)~p->broken;

    CHECK(here, "no carrier here, and one broke");
    if (p->last_ns && now_ns - p->last_ns < one_ns)
        return false;
    if (p->breaks == 0 || now_ns - p->first_ns >= CARRIER_BREAKS_NS) {
        p->first_ns = now_ns;
        p->breaks = 0;
    }
    p->last_ns = now_ns;
    if (++p->breaks < CARRIER_BREAKS || !left)
        return false;
    p->broken |= BIT(p->chosen);
    p->chosen = best(left);
    p->breaks = 0;
    p->worked = false;
    return true;
}

void carriers_why(const struct carrier_pair *p, uint8_t here, uint8_t barred,
    char *out, size_t size)
{
    size_t at = 0;

    out[0] = 0;
    for (size_t i = 0; i < ARRAY_LEN(rows) && at < size; i++) {
        uint8_t bit = BIT(rows[i].number);
        const char *why = p->broken & bit     ? "broke twice"
                          : barred & bit      ? "cannot encrypt"
                          : !(here & bit)     ? "not here"
                          : !(p->there & bit) ? "not there"
                                              : "not chosen there";

        if (rows[i].number > p->chosen)
            at += (size_t)snprintf(out + at, size - at, "%s%s: %s",
                at ? ", " : "", rows[i].name, why);
    }
}
