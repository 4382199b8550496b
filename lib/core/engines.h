/* engines.h - the engines' side of both brains: connections, sessions, and
 * attachments: a room in a cell of a connection. Pure; one thread.
 *
 * conn     one connection; free again only when its process is dead
 * session  the connections of one uid with one session name
 * attachment     what a connection has of a room: its cell, its rights, what it
 * was shown and has not released, and which events it is to hear. An attachment
 *          may wait for its room (attach before announce or request)
 *
 * A room's blocks are fenced by its attachments: one that was shown rows holds
 * them until it releases or its process is dead. */
#ifndef MMX_CORE_ENGINES_H
#define MMX_CORE_ENGINES_H

#include "base/heap.h"
#include "base/list.h"
#include "base/table.h"
#include "core/brain.h"
#include "core/out.h"
#include "core/share.h"
#include "core/memory.h"

/* So that a room's cells and events always fit into a list of actions. */
#define ROOM_ATTACHMENTS_MAX 128

/* What every room has, on either side; first member of the brains' rooms. */
struct room {
    uint64_t id;
    uint8_t state, reason; /* enum room_state, enum err */
    bool used;
    uint32_t a, b;       /* numbers that belong to the reason */
    uint32_t session;    /* owner; NONE: none (yet, or any more) */
    uint32_t rows_shown; /* for cells: rows committed, or readable */
    uint8_t told_state;  /* in the cells; UINT8_MAX: none yet */
    uint32_t told_rows;
    bool joined;        /* an attachment has, since the last room_show */
    uint64_t ended_row; /* of the history, once it ended */
    struct list attachments;
    uint32_t attachments_count; /* at most ROOM_ATTACHMENTS_MAX */
    struct list in_session;
    struct list todo; /* on the brain's list of rooms to settle */
    char text[128];
};

struct attachment {
    struct list in_room, in_conn, in_dirty;
    struct list in_waiting; /* of the session, while there is no room */
    struct room *room;
    uint64_t room_id;            /* what it waits for, or belongs to */
    uint32_t scope;              /* langd: peer of the room; encoded: 0 */
#define SCOPE_OF_NONE (NONE - 1) /* of no room: its peer has gone */
    uint32_t name;               /* of the room's secret: brain_name() */
    uint32_t conn, cell, tag;
    uint32_t released; /* rows [0, released) given back */
    uint16_t pending;  /* EVENT_ bits of the next event */
    uint8_t rights;
    bool used, owner;
    bool fresh;           /* joined since the last room_show */
    bool shown;           /* rows were shown and may be in use */
    uint64_t deadline_ns; /* of waiting */
    struct heap_node timer;
};

/* CONN_DAEMON: a langd's, which maps pools and is no engine. */
enum conn_state { CONN_FREE, CONN_OPEN, CONN_READY, CONN_ENDED, CONN_DAEMON };

struct conn {
    uint8_t state;
    bool notified; /* an ACT_NOTIFY is out */
    bool bye;
    uint32_t uid, gid;
    struct groups groups;
    int32_t pid;
    uint32_t session, cells;
    uint32_t pool, pool_seq; /* its POOL call waits for pool - 1; 0: none */
    struct list attachments, dirty;
    uint32_t rooms;       /* attachments, now */
    uint64_t rooms_total; /* and ever */
    uint64_t bytes;       /* encoded: of rows that it committed; langd: of
                             rooms that ended and had it attached */
    uint64_t opened_ns;
    struct list in_silent; /* until HELLO or MAP */
    uint64_t hello_by_ns;
    bool hello_seen_late; /* the loop slept through that: one turn more */
    char name[64];
};

struct session {
    bool used;
    uint32_t uid, conns; /* connections that are not CONN_ENDED */
    struct list rooms, waiting;
    char name[64];
};

/* Where an attachment goes. */
struct attach_to {
    struct room *room;        /* NULL: it waits for one, */
    const struct tomb *ended; /* unless this one is of its session */
    uint32_t scope, name;
};

/* A role's part of what engines ask for. */
struct engines_ops {
    uint16_t succeeded;     /* the event of a room that did */
    const char *wrong_role; /* text for engines of the other */
    uint8_t rights;         /* that ATTACH may ask for */
    const char *rights_text;
    /* Finds the room that an ATTACH is for. On error *text says why. */
    enum err (*find)(void *brain, struct out *out, uint32_t conn,
        const struct local_attach *n, struct attach_to *to, const char **text);
    /* The owner released the room before it ended, or after. */
    void (*withdraw)(void *brain, struct room *r);
    /* An engine aborts the room. */
    void (*fail)(
        void *brain, struct room *r, enum err reason, const char *text);
    /* The owner waits for no more readers; NULL: there are none. */
    void (*no_readers)(void *brain, struct room *r);
    /* Rows of the room were released; NULL: nothing to do. */
    void (*released)(void *brain, struct out *out, struct room *r);
    /* An attachment joined the room: look at it. */
    void (*touched)(void *brain, struct room *r);
    /* An attachment of the room is about to go: it released all, or is dead. */
    void (*leaving)(void *brain, struct attachment *att);
    /* The owner's session ended: fail the room as engine-lost. */
    void (*orphaned)(void *brain, struct room *r, uint64_t now_ns);
    /* The connection, or the session, ended; NULL: nothing to do. */
    void (*conn_over)(void *brain, uint32_t conn);
    void (*session_over)(void *brain, uint32_t session);
};

