/* carriers.h - which carrier is used for rows between langd and one encoder:
 * one that both support, except those that broke twice. langd chooses, and
 * names the carrier in HELLO; encoded follows. Pure; one thread.
 *
 * Rejected: choosing by a test transfer over each carrier before the first
 * room. It cannot see a carrier that breaks later. (core/peers/path.c tests the
 * data path with one connection of the chosen carrier; that changes no choice.)
 */
#ifndef MMX_WIRE_CARRIERS_H
#define MMX_WIRE_CARRIERS_H

#include "wire/wire.h"

/* A carrier that breaks this often within CARRIER_BREAKS_NS is given up. */
#define CARRIER_BREAKS    2
#define CARRIER_BREAKS_NS (60 * NS_PER_S)
/* Each room reports a break, and other rooms report theirs after the change of
 * carrier: all reports within this time count as one break. If rows have come
 * by the carrier before, all within an outage count as one; the caller says how
 * long an outage is. */
#define CARRIER_BREAK_NS (250 * NS_PER_MS)

/* What langd knows of the carriers of one encoder. Zero at the start, and with
 * each new epoch of the encoder. */
struct carrier_pair {
    uint8_t chosen; /* enum carrier_number; CARRIER_AUTO: none yet */
    uint8_t there;  /* bits of what the encoder supports, by number */
    uint8_t broken; /* bits of carriers that were given up */
    uint8_t breaks; /* of the chosen carrier, since first_ns */
    bool worked;    /* rows have come by the chosen carrier */
    uint64_t first_ns, last_ns;
};

/* Reads the carriers in a HELLO: entries that begin with a carrier's name,
 * between semicolons. Skips unknown entries. Returns bits by number. */
uint8_t carriers_read(struct span text);
/* Returns the name of a carrier; "auto" for CARRIER_AUTO. */
const char *carrier_name(uint8_t number);

/* Writes why no better carrier than the chosen one is used: "ucx: not there";
 * empty: there is no better one. barred: bits of carriers that the config
 * switches off here. If both have a carrier that langd did not choose, only
 * langd knows more than "not chosen there". */
void carriers_why(const struct carrier_pair *p, uint8_t here, uint8_t barred,
    char *out, size_t size);

/* Returns the carrier for langd's first HELLO, before it knows what the encoder
 * supports: TCP if that is here. */
uint8_t carriers_first(uint8_t here);

/* Chooses from the carriers here and there. False: nothing in common; chosen is
 * CARRIER_AUTO. */
bool carriers_choose(struct carrier_pair *p, uint8_t here, uint8_t there);
/* Handles a break of the chosen carrier; an outage may last outage_ns. True:
 * another carrier was chosen. The last one is never given up. */
bool carriers_broke(
    struct carrier_pair *p, uint8_t here, uint64_t now_ns, uint64_t outage_ns);

#endif
