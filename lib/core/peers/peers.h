/* peers.h - the other daemons, as both brains see them: names, epochs, which
 * link they are on, what their pools hold. Pure; one thread.
 *
 * A link is a control connection that the body made; a peer is a daemon with
 * a name. A peer is up while its link is, and HELLOs were exchanged on it.
 * It is lost when a HELLO shows a new epoch, or when its link has been down
 * for control.lost_after: silence alone is not death. To langd, which connects,
 * it is unreachable when it was asked for and has not been up for
 * timeouts.unreachable, whatever the cause. */
#ifndef MMX_CORE_PEERS_H
#define MMX_CORE_PEERS_H

#include "base/heap.h"
#include "base/list.h"
#include "core/brain.h"
#include "core/out.h"
#include "core/peers/trouble.h"
#include "wire/carriers.h"

struct peer_pool {
    uint64_t hash;
    char name[64];
    char text[LAYOUT_TEXT_MAX + 1];
};

#define TROUBLE_SAID (TROUBLE_TEXT + 32)
/* The log says what is wrong with a peer at most once in this time. */
#define SAID_EVERY_NS (10 * NS_PER_S)
struct said {
    bool untold;             /* the log does not say it yet */
    uint64_t from_ns;        /* no line before this time */
    char text[TROUBLE_TEXT]; /* empty: nothing was wrong yet */
};

_Static_assert(MAPS_NONE >> CONF_POOLS_MAX, "the bit is of no pool");

/* What is wrong with a peer (path.c). */
struct peer_trouble {
    uint8_t kind; /* enum trouble; TROUBLE_NONE: nothing is wrong */
    uint64_t since_ns;
    char text[TROUBLE_TEXT]; /* names the address if it is not the peer's own */
    struct said said;
};

/* Whether rows can go to a langd, as encoded found out and says in HELLO. */
enum path { PATH_NOT_SAID, PATH_TRIED, PATH_OPEN, PATH_SHUT };

/* The states of life.def. */
enum peer_life {
#define PEER(name, word, next, text) PEER_##name,
#include "core/peers/life.def"
};

/* What only encoded keeps of a langd. */
struct peer_of_encoded {
    /* run: a hash of the langd's name and epoch; its generations are known
     * under it. dead_to: the highest generation that ended and is forgotten. */
    uint32_t run;
    uint64_t dead_to;
    /* Copies on one host: the connection on which langd maps our pools, the
     * epoch of the run that does, and bit i: it was given pool i. */
    uint32_t map_conn, offered;
    uint64_t map_epoch;
    /* its requests wait for the mapping until then */
    uint64_t map_by_ns;
    uint32_t copied[CONF_POOLS_MAX]; /* blocks that langd may be copying */
    bool path_due; /* langd has not heard the result of the last try */
    /* number of the last try; its data address, or the next one's */
    uint32_t tries, try_at;
    uint64_t shut; /* bit i: data address i could not be connected */
    /* time of the last try, the next try's, the pause */
    uint64_t tried_ns, try_ns, pause_ns;
};

/* What only langd keeps of an encoder. */
struct peer_of_langd {
    /* A flag says whether requests may name the encoder; its state of life does
     * not, since one that leaves is up or away until its rooms have ended. */
    bool configured;     /* the configuration has it: never evicted */
    bool leaving;        /* no request may name it any more */
    bool far;            /* its link leaves this host's network */
    bool map_asked;      /* ACT_MAP is under way, or has succeeded */
    bool keyed, key_due; /* data_key is in force; the link has not carried it */
    /* unreachable if not up by then; TIME_NEVER: up, not asked for, or
     * unreachable already */
    uint64_t away_ns;
    uint64_t map_token;
    const char *map_why; /* why some pool is not mapped; NULL: not known */
    /* For engines here that read the encoder's pools: its number as a lender
     * (0: they may not read), and the token and socket for MAP. */
    uint16_t lender;
    uint64_t lend_token;
    char lend_socket[SOCKET_PATH_MAX];
    uint8_t data_key[DATA_KEY_BYTES]; /* data connections prove this key */
};

