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
/* What is wrong, as it is logged: at most once in this time. */
#define SAID_EVERY_NS (10 * NS_PER_S)
struct said {
    bool untold;             /* the log does not have it yet */
    uint64_t from_ns;        /* no line before */
    char text[TROUBLE_TEXT]; /* empty: none */
};

_Static_assert(MAPS_NONE >> CONF_POOLS_MAX, "the bit is of no pool");

/* What is wrong with a peer (path.c). */
struct peer_trouble {
    uint8_t kind; /* enum trouble; TROUBLE_NONE: nothing is */
    uint64_t since_ns;
    char text[TROUBLE_TEXT]; /* with the address, where it is another one */
    struct said said;
};

/* Whether rows can go, as encoded found and says in HELLO. */
enum path { PATH_NOT_SAID, PATH_TRIED, PATH_OPEN, PATH_SHUT };

/* The states of life.def. */
enum peer_life {
#define PEER(name, word, next, text) PEER_##name,
#include "core/peers/life.def"
};

/* What encoded alone keeps of a langd. */
struct peer_of_encoded {
    /* A hash of its name and epoch, the scope of its generations. dead_to: the
     * highest of those that ended and is not remembered any more. */
    uint32_t run;
    uint64_t dead_to;
    /* Copies on one host: the connection on which it maps our pools, for which
     * run of it, and bit i: it was given pool i. */
    uint32_t map_conn, offered;
    uint64_t map_epoch;
    uint64_t map_by_ns;              /* until when its requests wait for that */
    uint32_t copied[CONF_POOLS_MAX]; /* blocks it may be copying */
    bool path_due;  /* it has not heard what came of the last try of its path */
    uint32_t tries; /* number of that try; its time, the next, the pause */
    uint64_t tried_ns, try_ns, pause_ns;
};

/* What langd alone keeps of an encoder. */
struct peer_of_langd {
    /* Whether requests may name it is no state of its life: one that leaves is
     * up or away as any other, until its rooms have ended. */
    bool configured;     /* it is in the config: never evicted */
    bool leaving;        /* no request may name it any more */
    bool far;            /* its link leaves this host's network */
    bool map_asked;      /* ACT_MAP is under way, or has succeeded */
    bool keyed, key_due; /* data_key is in force; its link has not heard it */
    uint64_t away_ns;    /* not up until then: unreachable; TIME_NEVER: it is
                          * up, not asked for, or unreachable */
    uint64_t map_token;
    const char *map_why; /* why not all pools are mapped; NULL: not known */
    /* Its pools may be read by engines here: its number as a lender, 0: they
     * may not; and what they say in MAP, where. */
    uint16_t lender;
    uint64_t lend_token;
    char lend_socket[SOCKET_PATH_MAX];
    uint8_t data_key[DATA_KEY_BYTES]; /* what data connections have to prove */
};

struct peer {
    uint8_t life; /* enum peer_life; peer_move() alone writes it */
    uint8_t path; /* enum path */
    bool same_host;
    uint32_t link;     /* NONE: no connection */
    uint64_t epoch;    /* of its last HELLO; 0: none yet */
    uint64_t lost_ns;  /* when a link that is down means lost; TIME_NEVER */
    uint64_t hello_ns; /* when to say HELLO again; TIME_NEVER */
    /* What its place is counted for. encoded: the host that its link comes from
     * (struct event); langd: the user that named its address, or the
     * configuration. */
    uint64_t holder;
    uint64_t asked_ns; /* when it came up, or a room was last asked for */
    uint32_t serial;   /* of all peers that had a place: never used again */
    uint32_t who; /* a hash of its name, at langd of its address; never 0. What
                   * outlives its place is remembered by it */
    struct list rooms; /* langd: its rooms; encoded: its destinations */
    uint64_t rooms_moved, bytes_moved; /* of rooms that succeeded with it */
    struct heap_node timer;
    uint32_t segment_max, addresses, pools_count;
    uint32_t hello_seq; /* of the HELLO that said last whether it drains */
    uint32_t told;      /* self.news, as our last HELLO said */
    /* How rows travel. langd: what was chosen; encoded: the same, as langd says
     * it, and what the addresses that it was given are for. */
    struct carrier_pair pair;
    uint8_t carrier;    /* enum carrier_number: as in the last HELLO */
    uint32_t mapped;    /* bit i: pool i of the encoder is mapped */
    char carriers[256]; /* what the peer can, as it says; empty: not said */
    char label[128]; /* what requests call it: a name of the config, or address
                      */
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
    bool draining;                                /* no new rooms */
    uint32_t news;  /* counts the changes of what HELLO says */
    uint8_t *blobs; /* of the next: ADDRESSES_MAX for each carrier */
    struct own_addresses own[CARRIER_END]; /* langd: for its HELLOs */
    uint8_t loopback; /* bits of carriers that other hosts do not reach */
};

