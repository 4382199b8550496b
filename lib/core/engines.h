/* engines.h - the engines' side of both brains: connections, sessions, and
 * attachments (a room in a cell of a connection). Pure; one thread.
 *
 * conn        one connection; free again only when its process is dead
 * session     the connections of one uid with one session name
 * attachment  a connection's part in a room: its cell, its rights, the rows
 *             shown to it and not released, and its pending events. It may
 *             wait for its room (attach before announce or request)
 *
 * A room's blocks are fenced by its attachments: one that was shown rows holds
 * them until it releases them or its process is dead. */
#ifndef MMX_CORE_ENGINES_H
#define MMX_CORE_ENGINES_H

#include "base/heap.h"
#include "base/list.h"
#include "base/table.h"
#include "core/brain.h"
#include "core/out.h"
#include "core/share.h"
#include "core/memory.h"

/* Limits the cells and events of a room, so that they fit a list of actions. */
#define ROOM_ATTACHMENTS_MAX 128

/* Why a room or a destination failed. A table keeps them apart from its
 * entries: few entries fail, and only those write to this memory. */
struct why {
    char text[128];
};

static inline char *why_clear(struct why *w)
{
    if (w->text[0])
        w->text[0] = 0;
    return w->text;
}

/* The part of a room that both sides share; first member of brains' rooms. */
struct room {
    uint64_t id;
    uint8_t state, reason; /* enum room_state, enum err */
    bool used;
    bool joined;         /* an attachment joined since the last room_show */
    uint8_t told_state;  /* state in the cells; UINT8_MAX: none yet */
    uint32_t a, b;       /* numbers that belong to the reason */
    uint32_t session;    /* owner: its serial; NONE: none yet, or no longer */
    uint32_t rows_shown; /* for cells: rows committed (encoded) or readable
                            (langd) */
    uint32_t told_rows;
    uint32_t attachments_count; /* at most ROOM_ATTACHMENTS_MAX */
    uint64_t ended_row;         /* its row in the history, once it has ended */
    struct list attachments;
    struct list in_session;
    struct list todo; /* on the brain's todo list */
    char *text;       /* of its why */
};

struct attachment {
    struct list in_room; /* of its room; without one, of those of its session
                            that wait */
    struct list in_conn, in_dirty;
    struct room *room;
    uint64_t room_id;            /* of the room it waits for or belongs to */
    uint32_t scope;              /* langd: peer of the room; encoded: 0 */
#define SCOPE_OF_NONE (NONE - 1) /* of no room: the peer has gone */
    uint32_t name;               /* hash of the room's secret: brain_name() */
    uint32_t conn, cell, tag;
    uint32_t released;      /* rows [0, released) were given back */
    uint16_t pending;       /* EVENT_ bits of the next event */
    uint8_t rights, reason; /* reason: without a room, why it ends */
    bool used, owner;
    bool fresh; /* joined since the last room_show */
    bool shown; /* rows were shown and may be in use */
    struct heap_node timer;
};

/* CONN_DAEMON: of a langd that maps pools, not of an engine. */
enum conn_state { CONN_FREE, CONN_OPEN, CONN_READY, CONN_ENDED, CONN_DAEMON };

/* A lender whose pools an engine maps. langd numbers each run of an encoder
 * that lends. */
struct conn_maps {
    uint16_t lender, pools; /* its number, 0: none; bit i: pool i */
};
#define CONN_MAPS_MAX 8 /* of one connection: encoders of a host */

struct conn {
    uint8_t state;
    bool lends; /* the connection takes LENDER */
    /* the highest lender that the connection was told of */
    uint16_t lender_said;
    struct conn_maps maps[CONN_MAPS_MAX];
    bool notified; /* an ACT_NOTIFY was sent */
    bool bye;
    uint32_t uid, gid;
    struct groups groups;
    int32_t pid;
    uint32_t session, serial, cells; /* serial: of its session, never used
                                        again */
    uint32_t pool, pool_seq; /* its POOL call waits for pool number pool - 1; 0:
                                none */
    struct list attachments, dirty;
    uint32_t rooms;       /* attachments, now */
    uint64_t rooms_total; /* and ever */
    uint64_t bytes;       /* encoded: of rows that it committed; langd: of ended
                             rooms that were attached to it */
    uint64_t opened_ns;
    struct list in_silent; /* linked until HELLO or MAP */
    uint64_t hello_by_ns;
    bool hello_seen_late; /* the loop was late for its HELLO: it gets one more
                             turn */
    char name[64];
};