struct peer {
    uint8_t life; /* enum peer_life; peer_move() alone writes it */
    uint8_t path; /* enum path */
    bool same_host;
    uint32_t link;     /* NONE: no connection */
    uint64_t epoch;    /* of the peer's last HELLO; 0: none yet */
    uint64_t lost_ns;  /* the peer is lost if its link is down until then */
    uint64_t hello_ns; /* when HELLO is sent again; TIME_NEVER */
    /* The holder whose share counts the place. encoded: the host that the link
     * comes from (struct event); langd: the user that named the address, or the
     * configuration. */
    uint64_t holder;
    uint64_t asked_ns; /* when the peer came up, or a room asked for it last */
    uint32_t serial;   /* of the peer in this place; never used again */
    /* A hash, never 0: at encoded of the peer's name, at langd of its address.
     * Records that outlive this entry name the peer by it. */
    uint32_t who;
    struct list rooms; /* langd: its rooms; encoded: its destinations */
    /* of rooms that succeeded with the peer */
    uint64_t rooms_moved, bytes_moved;
    struct heap_node timer;
    uint32_t segment_max, addresses, pools_count;
    uint32_t hello_seq; /* of the last HELLO from which `draining` was taken */
    uint32_t told;      /* self.news when we sent our last HELLO */
    /* How rows travel. langd: the carrier that it chose. encoded: the one that
     * langd named; the langd's addresses are for it. */
    struct carrier_pair pair;
    /* enum carrier_number: as in our last HELLO, or langd's */
    uint8_t carrier;
    uint32_t mapped;    /* bit i: pool i of the encoder is mapped */
    char carriers[256]; /* carriers that the peer names; empty: none said */
    /* name for requests: from the configuration, or an address */
    char label[128];
    char name[64], address[128], advertise[128], software[32];
    struct peer_trouble trouble;
    struct peer_pool pools[CONF_POOLS_MAX];
    struct peer_of_encoded e;
    struct peer_of_langd l;
};

/* This daemon, as its HELLOs describe it. */
struct self {
    const struct brain_conf *c;
    uint8_t role;
    uint32_t pools_count;
    const struct layout *layouts[CONF_POOLS_MAX]; /* count 0: not known */
    bool draining;                                /* takes no new rooms */
    uint32_t news;  /* counts changes to the content of HELLO */
    uint8_t *blobs; /* of the next HELLO: ADDRESSES_MAX for each carrier */
    struct own_addresses own[CARRIER_END]; /* langd: sent in its HELLOs */
    uint8_t loopback; /* bits of carriers whose addresses are all loopback */
};

/* What differs between langd and encoded. */
struct peers_ops {
    bool greets; /* langd: connects, and sends the first HELLO */
    /* encoded: returns the peer that sent this HELLO, or NULL and why there is
     * none. If the role has no such function, the sender is the link's peer. */
    struct peer *(*find)(void *brain, struct out *out, uint32_t link,
        const struct peer_msg *m, const char **text);
    /* The peer's HELLO was taken, and is not answered yet. */
    void (*greeted)(void *brain, struct out *out, uint32_t link,
        struct peer *peer, const struct peer_msg *m, bool was_up);
    /* langd: the peer has begun to drain. */
    void (*drains)(void *brain, struct out *out);
    /* The peer's connection stayed away, or (restarted) its epoch has ended. */
    void (*lost)(
        void *brain, struct out *out, struct peer *peer, bool restarted);
    /* langd: the peer has become unreachable. */
    void (*unreachable)(void *brain, struct peer *peer);
    /* langd: true if a peer without rooms may give its place to another. */
    bool (*spare)(const void *brain, const struct peer *peer);
    /* langd: the peer has never answered, and another takes its entry. The
     * function takes the rooms from the peer. */
    void (*gives_way)(void *brain, struct peer *peer);
};

struct peers {
    struct peer *peers;
    uint32_t *link_peer; /* by link; NONE: no peer yet */
    uint64_t *link_host; /* encoded, by link: its struct event's host */
    uint32_t max, links; /* share_peers(), and twice that */
    /* encoded: no peer that is up is evicted before this time */
    uint64_t evict_ns;
    char why[128]; /* why a HELLO is refused */
    struct heap timers;
    struct self self;
    struct said strangers; /* refusals of daemons that are no peers */
    char stranger[64];     /* the name that the last of them gave */
    /* encoded: no data connection is tried before this time */
    uint64_t tries_ns;
    uint32_t seq, serials, tries;
    const struct peers_ops *ops;
    void *brain;
    uint64_t *stats;
};

void peers_init(
    struct peers *p, struct slab *s, const struct brain_conf *c, uint8_t role);