/* A role's part of what peers say. */
struct peers_ops {
    bool greets; /* connects to them, and says HELLO first */
    /* Returns the peer that says HELLO, or why there is none; NULL: the one on
     * the link. */
    struct peer *(*find)(void *brain, struct out *out, uint32_t link,
        const struct peer_msg *m, const char **text);
    /* Its HELLO is taken, and not answered yet. */
    void (*greeted)(void *brain, struct out *out, uint32_t link,
        struct peer *peer, const struct peer_msg *m, bool was_up);
    /* langd: it has begun to drain. */
    void (*drains)(void *brain, struct out *out);
    /* Its connection stays away, or (restarted) its epoch has ended. */
    void (*lost)(
        void *brain, struct out *out, struct peer *peer, bool restarted);
    /* langd: it has become unreachable. */
    void (*unreachable)(void *brain, struct peer *peer);
    /* langd: true if a peer without rooms may give its place to another. */
    bool (*spare)(const void *brain, const struct peer *peer);
    /* langd: it has never answered, and another takes its entry: none of its
     * rooms is left with it. */
    void (*gives_way)(void *brain, struct peer *peer);
};

struct peers {
    struct peer *peers;
    uint32_t *link_peer; /* by link; NONE: no peer yet */
    uint64_t *link_host; /* encoded, by link: its struct event's host */
    uint32_t max, links; /* share_peers(), and twice that */
    uint64_t evict_ns;   /* encoded: when one that is up may be evicted again */
    char why[128];       /* a HELLO is refused */
    struct heap timers;
    struct self self;
    struct said strangers; /* daemons that are no peers */
    char stranger[64];     /* what the last of them calls itself */
    uint64_t tries_ns;     /* encoded: no data connection is tried before */
    uint32_t seq, serials, tries;
    const struct peers_ops *ops;
    void *brain;
    uint64_t *stats;
};

void peers_init(
    struct peers *p, struct slab *s, const struct brain_conf *c, uint8_t role);

/* life.c: takes the peer to the state, which may follow its own. */
void peer_move(struct peer *peer, enum peer_life to);
/* Returns the name of its state in reports. */
const char *peer_life_name(const struct peer *peer);
static inline bool peer_up(const struct peer *p)
{
    return p->life == PEER_UP || p->life == PEER_DRAINING;
}
/* Returns the peer behind `after`, or the first; NULL: there is none. */
struct peer *peers_next(const struct peers *p, const struct peer *after);
#define PEERS_FOREACH(p, all)                                                  \
    for (struct peer *p = peers_next(all, NULL); p; p = peers_next(all, p))

/* Has HELLO said again to all that are up, until they answer. */
void peers_news(struct peers *p, uint64_t now_ns);
/* The same to one of them. */
void peer_say_news(struct peers *p, struct peer *peer, uint64_t now_ns);
/* Takes the addresses that HELLOs say from now on. */
void peers_addresses(struct peers *p, struct out *out, const struct event *ev);

/* path.c */
/* Notes what is wrong with the peer; the second has the log say it, too. */
void peer_note_trouble(
    struct peer *peer, enum trouble kind, const char *text, uint64_t now_ns);
void peer_troubled(struct peer *peer, struct out *out, enum trouble kind,
    const char *text, uint64_t now_ns);
/* Notes that nothing is. */
void peer_mended(struct peer *peer, struct out *out, uint64_t now_ns);
/* Returns what is wrong, with the key that mends it; "" if nothing is. */
const char *peer_trouble_text(const struct peer *peer, char out[TROUBLE_SAID]);
/* True if rows can come or go, or may: nothing is known against it. */
static inline bool peer_open(const struct peer *p)
{
    return peer_up(p) &&
           (p->mapped || !trouble_of_data((enum trouble)p->trouble.kind));
}
/* langd: looks whether its own data addresses suit the encoder; takes what a
 * HELLO says of the path. */
void peer_look(
    struct peers *p, struct out *out, struct peer *peer, uint64_t now_ns);
void path_hear(struct peers *p, struct out *out, struct peer *peer,
    const struct peer_hello *m, uint64_t now_ns);
/* encoded: puts that into a HELLO. */
void path_say(struct peer *peer, struct peer_hello *m);
/* encoded: path_try has the data path tried when its turn comes, path_due does
 * so, path_end forgets the result. path_note handles a shard's note; true: the
 * note is about the path alone. */
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
/* Takes a place for a new peer: a free one, or that of one without rooms that
 * gives way (out not NULL): one that is not up, else the one that asked for
 * nothing for longest, and for PEER_IDLE_NS at least. The peer on link `but`
 * stays. Places go to holders as entries of any table do (share.h); one that
 * may have no more takes those of its own that are idle. langd: an address that
 * is not the configuration's needs none until it answers. who: the peer's name;
 * langd: its address. NULL: p->why says who holds how many. */
