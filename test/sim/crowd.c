/* crowd.c - one user requests more than there is, at every limit at once, and
 * another requests a room now and then (RULES 7.6): the first waits for places,
 * the second finds one each time. */
#include "test/sim/admission.h"

#define CROWD  48 /* rooms that the first user has at once */
#define OTHERS 8  /* rooms of the second user, one after the other */
#define ROOMS  16 /* places; 20 with the reserve */

/* Which table a room of the crowd fills. */
enum much { MUCH_ROOMS, MUCH_ATTACHMENTS, MUCH_AUX, MUCH_END };

static struct daemon *small(uint8_t role, const char *name)
{
    struct daemon *d = make(role, name, ROW_4K, 256, 16, 1);

    d->conf->limit_rooms = ROOMS;
    d->conf->limit_attachments = ROOMS + ROOMS / 2;
    W.cells = 64;
    d->conf->limit_aux_total = 65536;
    return d;
}

static struct prod *come(
    uint64_t room, uint32_t user, struct daemon *first, struct daemon *second)
{
    struct prod *p = announce(e0, room, 16, 0);
    struct daemon *to[] = {first, second};

    p->session = user + 2 * (uint32_t)(room % 2);
    p->must_succeed = p->insists = true;
    p->required = second ? 2 : 1;
    for (uint32_t i = 0; i < p->required; i++) {
        struct cons *c = request(to[i], e0, room, 0);

        c->session = p->session;
        c->required = p->required;
        c->insists = true;
        c->hold_ns = 30 * MS;
    }
    return p;
}

static void crowd_comes(uint64_t from, enum much much)
{
    for (uint64_t r = from; r < from + CROWD; r++) {
        bool both = much == MUCH_ROOMS && r % 3 == 0;
        struct prod *p = come(r, 0, r % 2 ? l0 : l1,
            !both   ? NULL
            : r % 2 ? l1
                    : l0);

        if (much == MUCH_AUX)
            p->aux = 16000;
        if (much == MUCH_ATTACHMENTS)
            cons_all()->readers = p->conns = 2;
        cons_all()->conns = 1 + cons_all()->readers;
    }
}

/* Returns how many of the user's rooms, from `from` on, were refused for one of
 * these reasons. */
static uint32_t refusals(uint64_t from, uint32_t user, uint32_t reasons)
{
    uint32_t n = 0;

    for (const struct prod *p = prods_all(); p; p = p->next)
        n += p->room >= from && p->session % 2 == user && p->refused & reasons;
    for (const struct cons *c = cons_all(); c; c = c->next)
        n += c->room >= from && c->session % 2 == user && c->refused & reasons;
    return n;
}

static void others_come(uint64_t from)
{
    for (uint64_t r = from; r < from + OTHERS; r++) {
        uint32_t before = W.succeeded;
        const struct prod *p = come(r, 1, r % 2 ? l0 : l1, NULL);
        const struct cons *c = cons_all();

        while (!p->over || !c->over)
            (void)run_until(W.now_ns + MS);
        HOLDS(W.succeeded - before < ROOMS, "users take turns for places",
            "room %llu waited for %u others", (unsigned long long)r,
            W.succeeded - before - 1);
    }
    HOLDS(refusals(from, 1, UINT32_MAX) == 0, "there is a place for another",
        "%u rooms were refused one", refusals(from, 1, UINT32_MAX));
}

/* Each kind of room meets a limit of its own at both sides. Afterwards all
 * places are free for later rooms. */
void crowd_at_limits(void)
{
    static const enum err why[] = {ERR_BUSY, ERR_QUOTA, ERR_NO_BLOCKS};
    uint64_t room = 1;

    quiet_world(1, 2);
    e0 = small(ROLE_ENCODED, "e0");
    l0 = small(ROLE_LANGD, "l0");
    l1 = small(ROLE_LANGD, "l1");
    start_all();
    for (uint32_t much = 0; much < MUCH_END; much++) {
        crowd_comes(room, much);
        (void)run_until(W.now_ns + 20 * MS);
        others_come(room + CROWD);
        while (!world_over() && W.now_ns < 10 * NS_PER_S)
            (void)run_until(W.now_ns + 20 * MS);
        HOLDS(world_over(), "no room waits for a deadline",
            "encode%s, language%s", prods_left(), cons_left());
        HOLDS(refusals(room, 0, UINT32_C(1) << why[much]) > 0,
            "the world is what it says", "none was refused as %s",
            err_name(why[much]));
        room += CROWD + OTHERS;
    }
    all_succeed((uint32_t)room - 1);
}