/* life.c: takes the peer to a state that may follow its present one. */
void peer_move(struct peer *peer, enum peer_life to);
/* Returns the name of the peer's state in reports. */
const char *peer_life_name(const struct peer *peer);
static inline bool peer_up(const struct peer *p)
{
    return p->life == PEER_UP || p->life == PEER_DRAINING;
}
/* Returns the peer behind `after`, or the first; NULL: there is none. */
struct peer *peers_next(const struct peers *p, const struct peer *after);
#define PEERS_FOREACH(p, all)                                                  \
    for (struct peer *p = peers_next(all, NULL); p; p = peers_next(all, p))

/* Sends HELLO again to all peers that are up, until they answer. */
void peers_news(struct peers *p, uint64_t now_ns);
/* Sends HELLO again to one peer that is up, until it answers. */
void peer_say_news(struct peers *p, struct peer *peer, uint64_t now_ns);
/* Takes the addresses that HELLOs carry from now on. */
void peers_addresses(struct peers *p, struct out *out, const struct event *ev);

/* path.c */
/* Notes what is wrong with the peer; peer_troubled() has the log say it,
 * too. */
void peer_note_trouble(
    struct peer *peer, enum trouble kind, const char *text, uint64_t now_ns);
void peer_troubled(struct peer *peer, struct out *out, enum trouble kind,
    const char *text, uint64_t now_ns);
/* Notes that nothing is wrong any more. */
void peer_mended(struct peer *peer, struct out *out, uint64_t now_ns);
/* Returns what is wrong, and the key that mends it; "" if nothing is wrong. */
const char *peer_trouble_text(const struct peer *peer, char out[TROUBLE_SAID]);
/* True if rows can come or go as far as is known. */
static inline bool peer_open(const struct peer *p)
{
    return peer_up(p) &&
           (p->mapped || !trouble_of_data((enum trouble)p->trouble.kind));
}
/* langd: peer_look() looks whether this host's data addresses suit the encoder;
 * path_hear() takes what a HELLO says of the path. */
void peer_look(
    struct peers *p, struct out *out, struct peer *peer, uint64_t now_ns);
void path_hear(struct peers *p, struct out *out, struct peer *peer,
    const struct peer_hello *m, uint64_t now_ns);
/* encoded: puts the state of the path into a HELLO. */
void path_say(struct peer *peer, struct peer_hello *m);
/* encoded: path_try() sets a time for a try of the data path, path_due() makes
 * it, path_end() forgets the result. path_note() handles a shard's note; true:
 * the note was about a path alone. */
void path_try(struct peers *p, struct peer *peer, uint64_t now_ns);
void path_due(
    struct peers *p, struct out *out, struct peer *peer, uint64_t now_ns);
void path_end(struct peer *peer);
bool path_note(struct peers *p, struct out *out, const struct event *ev);

/* Returns the peer on this link, or NULL. */
struct peer *peer_on(const struct peers *p, uint32_t link);
/* Returns the number of the peer. */
static inline uint32_t peer_index(
    const struct peers *p, const struct peer *peer)
{
    CHECK(peer >= p->peers && peer < p->peers + p->max, "peer %td",
        peer - p->peers);
    return (uint32_t)(peer - p->peers);
}
/* places.c */
/* Takes a place for a new peer: a free one, or (out not NULL) that of a peer
 * without rooms, which is then forgotten: of one that is not up, else of the
 * one that was asked for longest ago, at least PEER_IDLE_NS ago. The peer on
 * link `but` stays. Holders share the places as in any table (share.h); a
 * holder that may have no more takes the place of an idle peer of its own.
 * langd: an address outside the configuration needs no place until it answers.
 * who: the peer's name; langd: its address. NULL: p->why says who holds how
 * many. */
#define PEER_IDLE_NS   (5 * NS_PER_S)
#define HOLDER_OF_CONF UINT64_MAX /* may have all places */
struct peer *peer_place(struct peers *p, struct out *out, struct span who,
    uint64_t holder, uint32_t but, uint64_t now_ns);
/* langd: true if the peer, which sends HELLO, has a place. */
bool peer_proven(
    struct peers *p, struct out *out, const struct peer *peer, uint64_t now_ns);
/* True if a known peer may come back: its place is still taken, or the holder
 * may have one. */
