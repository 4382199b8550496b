/* carrier.h - the part of data.h's contract that every carrier shares: the
 * table of operations, the state of endpoints, and the reports about both.
 * First member of a carrier's struct data; one owner, as data.h says. */
#ifndef MMX_IO_CARRIER_H
#define MMX_IO_CARRIER_H

#include "base/list.h"
#include "wire/segment.h"
#include "io/data.h"

/* In front of an operation's header, for the carrier's own frame. */
#define CARRIER_FRAME 8

/* A message or a fetch; first member of a carrier's own struct. It is on
 * exactly one list: unused, its endpoint's, done, or one of the carrier's. */
struct carrier_op {
    struct list link;
    void *cookie;
    uint32_t ep;       /* endpoint whose list it is on, or NONE */
    uint32_t at, iovs; /* pieces are iov[1..iovs); `at` is for the carrier */
    uint32_t by;       /* for the carrier */
    uint64_t bytes;    /* of all pieces */
    bool fetch, ok;
    uint8_t *frame;    /* CARRIER_FRAME bytes, then the header; messages only */
    struct iovec *iov; /* few, or many if it has more pieces */
    struct iovec few[4];
    struct iovec *many; /* 1 + DATA_IOV_MAX entries, which take two pages */
};

struct carrier_end {
    struct list ops;         /* incomplete messages, in order of post() */
    uint64_t quiet_since_ns; /* since when they make no progress; 0: not seen
                                yet */
    bool open, broken, unreported;
    bool made;     /* the report says connected, not broken */
    bool answered; /* has been connected */
    /* the carrier will break the endpoint; posts are refused */
    bool failed;
    /* the address is loopback; members below are set since connect() */
    bool loopback;
    uint8_t trouble; /* enum trouble */
    char why[128];   /* the address as text; later the fault */
};

struct carrier {
    const char *name;
    struct data_conf conf;
    struct data_calls calls;
    /* Closes the carrier's part of endpoint ep and takes its messages off its
     * list. May be called twice. */
    void (*cut)(struct data *d, uint32_t ep);
    struct list unused, unused_fetches, done;
    struct carrier_end *ends; /* endpoints_max */
    uint32_t unreported;      /* endpoints */
    bool inside;              /* the carrier is inside one of the callbacks */
    uint8_t *ops, *frames;
    struct iovec *iovs;
};

/* Takes memory for operations of op_size bytes each; *c is zeroed. On error
 * carrier_fini() is still needed. ERR_INTERNAL with a log line. */
MUST_CHECK enum err carrier_init(struct carrier *c, const char *name,
    const struct data_conf *conf, const struct data_calls *calls,
    size_t op_size, void (*cut)(struct data *d, uint32_t ep));
void carrier_fini(struct carrier *c);

/* Returns endpoint i, which is open. */
struct carrier_end *carrier_end(struct carrier *c, uint32_t i);
/* Opens endpoint i; a connect that fails resets `open`. */
void carrier_connect(struct carrier *c, uint32_t i);
void carrier_disconnect(struct data *d, uint32_t i);
/* Makes carrier_report() call connected() for endpoint i. */
void carrier_made(struct carrier *c, uint32_t i);
/* Stores the fault of endpoint i, unless one is stored. */
void carrier_blame(
    struct carrier *c, uint32_t i, enum trouble t, const char *what);
/* The same as state() of data.h, for an endpoint by `transport`. */
enum trouble carrier_state(const struct carrier *c, uint32_t i,
    const char *transport, const char **text);
/* Breaks endpoint i, which is reported later. No effect unless it is open. */
void carrier_break(struct data *d, uint32_t i);
void carrier_break_all(struct data *d);
/* Breaks endpoints that did not connect, or had no progress of messages, for
 * stall_ms. */
void carrier_tick(struct data *d, uint64_t now_ns);

/* Appends a message to endpoint i's list, without its empty pieces.
 * ERR_PEER_LOST, ERR_BUSY: as post(). */
MUST_CHECK enum err carrier_post(struct carrier *c, uint32_t i,
    struct span header, const struct iovec *iov, uint32_t iovs, void *cookie,
    struct carrier_op **out);
/* Copies the pieces that are not empty. */
void carrier_pieces(
    struct carrier_op *op, const struct iovec *iov, uint32_t iovs);
/* Takes n bytes off the front of v. Returns the first piece that has some left,
 * or the one behind the last. */
static inline struct iovec *iov_skip(struct iovec *v, size_t n)
{
    while (n > 0) {
        size_t part = v->iov_len < n ? v->iov_len : n;

        v->iov_base = (uint8_t *)v->iov_base + part;
        v->iov_len -= part;
        n -= part;
        v += v->iov_len == 0;
    }
    return v;
}
/* Takes op off its list and has carrier_report() report it. */
void carrier_complete(struct carrier *c, struct carrier_op *op, bool ok);
void carrier_complete_all(struct carrier *c, struct list *ops);
/* Moves op from its endpoint's list to another. */
void carrier_move(struct carrier *c, struct carrier_op *op, struct list *to);

/* Calls arrived(); returns what it returned. */
bool carrier_arrived(struct data *d, const struct data_in *in);
/* Calls done(), fetched() and broken(); returns the number of calls.
 * carrier_report_done() does the same without broken(). */
unsigned carrier_report(struct carrier *c);
unsigned carrier_report_done(struct carrier *c);
/* True if carrier_report() has something to report. */
bool carrier_pending(const struct carrier *c);

#endif
