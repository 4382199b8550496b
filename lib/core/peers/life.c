/* life.c - moves a peer from one state of life.def to the next. All other files
 * of the folder may call this one. Owned by the loop's thread. */
#include "core/peers/peers.h"

#include "base/check.h"

static const struct {
    const char *name;
    uint8_t next;
} lives[] = {
#define TO(name)                     (1 << PEER_##name)
#define PEER(name, word, next, text) {word, next},
#include "core/peers/life.def"
#undef TO
};

void peer_move(struct peer *peer, enum peer_life to)
{
    CHECK(peer->life < ARRAY_LEN(lives) && lives[peer->life].next >> to & 1,
        "peer %s goes from life %u to %u", peer->name, peer->life, to);
    peer->life = (uint8_t)to;
}

const char *peer_life_name(const struct peer *peer)
{
    return lives[peer->life].name;
}

struct peer *peers_next(const struct peers *p, const struct peer *after)
{
    uint32_t i = after ? peer_index(p, after) + 1 : 0;

    while (i < p->max && p->peers[i].life == PEER_FREE)
        i++;
    return i < p->max ? &p->peers[i] : NULL;
}
