/* flow.h - all that a brain and its body say to each other: every event that
 * can happen, and every action that a brain can ask for.
 *
 * A brain (encode/encode.c, lang/lang.c) is pure: step() takes one event and
 * the time, which may have been read a few events before, and appends to a
 * bounded list of actions. It keeps no pointer of the event. If the list was
 * too short for everything, pending() is true: carry out the actions, empty the
 * list, and step again with EV_MORE. The same code runs in the daemons
 * (lib/node) and, many at a time, in the simulator (test/sim).
 *
 * Read in this order. flow.h, brain.h: a brain as the body sees it. head.h,
 * head.c: what both roles begin with; brain.c: which part takes an event.
 * engines.h, local.c: connections, attachments, and the messages that both
 * roles answer alike. peers/, debt.h: the other daemons, HELLO, what they are
 * owed. pools.h, show.h: pools and reports. Then one role: encode/encode.h or
 * lang/lang.h, and of its folder room.c first. Under both lie move/ (the
 * arithmetic of rows), conf/ (the configuration), and the tables share.h,
 * memory.h, aux_arena.h; out.h appends to the list of actions. */
#ifndef MMX_CORE_FLOW_H
#define MMX_CORE_FLOW_H

#include "core/peers/trouble.h"
#include "wire/wire.h"

enum room_state {
#define STATE(NAME, number, name, doc) ROOM_##NAME = (number),
#include "wire/room.def"
};

/* between a brain and its shards
 *
 * Commands go to every shard, in order; notes come back from each. A slot is
 * a place in the brain's table of rooms (langd) or destinations (encoded);
 * the generation tells one use of a slot from the next. */
enum data_cmd_type {
    LAND_OPEN,   /* slot generation attempt room pool peer; from, base, total;
                    the first run as in LAND_RUN; b 0: none yet */
    LAND_RUN,    /* slot generation; a = block, b = blocks: for the next rows */
    LAND_TOTAL,  /* slot generation; total */
    LAND_TRIM,   /* slot generation; a = rows granted now, fewer than before;
                    answered by NOTE_LAND_QUIET */
    LAND_BASE,   /* slot generation; a = first row still held: runs wholly below
                    it are gone. All their rows have landed: no answer */
    LAND_CLOSE,  /* slot generation; answered by NOTE_LAND_QUIET iff reply */
    SEND_OPEN,   /* slot generation attempt room pool peer (as all SEND_*);
                    from, unit_rows, part_rows, total; rows [from, limit) may be
                    sent; the first run as in SEND_RUN; b 0: none yet; copy: the
                    peer maps the pool, and is told where the rows lie instead
                    of being sent them */
    SEND_RUN,    /* slot generation; a = block, b = blocks */
    SEND_LIMIT,  /* slot generation; a = rows [from, a) may be sent, total */
    SEND_REWIND, /* slot generation attempt; from: start again there, a = limit,
                    total, copy */
    SEND_CLOSE,  /* slot generation; answered by NOTE_SEND_QUIET */
    PEER_OPEN,   /* peer: the body has its data addresses */
    PEER_TRY,    /* peer attempt; a = number of a data address: makes a data
                    connection there, if there is none. Its shard answers with
                    NOTE_PEER_TRIED, and again when that connection is lost */
    PEER_CLOSE   /* peer: its epoch ended; drops endpoints and queued sends */
};

struct data_cmd {
    uint8_t type;
    bool reply, copy;
    uint16_t pool;
    uint32_t slot, attempt, peer;
    uint64_t generation, room;
    uint32_t from, base, total, limit, unit_rows, part_rows, a, b;
};

enum data_note_type {
    NOTE_LANDED,      /* slot generation attempt; rows [first, first + rows) */
    NOTE_LAND_BAD,    /* slot generation: a segment contradicts the total;
                         once per attempt */
    NOTE_LAND_GONE,   /* slot generation: the memory of the rows is gone */
    NOTE_LAND_QUIET,  /* slot generation: all landings that began before the
                         command have ended */
    NOTE_SEND_QUIET,  /* slot generation: nothing queued or in flight */
    NOTE_PEER_BROKEN, /* peer; first = shard; slot = data address: the peer's
                         endpoint there is lost, and its sends were dropped */
    NOTE_PEER_TRIED,  /* peer; attempt of the last PEER_TRY; slot = data
                         address; rows = enum trouble. TROUBLE_NONE: the data
                         connection that PEER_TRY asked for is made. Otherwise
                         the event's text says why this one, or one to another
                         address, is not */
    NOTE_POOL_LOST    /* first = pool: its memory no longer works */
};