struct engines {
    struct conn *conns;
    struct session *sessions;
    struct attachment *attachments;
    uint32_t *cell_attachment; /* [conn * cells_max + cell] = attachment + 1; 0:
                                  none */
    uint32_t conns_max, cells_max, attachments_max, attachments_used;
    struct slots slots; /* of attachments */
    struct share share; /* of attachments */
    struct heap timers; /* of attachments that wait for their room */
    struct list silent; /* connections without hello, oldest first */
    uint64_t hello_ns;  /* how long they may be */
    const struct engines_ops *ops;
    void *brain;
    uint64_t *stats;
};

void engines_init(
    struct engines *g, struct slab *s, const struct conf *c, uint64_t seed);

void engine_open(struct engines *g, const struct event *ev);
/* Ends the connection: end of file, or BYE. */
void engine_end(struct engines *g, uint32_t conn, uint64_t now_ns);
/* True if an ended connection has no attachments left, so that its number can
 * be used again before its process ends. */
bool engine_empty(const struct engines *g, uint32_t conn);
/* Frees a connection whose process is dead, with its attachments. */
void engine_dead(struct engines *g, uint32_t conn, uint64_t now_ns);
/* HELLO: joins a session. On error the text says why. */
MUST_CHECK enum err engine_hello(struct engines *g, uint32_t conn,
    const struct local_hello *m, uint8_t role, const char **text);

/* Notes that HELLO or MAP came: the connection gives way to no other. */
void engine_known(struct engines *g, struct out *out, uint32_t conn);

/* True if an attachment waits for a room in this scope. O(all that wait). */
bool engines_wait_for(const struct engines *g, uint32_t scope);
/* Has the attachments that wait for a room in this scope fail at the next
 * engines_expire. */
void engines_give_up(struct engines *g, uint32_t scope, uint64_t now_ns);
/* Fails the attachments that waited too long and ends the connections that were
 * silent too long, while out has room. */
void engines_expire(struct engines *g, struct out *out, uint64_t now_ns);

/* Returns when engines_expire is due; TIME_NEVER: nothing waits. */
uint64_t engines_deadline(const struct engines *g);

/* True if a process of this user and these groups may map the pool. */
bool user_may(
    const struct conf_pool *pool, uint32_t uid, const struct groups *groups);
/* True if the process behind this connection may. */
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
/* True if the room has as many attachments as it may have. */
static inline bool room_crowded(const struct room *r)
{
    return r->attachments_count >= ROOM_ATTACHMENTS_MAX;
}
/* Counts bytes of the room for the connections that have it. */
void room_counts(struct engines *g, struct room *r, uint64_t bytes);
/* Puts the attachment on the room (and off its session's waiting list). */
void attachment_join(struct engines *g, struct attachment *att, struct room *r);
/* Lets the attachment wait for the room of its session that it names. */
void attachment_wait(
    struct engines *g, struct attachment *att, uint64_t deadline_ns);
/* Notifies an attachment without a room how the room ended that it is for. */
void attachment_over(struct engines *g, struct out *out, struct attachment *att,
    uint8_t state, enum err reason);
/* Fails a waiting attachment: its deadline came, or it was aborted. */
void attachment_fail(struct engines *g, struct out *out, struct attachment *att,
    enum err reason);
/* Unbinds and forgets; the room is touched. */
void attachment_drop(struct engines *g, struct attachment *att);
/* Does as attachment_drop, and clears the cell: the word of a room that ended
 * must not show under its tag when tags come again. */
void attachment_release(
    struct engines *g, struct out *out, struct attachment *att);

/* Notifies a connection of events to pull with next_event(). */
void engine_notify(struct engines *g, struct out *out, uint32_t conn);
/* Adds `what` to the pending event of one attachment, or of all of a room. */
void attachment_notify(
    struct engines *g, struct out *out, struct attachment *att, uint16_t what);
void room_notify(
    struct engines *g, struct out *out, struct room *r, uint16_t what);
/* Brings the room's cells up to date and notifies its attachments: those that
 * joined since the last call of all that is true (`known`), all of `news` and,
 * once, of the room's end. */
void room_show(struct engines *g, struct out *out, struct room *r,
    uint16_t known, uint16_t news);
/* Joins the attachments of the owner's session that waited for this room, as
 * many as it may have. */
void room_gather(struct engines *g, struct room *r, uint32_t session,
    uint32_t scope, uint32_t name);
/* True if an order of the event EV_KILL is about the room. */
bool room_killed(
    const struct engines *g, const struct room *r, const struct event *ev);
extern const char room_killed_text[];
/* True if an attachment is left that was shown rows. */
bool room_in_use(const struct room *r);

/* Returns the next attachment of conn with an event pending; NULL: none (and
 * the connection will be notified again for the next). */
struct attachment *engine_next_dirty(struct engines *g, uint32_t conn);

void room_init(struct room *r, uint64_t id);
/* Takes the room off its session. */
void room_orphan(struct room *r);

#endif
