/* carriers.c - which carriers daemons have: drawn for each life, taken away at
 * some moment, and compared with what langd chooses. */
#include "test/sim/stage.h"

#include "base/check.h"
#include "core/lang/lang.h"
#include "wire/carriers.h"

#define BIT(carrier) ((uint8_t)(1u << (carrier)))

void carriers_draw(struct daemon *d)
{
    static const char *const texts[] = {
        "", "", "tcp", "", "ucx 1.18 rc", "", "ucx 1.18 rc; tcp"};
    uint64_t *from = W.from;

    if (W.is.ucx || !d->carriers)
        d->carriers = BIT(CARRIER_TCP);
    if (W.is.ucx) {
        draw_from(PART_CARRIER, 2 + ((uint64_t)d->index << 16 | d->life));
        if (chance(W.is.ucx))
            d->carriers = (uint8_t)((chance(W.is.no_tcp) ? 0 : d->carriers) |
                                    BIT(CARRIER_UCX));
        W.from = from;
    }
    CHECK(d->carriers < ARRAY_LEN(texts), "carriers %x", d->carriers);
    d->bc.carriers = d->carriers;
    d->bc.carriers_text = texts[d->carriers];
    memset(W.broke[d->index], 0, sizeof(W.broke[d->index]));
}

void carrier_shut(struct daemon *from, const struct daemon *to, uint8_t carrier)
{
    trace("no rows pass from %s to %s by %s", from->conf->name, to->conf->name,
        carrier_name(carrier));
    W.shut[from->index][to->index] |= BIT(carrier);
    for (uint32_t k = 0; from->alive && k < from->shards_count; k++)
        for (uint32_t peer = 0; peer < LINKS_MAX; peer++) {
            const struct address *a = &from->shards[k].peers[peer];

            if (a->count > 0 && a->to == to->index && a->carrier == carrier)
                data_break(&from->shards[k], peer);
        }
}

/* langd chooses the best carrier that both have and that has not broken in the
 * encoder's run: see PROTOCOL.md, data messages. */
/* RULES 3.3 */
static void see_choice(const struct daemon *d, const struct peer *p)
{
    const struct daemon *e = W.daemons[d->wants[p->link]];
    uint8_t both = d->carriers & e->carriers;
    uint8_t better = both & (uint8_t) ~((2u << p->pair.chosen) - 1);
    uint8_t one = both ? both : BIT(CARRIER_AUTO);

    HOLDS(p->epoch != e->bc.epoch ||
              ((one >> p->pair.chosen & 1) &&
                  (better & ~W.broke[e->index][d->index]) == 0),
        "the best carrier of both is chosen",
        "%s: of %x for %s, which has %x: %u; %x have broken", d->conf->name,
        d->carriers, e->conf->name, e->carriers, p->pair.chosen,
        W.broke[e->index][d->index]);
}

void carriers_watch(const struct daemon *d)
{
    const struct langd *l = d->brain;

    PEERS_FOREACH (p, &l->b.peers)
        if (peer_up(p) && d->wants[p->link] != NONE)
            see_choice(d, p);
}

bool carriers_refused(const struct cons *c)
{
    const struct handle *h = c->h[0];

    HOLDS(!h || !h->seen_failed || h->reason == ERR_INCOMPATIBLE_LAYOUT,
        "nothing in common is said", "%s room %llu: %s", c->d->conf->name,
        (unsigned long long)c->room, err_name((enum err)h->reason));
    return h && h->seen_failed;
}

/* Four pairs: both carriers in common, one of them, or none. A langd that is
 * refused is no destination: the room stays for one that can get its rows. */
void carriers_differ(void)
{
    struct prod *p;
    struct cons *c[3];

    quiet_world(2, 2);
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, 64, 16, 0);
    e1 = make(ROLE_ENCODED, "e1", ROW_4K, 64, 16, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, 64, 16, 2);
    l1 = make(ROLE_LANGD, "l1", ROW_4K, 64, 16, 2);
    e0->carriers = l0->carriers = BIT(CARRIER_TCP) | BIT(CARRIER_UCX);
    e1->carriers = BIT(CARRIER_UCX);
    start_all();
    for (uint64_t r = 0; r < 9; r++) {
        p = announce(r < 4 ? e0 : e1, 1 + r, 100, r == 8 ? 30 : 3 + r);
        p->known = r % 2;
        p->must_succeed = true;
        if (r >= 6) { /* the refused langd asks first */
            c[r - 6] = request(l1, e1, 1 + r, 20);
            c[r - 6]->must_succeed = false;
            request(l0, e1, 1 + r, 60);
        } else {
            request(r % 2 && r < 4 ? l1 : l0, p->d, 1 + r, 12 - 2 * r);
        }
    }
    (void)run_until(50 * MS);
    for (uint32_t i = 0; i < 3; i++)
        HOLDS(carriers_refused(c[i]), "nothing in common is said at once",
            "room %llu waits", (unsigned long long)c[i]->room);
    (void)run_until(100 * MS);
    HOLDS(world_over() && W.succeeded == 9, "every room ends soon",
        "%u succeeded; encode%s; language%s", W.succeeded, prods_left(),
        cons_left());
    world_finish(LIMIT);
}