struct data_note {
    uint8_t type;
    uint32_t slot, attempt, peer, first, rows;
    uint64_t generation;
};

#define TROUBLE_TEXT 160 /* of a peer */

/* events */

enum event_type {
    EV_MORE,         /* nothing new: the step goes on with pending work */
    EV_TIME,         /* the time of deadline() has come */
    EV_CONN_OPEN,    /* an engine connected: conn, uid, gid, pid, groups */
    EV_CONN_END,     /* the connection ended; its process may still live */
    EV_CONN_DEAD,    /* the process is gone; the number may be used again */
    EV_LOCAL,        /* a message of an engine: conn, local */
    EV_LOCAL_BAD,    /* a frame that could not be read: conn, err, seq, fault */
    EV_LINK_UP,      /* a control connection to a peer is up: link */
    EV_LINK_DOWN,    /* it is lost; the number may be used again: link */
    EV_LINK_REFUSED, /* langd: its control connection cannot be made, or is
                        refused for a key: link, trouble, text */
    EV_PEER,         /* a message of a peer daemon: link, peer */
    EV_PEER_BAD,     /* a frame that could not be read: link, err; with fault
                        also peer, of which only the header is valid */
    EV_NOTE,         /* a note of one shard: note */
    EV_MAP,          /* langd: `mapped` has the bits of the pools of peer
                        `peer_at` that are mapped; err: ACT_MAP failed, none
                        are; static_why: why some are not, NULL: as before */
    EV_POOL,         /* a pool got its memory, or cannot get it: at start if its
                        layout is in the config, otherwise after ACT_POOL_FIX */
    EV_ADDRESSES, /* langd: the addresses of one carrier for its HELLOs; first
                     at start */
    EV_CONF,      /* values changed that conf.def lets a reload change */
    EV_DRAIN,     /* no new rooms; present ones go on */
    EV_UNDRAIN,   /* new rooms again, unless the daemon ends */
    EV_ENDING,    /* SIGTERM: as EV_DRAIN, and never undone */
    EV_KILL,      /* mmxctl: the open rooms with the id `room`, or with pid
                     those that this process opened, fail */
    EV_DROP,      /* encoded, mmxctl: rows kept in `pool` (NONE: in any) under
                     `key` (NULL: any) are kept no longer, and no announce finds
                     rows by such a key any more */
    EV_SEEK       /* langd, once a second: if no peer takes rooms, the next one
                     of the config is connected */
};

/* A pool's memory: where each field begins, and how engines map it. */
struct pool_memory {
    const uint64_t *offsets; /* LAYOUT_FIELDS_MAX */
    uint64_t bytes;
    const char *share; /* empty: a memfd */
    struct span handle;
};

/* The data_key of a HELLO: bits, then the bytes that langd draws for this pair
 * of runs. */
#define DATA_KEY_BITS  1u
#define DATA_KEY_FRESH 48u
#define DATA_KEY_BYTES (DATA_KEY_BITS + DATA_KEY_FRESH)

/* In `mapped` of langd's HELLO: it maps no pools, now or later. */
#define MAPS_NONE (1u << 31)

/* `addresses` of a HELLO for one carrier, at most as in peer.def: u16 length
 * and bytes of each. */
#define ADDRESSES_MAX 65536u
#define ADDRESS_MAX   16000u
struct own_addresses {
    uint8_t carrier; /* enum carrier_number */
    struct span data;
    bool loopback; /* no other host reaches them */
};

/* Groups of a process beside its first one, the lowest if it has more. */
#define GROUPS_MAX   64
#define GROUPS_BYTES (sizeof(uint32_t) * GROUPS_MAX) /* as INIT says them */
struct groups {
    uint32_t count, ids[GROUPS_MAX];
};

/* The daemon that owns a key. */
struct identity {
    char name[64];
    uint8_t role;
};

struct event {
    enum event_type type;
    uint64_t now_ns; /* monotonic, never less than the last event's */
    uint32_t conn;   /* below limits.connections */
    uint32_t link;   /* below 2 x share_peers(); chosen by langd's brain, or by
                        encoded's body */
    /* EV_LINK_UP at encoded: a number for the host at the other end, with IPv6
     * for its network; 0: unknown */
    uint64_t host;
    bool far; /* EV_LINK_UP at langd: to an address of no device of this host */
    uint32_t uid, gid;
    int32_t pid;
    uint64_t room;
    enum err err;
    enum trouble trouble; /* EV_LINK_REFUSED */
    uint32_t seq;
    struct wire_fault fault;
    const char *text;
    /* EV_LINK_UP, EV_PEER with a HELLO: DATA_KEY_FRESH random bytes, new in
     * each event; NULL: data connections have no keys. */
    const uint8_t *fresh;
    /* EV_PEER with a HELLO: the owner of the link's key; NULL: all share it. */
    const struct identity *owner;
    uint32_t pool;
    uint32_t peer_at, mapped;
    const char *static_why;          /* stays valid */
    union {                          /* valid during the step only */
        const struct groups *groups; /* NULL: none */
        const struct local_msg *local;
        const struct peer_msg *peer;
        const struct pool_memory *memory; /* NULL: it could not be made */
        const struct own_addresses *addresses;
        const struct key *key;
    };
    struct data_note note;
};