struct session {
    bool used;
    uint32_t uid, serial, conns; /* connections that are not CONN_ENDED */
    struct list rooms, waiting;
    char name[64];
};

/* The room that an attachment belongs to. */
struct attach_to {
    struct room *room;        /* NULL: it must wait for the room, */
    const struct tomb *ended; /* unless `ended` is a room of its session */
    uint32_t scope, name;
};

/* A role's part in handling requests of engines. */
struct engines_ops {
    uint16_t succeeded;     /* event of a room's success */
    const char *wrong_role; /* text for engines that want the other role */
    uint8_t rights;         /* rights that ATTACH may request */
    const char *rights_text;
    /* Finds the room of an ATTACH. On error *text says why. */
    enum err (*find)(void *brain, struct out *out, uint32_t conn,
        const struct local_attach *n, struct attach_to *to, const char **text);
    /* The owner released the room, before its end or after it. */
    void (*withdraw)(void *brain, struct room *r);
    /* An engine aborts the room. */
    void (*fail)(
        void *brain, struct room *r, enum err reason, const char *text);
    /* The owner waits for no more readers; NULL: the role has no readers. */
    void (*no_readers)(void *brain, struct room *r);
    /* Rows of the room were released; NULL: nothing to do. */
    void (*released)(void *brain, struct out *out, struct room *r);
    /* An attachment joined the room: settle it. */
    void (*touched)(void *brain, struct room *r);
    /* An attachment of the room is about to be dropped: it released everything,
     * or is dead. */
    void (*leaving)(void *brain, struct attachment *att);
    /* The owner's session ended: fail the room as engine-lost. */
    void (*orphaned)(void *brain, struct room *r);
    void (*conn_over)(void *brain, uint32_t conn);
    /* NULL: nothing to do. */
    void (*session_over)(void *brain, uint32_t session);
};

struct engines {
    struct conn *conns;
    struct session *sessions;
    struct attachment *attachments;
    uint32_t *cell_attachment; /* [conn * cells_max + cell] =
                                  attachment + 1; 0: none */
    /* serials: of sessions, so far */
    uint32_t conns_max, cells_max, attachments_max, attachments_used;
    uint32_t serials;
    struct slots slots; /* of attachments */
    struct share share; /* of attachments */
    struct heap timers; /* of attachments that wait for their room */
    struct list silent; /* connections without HELLO, oldest first */
    uint64_t hello_ns;  /* how long they may stay without it */
    const struct engines_ops *ops;
    void *brain;
    uint64_t *stats;
};

void engines_init(
    struct engines *g, struct slab *s, const struct conf *c, uint64_t seed);

void engine_open(struct engines *g, const struct event *ev);
/* Ends the connection, at end of file or BYE. */
void engine_end(struct engines *g, uint32_t conn);
/* True if an ended connection has no attachments, so that its number can be
 * reused before its process ends. */
bool engine_empty(const struct engines *g, uint32_t conn);
/* Frees a connection whose process is dead, with its attachments. */
void engine_dead(struct engines *g, uint32_t conn);
/* Handles HELLO: joins a session. On error the text says why. */
MUST_CHECK enum err engine_hello(struct engines *g, uint32_t conn,
    const struct local_hello *m, uint8_t role, const char **text);

/* Records that HELLO or MAP came: the connection is not evicted any more. */
void engine_known(struct engines *g, struct out *out, uint32_t conn);

/* True if an attachment waits for a room in this scope. O(all that wait). */
bool engines_wait_for(const struct engines *g, uint32_t scope);
/* Makes the attachments that wait for a room in this scope fail at the next
 * engines_expire. */
