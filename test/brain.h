/* brain.h - the rig of the brains' unit tests: one brain with a configuration,
 * which the test steps, and the actions that it asked for. The test plays body,
 * shards, engines and peers; nothing of the core is replaced. After every step
 * the brain's own check of itself runs. What a call collected is valid until
 * the next call. */
#ifndef MMX_TEST_BRAIN_H
#define MMX_TEST_BRAIN_H

#include "core/trace/recorder.h"
#include "core/brain.h"
#include "test/t.h"

#define BRAIN_EPOCH UINT64_C(0xb0a1)
#define PEER_EPOCH  UINT64_C(0xfee1)
#define BRAIN_UID   500
#define MAX_ACTS    16384

struct rig {
    /* the rig made before, so that no sanitizer reports a leak */
    struct rig *before;
    struct brain *is;
    struct conf conf;
    struct brain_conf bc;
    struct recorder recorder;
    struct out out;
    uint64_t now_ns;
    bool noisy;                   /* shards answer only by brain_quiet() */
    bool fixing;                  /* a brain waits for the pool's memory */
    bool slow_pools;              /* memory comes only by brain_pool() */
    uint64_t host;                /* the host of links made by brain_hello() */
    bool far;                     /* those links leave this host */
    bool second;                  /* their langd has two data addresses */
    const struct identity *owner; /* the owner of their keys */
    uint32_t waiting_count;
    /* notes that noisy shards have yet to send */
    struct data_note waiting[256];

    /* The actions of the last call. */
    struct action acts[MAX_ACTS];
    uint32_t acts_count;
    uint8_t bytes[4u << 20];
    size_t bytes_len;
    uint64_t cells[8][64];
    struct local_msg event; /* for brain_event */
    uint8_t event_bytes[LOCAL_PACKET_MAX];
};

/* settings: "key=value", ended by NULL. The brain has one pool `main` of 16
 * blocks of 8 rows, "x:u8:4096", so that a unit is a block; and one shard,
 * which has TCP, and UCX if transfer.tls names other transports. */
struct rig *brain_make(uint8_t role, const char *const *settings);
#define BRAIN(role, ...)                                                       \
    brain_make(role, (const char *const[]){__VA_ARGS__, NULL})

#define DEFAULT_BLOCKS(n) "pools[0].default_blocks=" #n
#define ROOM_BLOCKS(n)    "pools[0].max_room_blocks=" #n
/* Returns make() of the first two settings; either may be NULL. */
static inline struct rig *brain_of(
    struct rig *(*make)(const char *, const char *), const char *const *of)
{
    return make(of[0], of[0] ? of[1] : NULL);
}

/* Steps the brain with the event, then with EV_MORE while it asks for that. */
void rig_step(struct rig *b, struct event *ev);
/* Does the same for an event that is only a type, and for EV_LINK_DOWN. */
static inline void brain_is(struct rig *b, enum event_type type)
{
    rig_step(b, &(struct event){.type = type});
}
static inline void brain_down(struct rig *b, uint32_t link)
{
    rig_step(b, &(struct event){.type = EV_LINK_DOWN, .link = link});
}
/* Reports the memory of the pool whose layout is known now; not ok: it
 * failed. */
void brain_pool(struct rig *b, bool ok);
/* Lets time pass, with EV_TIME whenever it is due. */
void brain_pass(struct rig *b, uint64_t ms);
/* Sends the oldest waiting note of a noisy shard; false: none waits. */
bool brain_quiet(struct rig *b);

/* engines */

/* Connects as user 7 and sends HELLO; connections share a session by its
 * name. */
void brain_conn(struct rig *b, uint32_t conn, const char *session);
void brain_user(
    struct rig *b, uint32_t conn, uint32_t uid, const char *session);
void brain_able(struct rig *b, uint32_t conn, uint32_t uid, const char *session,
    uint64_t abilities);
/* Sends a message; returns the answer's reason. brain_answer() has the rest. */
enum err brain_say(struct rig *b, uint32_t conn, struct local_msg m);
const struct local_answer *brain_answer(struct rig *b);
/* SAYS(b, conn, message, message): each must be answered with OK. */
#define SAYS(b, conn, ...)                                                     \
    brain_says(__FILE__, __LINE__, b, conn,                                    \
        (const struct local_msg[]){__VA_ARGS__},                               \
        ARRAY_LEN(((const struct local_msg[]){__VA_ARGS__})))
void brain_says(const char *file, int line, struct rig *b, uint32_t conn,
    const struct local_msg *m, size_t count);
/* Returns the connection's next event, in b->event; NULL: none. */
const struct local_event *brain_event(struct rig *b, uint32_t conn);
/* Takes all events of the connection; returns the `what` bits of the cell's
 * room. */
uint16_t brain_events(struct rig *b, uint32_t conn, uint32_t cell);
void brain_end(struct rig *b, uint32_t conn);  /* the connection ends */
void brain_dead(struct rig *b, uint32_t conn); /* its process ends */
void brain_gone(struct rig *b, uint32_t conn); /* both, in this order */
unsigned brain_state(const struct rig *b, uint32_t conn, uint32_t cell);
unsigned brain_reason(const struct rig *b, uint32_t conn, uint32_t cell);

/* the other daemon */

void brain_hello(
    struct rig *b, uint32_t link, const char *name, uint64_t epoch);
/* Gives a message of the peer that sent the link's last HELLO. */
void brain_hear(struct rig *b, uint32_t link, struct peer_msg m);
/* HEARS(b, link, message, message): gives each message of that peer. */
#define HEARS(b, link, ...)                                                    \
    brain_hears(b, link, (const struct peer_msg[]){__VA_ARGS__},               \
        ARRAY_LEN(((const struct peer_msg[]){__VA_ARGS__})))
void brain_hears(
    struct rig *b, uint32_t link, const struct peer_msg *m, size_t count);
/* Returns message i of the type among the last call's; i < 0: from the end.
 * NULL: none. */
const struct peer_msg *brain_said(struct rig *b, enum peer_type type, int i);
uint32_t brain_said_count(struct rig *b, enum peer_type type);
/* Returns the last command of the type; NULL: none. */
const struct data_cmd *brain_cmd(const struct rig *b, uint8_t type);
/* Returns the end of the rows that the last SEND_OPEN or SEND_LIMIT of this
 * call allows to be sent; 0: there is none. */
uint32_t brain_limit(const struct rig *b);

void brain_landed(
    struct rig *b, const struct data_cmd *open, uint32_t first, uint32_t rows);
uint64_t brain_stat(struct rig *b, const char *name);
uint64_t brain_shown(
    struct rig *b, const char *what, const char *name, uint32_t row);
/* Returns the text; empty if it is not shown. */
const char *brain_text(
    struct rig *b, const char *what, const char *name, uint32_t row);
uint32_t brain_free(const struct rig *b);
uint32_t brain_acts(const struct rig *b, uint8_t type);

/* Tells langd the data addresses that its shards have for a carrier. */
void brain_addresses(struct rig *b, uint8_t carrier, struct span blob);

#endif