bool peer_returns(struct peers *p, struct out *out, const struct peer *peer,
    uint64_t holder, uint32_t but, uint64_t now_ns);

struct peer *peer_named(const struct peers *p, struct span name);

/* Counts a room that succeeded with the peer. */
static inline void peer_moved(
    struct peer *p, uint32_t rows, const struct layout *layout)
{
    p->rooms_moved++;
    p->bytes_moved += (uint64_t)rows * layout->row_bytes;
}

/* Logs the text about the daemon `who`: if it differs from the last one, or
 * with `lasts` also each time; at most once in SAID_EVERY_NS. */
void peer_warn_once(struct said *s, struct out *out, const char *who,
    const char *text, bool lasts, uint64_t now_ns);
/* Fills the header's fields (epochs, sequence) and sends the message. */
void peer_send(struct peers *p, struct out *out, const struct peer *peer,
    struct peer_msg *m);
void peer_hello(struct peers *p, struct out *out, uint32_t link,
    uint64_t to_epoch, bool answer);
/* langd: rows that were to come from the peer are lost. True: another carrier
 * was chosen for it, and HELLO has to say so. */
bool peer_carrier_broke(struct peers *p, struct out *out, struct peer *peer,
    uint64_t now_ns, uint64_t outage_ns);
/* Sends HELLO, and again until the peer answers. */
void peer_hello_until_up(
    struct peers *p, struct out *out, struct peer *peer, uint64_t now_ns);
void peer_nack(struct peers *p, struct out *out, uint32_t link,
    const struct peer_msg *m, enum err reason, const char *text);

/* Takes the message of an EV_PEER. HELLO and a NACK of ours are handled here;
 * for any other message returns its peer. NULL: nothing more to do. */
struct peer *peers_hear(
    struct peers *p, struct out *out, const struct event *ev);

/* Counts a frame that could not be read, and refuses it if its header could. */
void peer_bad(struct peers *p, struct out *out, const struct event *ev);

/* Reads a HELLO into *peer, which stays as it was on error. */
MUST_CHECK enum err peer_take_hello(struct peer *peer,
    const struct peer_hello *m, const struct key *boot, const char **text);
/* After a HELLO: gives its data addresses, if any, to the shards. The same
 * addresses change nothing, except for a worker that was replaced. */
void peer_tell_shards(struct peers *p, struct out *out, struct peer *peer,
    const struct peer_hello *m);

/* Returns the token that a langd gives on this encoded's Unix socket; 0: it may
 * not map. */
uint64_t peer_token(const struct peers *p, const struct peer *peer);
/* Returns the token that engines of a run of this langd give in MAP. It stays
 * known when the run has ended. */
uint64_t peer_lend_token(const struct peers *p, uint32_t who, uint64_t epoch);
/* Returns the number of a langd's run, under which its generations and readers
 * are known; never 0. */
uint32_t peers_run(const struct peers *p, uint32_t who, uint64_t epoch);
/* Returns `who` of the peer that this text names. */
uint32_t peers_who(const struct peers *p, struct span text);
/* True if langd itself copies rows of the encoder's pool. */
bool peer_copies(const struct peer *peer, uint32_t pool);

/* langd: begins to wait for a peer that is not up (timeouts.unreachable). */
void peer_awaited(struct peers *p, struct peer *peer, uint64_t now_ns);
/* Notes that the link is down: after control.lost_after the peer is lost. */
void peer_down(struct peers *p, struct peer *peer, uint64_t now_ns);
/* Closes the peer's link, if any, without another message. */
void peer_disconnect(struct peers *p, struct out *out, struct peer *peer);
/* Ends all that goes on with the peer. restarted: its epoch has ended, too. */
void peer_lost(
    struct peers *p, struct out *out, struct peer *peer, bool restarted);
/* Frees the place of a peer that has no rooms. */
void peer_forget(struct peers *p, struct out *out, struct peer *peer);
/* Takes the news that a link is up or down. */
void peers_link(struct peers *p, struct out *out, const struct event *ev);
/* Sends the HELLOs that are due, tries paths, and ends lost peers. */
void peers_expire(struct peers *p, struct out *out, uint64_t now_ns);
/* Sets the peer's timer to the first of its times. */
void peer_arm(struct peers *p, struct peer *peer);

/* Returns the text of a layout hash in the peer's HELLO, or "unknown". */
const char *peer_layout(const struct peer *peer, uint64_t hash);

#endif