#define PEER_IDLE_NS   (5 * NS_PER_S)
#define HOLDER_OF_CONF UINT64_MAX /* may have all */
struct peer *peer_place(struct peers *p, struct out *out, struct span who,
    uint64_t holder, uint32_t but, uint64_t now_ns);
/* langd: true if the peer, which says HELLO, has a place. */
bool peer_proven(
    struct peers *p, struct out *out, const struct peer *peer, uint64_t now_ns);
/* True if a peer that is known may be the holder's: its place is taken, or the
 * holder is let in as a new one is. */
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

/* Logs the text about the daemon `who`: each text once, or with `lasts` once
 * for as long as the trouble lasts. */
void peer_warn_once(struct said *s, struct out *out, const char *who,
    const char *text, bool lasts, uint64_t now_ns);
/* Puts the header's fields in: epochs, sequence. */
void peer_send(struct peers *p, struct out *out, const struct peer *peer,
    struct peer_msg *m);
void peer_hello(struct peers *p, struct out *out, uint32_t link,
    uint64_t to_epoch, bool answer);
/* langd: rows that were to come from the peer are lost. True: its carrier is
 * given up, and another one was chosen, which HELLO has to say. */
bool peer_carrier_broke(struct peers *p, struct out *out, struct peer *peer,
    uint64_t now_ns, uint64_t outage_ns);
/* Repeats HELLO until it is answered. */
void peer_hello_until_up(
    struct peers *p, struct out *out, struct peer *peer, uint64_t now_ns);
void peer_nack(struct peers *p, struct out *out, uint32_t link,
    const struct peer_msg *m, enum err reason, const char *text);

/* Takes the message of an EV_PEER: HELLO and the answers to ours are done with
 * here. Returns the peer that any other is of; NULL: there is nothing more to
 * do. */
struct peer *peers_hear(
    struct peers *p, struct out *out, const struct event *ev);

/* Counts a frame that could not be read, and refuses it where its header
 * could. */
void peer_bad(struct peers *p, struct out *out, const struct event *ev);

/* Reads a HELLO into *peer, which stays as it was on error. */
MUST_CHECK enum err peer_take_hello(struct peer *peer,
    const struct peer_hello *m, const struct key *boot, const char **text);
/* HELLO is taken: shards learn the data addresses, when there are any. To say
 * the same again changes nothing; a worker that was replaced has another. */
void peer_tell_shards(struct peers *p, struct out *out, struct peer *peer,
    const struct peer_hello *m);

/* Returns what a langd has to say on the Unix socket of this encoded; 0: it may
 * not. */
uint64_t peer_token(const struct peers *p, const struct peer *peer);
/* Returns what engines of a run of the langd with this `who` say in MAP. It is
 * known after that run, too. */
uint64_t peer_lend_token(const struct peers *p, uint32_t who, uint64_t epoch);
/* Returns the run of a langd under which its generations and readers are known;
 * never 0. */
uint32_t peers_run(const struct peers *p, uint32_t who, uint64_t epoch);
/* Returns `who` of a peer that this text names. */
uint32_t peers_who(const struct peers *p, struct span text);
/* True if langd itself copies rows of the encoder's pool. */
bool peer_copies(const struct peer *peer, uint32_t pool);

/* langd: begins the patience with a peer that is not up. */
void peer_awaited(struct peers *p, struct peer *peer, uint64_t now_ns);
/* Notes that the link is lost: control.lost_after from now the peer is. */
void peer_down(struct peers *p, struct peer *peer, uint64_t now_ns);
/* Closes the peer's link, if it has one, and says nothing more there. */
void peer_disconnect(struct peers *p, struct out *out, struct peer *peer);
/* Ends all that is with the peer, whose epoch has ended if it restarted. */
void peer_lost(
    struct peers *p, struct out *out, struct peer *peer, bool restarted);
/* Frees the place of a peer that has no rooms. */
void peer_forget(struct peers *p, struct out *out, struct peer *peer);
/* Takes the news that a link is up or down. */
void peers_link(struct peers *p, struct out *out, const struct event *ev);
/* Does what is due: HELLOs, and peers that are lost. */
void peers_expire(struct peers *p, struct out *out, uint64_t now_ns);
/* Sets the peer's timer by its times. */
void peer_arm(struct peers *p, struct peer *peer);

/* Returns the text of a layout hash in the peer's HELLO, or "unknown". */
const char *peer_layout(const struct peer *peer, uint64_t hash);

#endif
