/* ticket.h - sequence ids leased to requests (seed of llama.cpp's n_seq_max).
 * Pure; one thread; part of the language side's brain.
 *
 * space   ids 0..n-1 of one engine context, found by session and name
 * ticket  one request of a space: it holds an id, or waits in the space's FIFO
 *
 * An id has a generation that counts its holders: a release with an older one
 * has no effect. The id that has been idle longest is given first. Ids are
 * never negative. */
#ifndef MMX_CORE_LANG_TICKET_H
#define MMX_CORE_LANG_TICKET_H

#include "base/heap.h"
#include "base/list.h"
#include "base/table.h"
#include "core/brain.h"
#include "core/share.h"

#define SPACE_IDS_MAX 1024 /* more than engines have sequences */

struct ticket {
    bool used, held;
    uint8_t reason; /* of a loss not reported to its connection yet; or OK */
    uint32_t space, conn, seq, generation;
    uint32_t uid;         /* of its space */
    struct list in_space; /* space's list of waiting tickets */
    struct list in_conn;  /* ticket_conn.pending */
    struct list in_room;  /* list of the room whose failure frees it */
    uint64_t hold_ns;     /* lease; 0: none */
    struct heap_node timer;
    char request[64];
};

/* Tickets that one connection must be told of. */
struct ticket_conn {
    uint32_t conn;
    struct list pending, dirty;
};

struct space {
    bool used;
    uint32_t session, uid, size, held, idle_first, idle_count;
    uint32_t *idle;        /* ring of free ids */
    uint32_t *generations; /* by id */
    struct list waiting;
    uint32_t waiting_count;
    char name[64];
};

struct tickets {
    struct space *spaces;
    struct ticket *tickets;
    struct ticket_conn *conns;
    struct list dirty;     /* connections to notify */
    struct table requests; /* (hash of request, space) -> ticket */
    struct heap timers;
    const struct conf *conf;
    struct share share, space_share; /* of tickets, of spaces */
    uint32_t spaces_max, tickets_max;
    struct slots slots;                /* of tickets */
    const uint64_t *now_ns;            /* the brain's; set after tickets_init */
    uint64_t granted, waited, expired; /* counters */
};

/* The result of an acquire or query. */
struct ticket_state {
    bool held;
    uint32_t seq, generation;
};

void tickets_init(
    struct tickets *t, struct slab *s, const struct conf *c, uint64_t seed);

/* Opens the session's space of that name, or finds it with the same size. */
MUST_CHECK enum err space_open(struct tickets *t, uint32_t session,
    uint32_t uid, struct span name, uint32_t n_seq_max, uint32_t *number,
    const char **text);

/* Acquires an id for conn, which is notified later if it must wait; or finds
 * what the request has already. room: list of the room whose failure ends the
 * ticket, or NULL. */
MUST_CHECK enum err ticket_acquire(struct tickets *t, uint32_t session,
    uint32_t conn, const struct local_ticket *m, struct list *room,
    struct ticket_state *out, const char **text);
/* Frees the request's id or its place in the queue. generation NONE: whichever
 * it has, if conn was the last to ask. */
MUST_CHECK enum err ticket_release(struct tickets *t, uint32_t session,
    uint32_t conn, const struct local_ticket_release *m, const char **text);
MUST_CHECK enum err ticket_query(const struct tickets *t, uint32_t session,
    const struct local_ticket_query *m, struct ticket_state *out,
    const char **text);

/* Ends the tickets of a room that failed, and notifies their holders. */
void tickets_room_failed(struct tickets *t, struct list *room, enum err reason);
void tickets_conn_end(struct tickets *t, uint32_t conn);
void tickets_session_end(struct tickets *t, uint32_t session);
void tickets_expire(struct tickets *t, uint64_t now_ns);

/* Appends the next TICKET_EVENT for conn. False: there is none, or it does not
 * fit. */
bool tickets_next_event(struct tickets *t, uint32_t conn, struct writer *w);
/* Returns the next connection to notify; NONE: none is left. */
uint32_t tickets_next_conn(struct tickets *t);

void tickets_show(
    const struct tickets *t, struct show_at *at, struct rows_out *s);
/* CHECKs that each id has one holder and that counts agree. For tests. */
void tickets_check(const struct tickets *t);

#endif
