/* carriers.h - which carrier rows take between langd and one encoder: what both
 * can, less what broke twice. langd decides, and says so in HELLO; encoded
 * follows. Pure; one thread.
 *
 * Rejected: to choose by a test transfer by each carrier before the first room.
 * A carrier that breaks later is not seen by it. (core/peers/path.c has one
 * connection of the chosen carrier made, which changes no choice.) */
#ifndef MMX_WIRE_CARRIERS_H
#define MMX_WIRE_CARRIERS_H

#include "wire/wire.h"

/* A carrier that breaks so often within this time is given up. */
#define CARRIER_BREAKS    2
#define CARRIER_BREAKS_NS (60 * NS_PER_S)
/* Rooms report one break each, and those of other rooms follow a change: what
 * comes within this time is one break. Of a carrier that rows have come by,
 * what comes within an outage is, which the caller says. */
#define CARRIER_BREAK_NS (250 * NS_PER_MS)

/* What is known of a pair of daemons, of langd's. Zero at the start, and with
 * each new epoch of the encoder. */
struct carrier_pair {
    uint8_t chosen; /* enum carrier_number; CARRIER_AUTO: none yet */
    uint8_t there;  /* bits of what the encoder can, by number */
    uint8_t broken; /* bits of what was given up */
    uint8_t breaks; /* of the chosen one, since first_ns */
    bool worked;    /* rows have come by the chosen one */
    uint64_t first_ns, last_ns;
};

/* Reads what a HELLO lists: entries that begin with a carrier's name, between
 * semicolons. Others are not known here and left out. Returns bits by number.
 */
uint8_t carriers_read(struct span text);
/* Returns the name of a carrier; "auto" for CARRIER_AUTO. */
const char *carrier_name(uint8_t number);

/* Writes why no better carrier than the chosen one is used: "ucx: not there";
 * empty: there is no better one. barred: bits of those that the config keeps
 * from being here. Of what both have and langd did not take, only langd knows
 * more than "not chosen there". */
void carriers_why(const struct carrier_pair *p, uint8_t here, uint8_t barred,
    char *out, size_t size);

/* True if what is here has one with the list of a HELLO in common. */
bool carriers_common(uint8_t here, const char *there);

/* Returns what langd's HELLO is for before it knows what is there: TCP if that
 * is here. */
uint8_t carriers_first(uint8_t here);

/* Chooses from what is here and what is there. False: nothing in common; chosen
 * is CARRIER_AUTO. */
bool carriers_choose(struct carrier_pair *p, uint8_t here, uint8_t there);
/* The chosen one broke; an outage may last for outage_ns. True: another one was
 * chosen in its place. The last one stays. */
bool carriers_broke(
    struct carrier_pair *p, uint8_t here, uint64_t now_ns, uint64_t outage_ns);

#endif
