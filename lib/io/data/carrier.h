/* carrier.h - the half of the contract of data.h that is the same for every
 * carrier: the table of operations, the state of endpoints, and what is
 * reported of both. First member of a carrier's struct data; one owner, as
 * data.h says. */
#ifndef MMX_IO_CARRIER_H
#define MMX_IO_CARRIER_H

#include "base/list.h"
#include "wire/segment.h"
#include "io/data.h"

/* In front of an operation's header, for the carrier's own frame. */
#define CARRIER_FRAME 8

/* A message or a fetch, first member of a carrier's own struct. On exactly one
 * list: unused, its endpoint's, done, or one of the carrier's. */
struct carrier_op {
    struct list link;
    void *cookie;
    uint32_t ep;       /* whose list it is on, or NONE */
    uint32_t at, iovs; /* pieces are iov[1..iovs); `at` is the carrier's */
    uint32_t by;       /* the carrier's */
    uint64_t bytes;    /* of the pieces */
    bool fetch, ok;
    uint8_t *frame;    /* CARRIER_FRAME bytes, then the header; messages only */
    struct iovec *iov; /* 1 + DATA_IOV_MAX; touched only as far as used */
};

struct carrier_end {
    struct list ops;         /* messages that are not complete, as posted */
    uint64_t quiet_since_ns; /* no progress of them since; 0: not seen */
    bool open, broken, unreported;
    bool made;       /* what is not reported is that it is connected */
    bool answered;   /* it was connected */
    bool failed;     /* the carrier will break it; no posts until then */
    bool loopback;   /* of the address; from here on the carrier's own, since
                        connect(): */
    uint8_t trouble; /* enum trouble */
    char why[128];   /* the address, for people; then what is wrong */
};

struct carrier {
    const char *name;
    struct data_conf conf;
    struct data_calls calls;
    /* Closes what the carrier has of endpoint ep and takes its messages off
     * its list; harmless twice. */
    void (*cut)(struct data *d, uint32_t ep);
    struct list unused, unused_fetches, done;
    struct carrier_end *ends; /* endpoints_max */
    uint32_t unreported;      /* endpoints */
    bool inside;              /* a callback of the carrier is on the stack */
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
/* Opens endpoint i; a connect that fails sets `open` to false again. */
void carrier_connect(struct carrier *c, uint32_t i);
void carrier_disconnect(struct data *d, uint32_t i);
/* Has connected() called for endpoint i. */
void carrier_made(struct carrier *c, uint32_t i);
/* Notes what is wrong with endpoint i, unless that is known. */
void carrier_blame(
    struct carrier *c, uint32_t i, enum trouble t, const char *what);
/* As state() of an endpoint by `transport`. */
enum trouble carrier_state(const struct carrier *c, uint32_t i,
    const char *transport, const char **text);
/* Cuts endpoint i, to be reported; nothing where it is not open or broken. */
void carrier_break(struct data *d, uint32_t i);
void carrier_break_all(struct data *d);
/* Breaks endpoints that did not connect, or whose messages made no progress,
 * for stall_ms. */
void carrier_tick(struct data *d, uint64_t now_ns);

/* Puts a message at the end of endpoint i's list, without its empty pieces.
 * ERR_PEER_LOST, ERR_BUSY: as post(). */
MUST_CHECK enum err carrier_post(struct carrier *c, uint32_t i,
    struct span header, const struct iovec *iov, uint32_t iovs, void *cookie,
    struct carrier_op **out);
/* Copies the pieces that are not empty. */
void carrier_pieces(
    struct carrier_op *op, const struct iovec *iov, uint32_t iovs);
/* Takes op off its list; carrier_report() reports it. */
void carrier_complete(struct carrier *c, struct carrier_op *op, bool ok);
void carrier_complete_all(struct carrier *c, struct list *ops);
/* Moves op from its endpoint's list to another. */
void carrier_move(struct carrier *c, struct carrier_op *op, struct list *to);

/* Calls arrived(); returns what it returned. */
bool carrier_arrived(struct data *d, const struct data_in *in);
/* Calls done(), fetched() and, but for the second, broken(); returns the
 * number of calls. */
unsigned carrier_report(struct carrier *c);
unsigned carrier_report_done(struct carrier *c);
/* True if carrier_report() has something to report. */
bool carrier_pending(const struct carrier *c);

#endif