void engines_give_up(struct engines *g, uint32_t scope, uint64_t now_ns);
/* Fails attachments that waited too long, and ends connections that sent no
 * HELLO in time, while `out` has space. */
void engines_expire(struct engines *g, struct out *out, uint64_t now_ns);

/* Returns when engines_expire is due; TIME_NEVER: not at all. */
uint64_t engines_deadline(const struct engines *g);

/* True if a process of this user and these groups may map the pool. */
bool user_may(
    const struct conf_pool *pool, uint32_t uid, const struct groups *groups);
/* True if the process behind this connection may map the pool. */
bool engine_may(
    const struct engines *g, uint32_t conn, const struct conf_pool *pool);

/* Binds cell and tag of conn to a new attachment. scope as in struct
 * attachment. */
MUST_CHECK enum err attachment_add(struct engines *g, uint32_t conn,
    uint32_t cell, uint32_t tag, uint8_t rights, struct attachment **out,
    const char **text);
/* Returns the attachment under this cell and tag; NULL: none. */
struct attachment *attachment_get(
    const struct engines *g, uint32_t conn, uint32_t cell, uint32_t tag);
/* True if the room has ROOM_ATTACHMENTS_MAX attachments. */
static inline bool room_crowded(const struct room *r)
{
    return r->attachments_count >= ROOM_ATTACHMENTS_MAX;
}
/* Adds bytes of the room to the counts of its connections. */
void room_counts(struct engines *g, struct room *r, uint64_t bytes);
/* Puts the attachment on the room (and off its session's waiting list). */
void attachment_join(struct engines *g, struct attachment *att, struct room *r);
/* Makes the attachment wait for the room that it names, in its session. */
void attachment_wait(
    struct engines *g, struct attachment *att, uint64_t deadline_ns);
/* Makes an attachment that waits fail with the reason at the next
 * engines_expire. */
void attachment_end(struct engines *g, struct attachment *att, enum err reason,
    uint64_t now_ns);
/* Notifies an attachment without a room of how the room has ended, or of its
 * own end: its deadline came, or it was aborted. */
void attachment_over(struct engines *g, struct out *out, struct attachment *att,
    uint8_t state, enum err reason);
/* Unbinds and frees the attachment, and touches its room. */
void attachment_drop(struct engines *g, struct attachment *att);
/* Does the same as attachment_drop, and clears the cell, so that the word of an
 * ended room never shows under a tag that is used again. */
void attachment_release(
    struct engines *g, struct out *out, struct attachment *att);

/* Notifies a connection of events to pull with next_event(). */
void engine_notify(struct engines *g, struct out *out, uint32_t conn);
/* Adds `what` to the pending event of one attachment, or of all of a room. */
void attachment_notify(
    struct engines *g, struct out *out, struct attachment *att, uint16_t what);
void room_notify(
    struct engines *g, struct out *out, struct room *r, uint16_t what);
/* Updates the room's cells and notifies its attachments: all of them of `news`
 * and, once, of the room's end; those that joined since the last call also of
 * all that is true (`known`). */
void room_show(struct engines *g, struct out *out, struct room *r,
    uint16_t known, uint16_t news);
/* Makes the session of conn the room's owner. Joins its waiting attachments to
 * the room, as many as a room may have. */
void room_gather(struct engines *g, struct room *r, uint32_t conn,
    uint32_t scope, uint32_t name);
/* True if the order in EV_KILL applies to the room. */
bool room_killed(
    const struct engines *g, const struct room *r, const struct event *ev);
extern const char room_killed_text[];
/* True if an attachment was shown rows and has not released them. */
bool room_in_use(const struct room *r);

/* Returns the next attachment of conn with a pending event; NULL: none, and the
 * next event notifies the connection again. */
struct attachment *engine_next_dirty(struct engines *g, uint32_t conn);

void room_init(struct room *r, uint64_t id, struct why *why);
/* Takes the room off its session. */
void room_orphan(struct room *r);

#endif