/* actions */

enum action_type {
    ACT_LOCAL,      /* conn: send the frame at bytes[at..at+len); fd says which
                       descriptor goes with it */
    ACT_NOTIFY,     /* conn has events: pull them with next_event() while its
                       socket takes them */
    ACT_CELL,       /* conn: status cell `index` becomes word */
    ACT_CONN_KNOWN, /* conn sent HELLO or MAP: it gives way to no other */
    ACT_CONN_CLOSE, /* conn: send what is queued, then close the socket. After
                       EV_CONN_END: nothing is held for the process, so forget
                       it; EV_CONN_DEAD follows */
    ACT_PEER,       /* link: send the frame at bytes[at..at+len) */
    ACT_CONNECT,    /* link: connect to the address at bytes[at..at+len).
                       `word` bytes behind it are a name: only the key of that
                       encoder will do; word 0: any encoder's */
    ACT_DISCONNECT, /* link: close it; the number may be used again */
    ACT_ENDED,      /* a room ended: log row number `word` of the history */
    ACT_WARN,       /* log the line at bytes[at..at+len) */
    ACT_PEER_DATA,  /* peer = index: these are its data addresses, as in
                       HELLO, then its data_key, at bytes[at..at+len); word: its
                       segment_max and, << 32, the carrier that they are for,
                       << 40 the length of the key. Comes before the PEER_OPEN
                       command */
    ACT_PEER_KEY,   /* langd: peer = index proves the data_key at
                       bytes[at..at+len) on data connections; len 0: none.
                       Comes before the HELLO that says so */
    ACT_DATA,       /* cmd, for every shard */
    ACT_MAP,        /* langd: peer = index is a daemon of this host: map its
                       pools by its Unix socket at bytes[at..at+len), with the
                       token word; the shards get them, and EV_MAP says which */
    ACT_UNMAP,      /* langd: peer = index: unmap its pools */
    ACT_POOL_FIX,   /* pool = index: its layout is now known; get its memory */

    ACT_INSIDE = ACT_PEER_DATA /* actions from here on reach the shards */
};

/* The descriptor that goes with a frame. FD_CELLS: of `index` new cells; word
 * is the seq of the HELLO. FD_POOL: of pool `index`; word is 1 if the engine
 * may write to it. */
enum { FD_NONE, FD_CELLS, FD_POOL };

struct action {
    uint8_t type;
    uint8_t fd;
    bool coalesce; /* ACT_LOCAL, ACT_PEER: may wait 1 ms for a later frame */
    uint32_t conn, link, index;
    uint32_t at, len;
    uint64_t word;
    struct data_cmd cmd;
};

/* The list that a step appends to. Memory belongs to the body. */
struct out {
    struct action *actions;
    uint32_t count, cap;
    struct writer bytes;
};

/* A body provides at least this, so that the actions of one room always fit. */
#define OUT_ACTIONS 4096
#define OUT_BYTES   (512u << 10)

/* a brain, seen from the body */

/* Rows of `mmxctl`: a column is named once, a value is text or a number. */
struct rows_out {
    void (*row)(struct rows_out *);
    void (*text)(struct rows_out *, const char *name, const char *value);
    void (*number)(struct rows_out *, const char *name, uint64_t value);
    uint32_t of; /* number of the peer or pool that the row is about */
};

/* How far a report has come. One call looks at no more than `places` entries of
 * a table, used or free; the next call goes on where this one ended, and shows
 * each entry as it is by then. At the start all but `places` and `uid` is 0. */
#define SHOW_POOLS_MAX 16
struct show_at {
    uint64_t at; /* the entry to go on at */
    uint32_t places;
    uint32_t uid; /* the reader; ids of other users are left out. 0: none are */
    bool over;    /* all was shown */
    uint64_t end; /* trace: where this report ends; 0: not known yet */
    uint32_t sums[SHOW_POOLS_MAX][3]; /* pools: counts so far */
};
#define SHOW_ALL (&(struct show_at){.places = UINT32_MAX})

#endif
