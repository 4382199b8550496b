/* mmx.h - move multimodal embeddings between engines: the client library.
 *
 * An encode engine announces a room, gets blocks, writes rows into them and
 * commits. A language engine requests the same room by its reference, is told
 * when the rows have landed, reads them in place and releases. The daemon on
 * this host (mmx-encoded, mmx-langd) does the rest. An encode engine in short:
 *
 *     mmx *m;
 *     struct mmx_opt o = {.size = sizeof o, .role = MMX_ENCODED,
 *                         .timeout_ms = 5000};
 *     struct mmx_pool p = {.size = sizeof p};
 *     struct mmx_announce a = {.size = sizeof a, .rows = 500};
 *     struct mmx_reference ref;
 *     mmx_room r;
 *
 *     mmx_open(&o, &m);
 *     mmx_pool(m, "vit", "embedding:bf16:8192", 5000, &p);
 *     a.pool = p.id;
 *     mmx_announce(m, &a, &r);              // before the encoder runs
 *     mmx_reference(m, r, &ref);            // for the router: text or bytes
 *     mmx_wait_room(m, r, MMX_GRANTED, -1); // or events from mmx_step
 *     mmx_scatter(m, r, NULL, 0, 500, rows, 0); // or mmx_scatter_f32, mmx_view
 *     mmx_commit_final(m, r, 0, 500, 500, NULL, 0);
 *
 * and a language engine:
 *
 *     struct mmx_request q = {.size = sizeof q, .reference = &ref,
 *                             .pool = p.id, .encoder = "enc-0"};
 *     mmx_request(m, &q, &r);
 *     mmx_wait_room(m, r, MMX_READY, -1);
 *     mmx_view(m, r, "embedding", 0, MMX_ALL, &v); // v.data, v.rows, v.stride
 *     mmx_release(m, r, MMX_ALL, 0);
 *
 * Rules for every call
 *  - Results: 0 or a count, or -MMX_E_x. Outputs are untouched on failure.
 *  - Units: lengths and offsets of a room are rows, durations milliseconds,
 *    everything else bytes. MMX_ALL means all rows, MMX_UNKNOWN not known yet.
 *  - Structs begin with their size: set .size, leave unused members 0.
 *    Everything an argument points to is copied before the call returns.
 *  - No call waits unless it takes a timeout (-1: without limit). A signal ends
 *    only the wait of mmx_wait. A call that does not wait returns 0 once its
 *    message is queued; if the daemon refuses the message, the room gets the
 *    event MMX_REFUSED. What a full socket does not take is sent by a later
 *    step.
 *  - A daemon that hangs: a wait of 750 ms or more that ends because the daemon
 *    answers nothing returns -MMX_E_DAEMON_SILENT, a shorter one
 *    -MMX_E_TIMEOUT. A room whose deadline_ms has passed fails by itself with
 *    that reason, at most a second later, if the daemon answers nothing; for
 *    that the handle must be stepped or waited on.
 *  - Threads: any call from any thread, except mmx_close, which must be the
 *    last one. One short lock inside, no threads, no signals, no output, no
 *    allocation after mmx_open and mmx_pool. mmx_commit and mmx_release may be
 *    called from a CUDA host callback.
 *  - GPU pools (mmx_pool.gpu): pointers are addresses on the GPU. Readable rows
 *    have landed, no wait is needed. Kernels that write rows must finish before
 *    mmx_commit, kernels that read rows before mmx_release: call either from a
 *    host callback queued after them, cudaLaunchHostFunc(stream, f, arg), or
 *    once an event recorded after them has completed. Never wait for a device.
 *  - fork: a child may only call mmx_close on the handle (every other call
 *    returns -MMX_E_FORKED) and must not touch the pools. Open a new handle in
 *    the child.
 *  - Several processes of one engine open with one session name. Ranks see a
 *    state at different moments: act on the least one (mmx_poll returns it
 *    for several rooms; take the MIN over ranks), never on a local read. */
#ifndef MMX_H
#define MMX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mmx mmx;

/* A room on this handle, until it is released. May be copied. {0, 0}: no room.
 * A call on a released room returns -MMX_E_STALE. */
typedef struct mmx_room {
    uint32_t cell, tag;
} mmx_room;

/* Names a room to the other side, which must pass all of it. With it a program
 * can receive the rows or end the room: keep it out of logs. Secret 0: none. */
struct mmx_reference {
    uint64_t id; /* never 0 */
    uint8_t secret[16];
};

#define MMX_ALL     UINT32_MAX
#define MMX_UNKNOWN UINT32_MAX

/* words */

enum mmx_role { MMX_ANY, MMX_ENCODED, MMX_LANGD };

/* The least of several ranks' states is what every rank has reached. */
enum mmx_room_state {
    MMX_FAILED_STATE,  /* final; the reason says why and what to do */
    MMX_BOOTSTRAPPING, /* announce or request has not arrived yet */
    MMX_WAITING,       /* both have arrived, no row has moved */
    MMX_TRANSFERRING,  /* rows are moving */
    MMX_SUCCESS        /* final; every row and the aux have landed */
};

/* Reasons: positive in events and states, negative as results of calls.
 * mmx_reason() returns name, sentence and advice. */
enum mmx_error {
    MMX_OK = 0,
    MMX_E_NOT_READY = 1,
    MMX_E_NO_BLOCKS = 2,
    MMX_E_TOO_LARGE = 3,
    MMX_E_DUPLICATE_ROOM = 4,
    MMX_E_UNKNOWN_ROOM = 5,
    MMX_E_STALE = 6,
    MMX_E_MALFORMED = 7,
    MMX_E_INCOMPATIBLE_LAYOUT = 8,
    MMX_E_ITEM_MISMATCH = 9,
    MMX_E_DESTINATIONS_DISAGREE = 10,
    MMX_E_VERSION = 11,
    MMX_E_NOT_OWNER = 12,
    MMX_E_QUOTA = 13,
    MMX_E_BUSY = 14,
    MMX_E_PEER_LOST = 15,
    MMX_E_DAEMON_LOST = 16,
    MMX_E_ENGINE_LOST = 17,
    MMX_E_TIMEOUT = 18,
    MMX_E_ABORTED = 19,
    MMX_E_DECLINED = 20,
    MMX_E_GONE = 21,
    MMX_E_CORRUPT = 22,
    MMX_E_DRAINING = 23,
    MMX_E_INTERNAL = 24,
    MMX_E_DAEMON_SILENT = 25,
    MMX_E_SPLIT = 64,  /* the rows are several arrays: mmx_runs, mmx_gather */
    MMX_E_FORKED = 65, /* the handle belongs to the parent process */
    MMX_E_SYSTEM = 66  /* the operating system refused: see errno */
};

/* What an engine should do about a reason. */
enum mmx_advice {
    MMX_ADVICE_NOTHING,        /* not a failure */
    MMX_ADVICE_RETRY,          /* the same call may succeed later */
    MMX_ADVICE_ENCODE_LOCALLY, /* ask another encoder, or encode here */
    MMX_ADVICE_GIVE_UP         /* it will fail again: fix caller or config */
};

enum mmx_storage { MMX_COMPACT = 1, MMX_PADDED = 2, MMX_PROMPT = 3 };
enum mmx_mode { MMX_WHOLE, MMX_STREAM };
enum mmx_rights { MMX_READ = 1, MMX_WRITE = 2, MMX_WATCH = 4 };
enum mmx_flags {
    MMX_KEEP = 1,
    MMX_OPEN = 2,
    MMX_NO_READERS = 4,
    MMX_ANNOUNCED = 8
};

/* connection */

struct mmx_opt {
    size_t size;
    int role;            /* the expected daemon: enum mmx_role */
    const char *socket;  /* NULL: $MMX_ENCODED_SOCKET or $MMX_LANGD_SOCKET,
                            else /run/mmx/encoded.sock or langd.sock */
    const char *engine;  /* name of this process for logs; NULL: its pid */
    const char *session; /* of all its processes; NULL: of this one only */
    uint32_t cells;      /* rooms open at once on this handle; 0: 1024 */
    int timeout_ms;      /* limit of the wait for the daemon. 0: no wait;
                            mmx_step returns MMX_UP once it is connected */
    char *why;           /* NULL, or buffer for the text of a failed mmx_open */
    size_t why_size;
    int binding; /* 1: see mmx_binding.h */
    int no_lend; /* 1: take no pools of encoders on this host */
};

/* Opens a handle and connects. -MMX_E_NOT_READY: no daemon listens within
 * timeout_ms; -MMX_E_DAEMON_SILENT, -MMX_E_TIMEOUT: it does not answer;
 * -MMX_E_VERSION, -MMX_E_NOT_OWNER, ...: it refuses; -MMX_E_MALFORMED: an
 * option is wrong; -MMX_E_SYSTEM: errno. With timeout_ms 0 only the last two
 * occur. */
int mmx_open(const struct mmx_opt *opt, mmx **out);

/* Unmaps every pool (the mmx_on_map callback runs first), releases every room,
 * ends the connection and sets *m to NULL. Waits at most 0.4 s for daemons.
 * Accepts NULL. No other thread may be inside a call. */
void mmx_close(mmx **m);

/* Returns a descriptor to poll for reading; call mmx_step when it is readable.
 * It is the same for the life of the handle. Do not read or close it. */
int mmx_fd(const mmx *m);

struct mmx_info {
    size_t size;
    int role;            /* enum mmx_role */
    int up;              /* 1: connected; 0: the rest is the last daemon's */
    uint32_t protocol;   /* version spoken on this connection */
    uint64_t epoch;      /* number of this run of the daemon */
    uint32_t cells;      /* rooms open at once on this handle */
    uint32_t rooms_max;  /* rooms open at once, all engines together */
    uint32_t aux_max;    /* largest aux of a room, in bytes */
    char name[65];       /* the daemon's name */
    char advertise[129]; /* encoded: the address to pass as .encoder */
    char software[33];
    int refused; /* enum mmx_error: why the daemon did not take the handle */
    int system;  /* errno of the last try to connect; 0: it was reached */
};

/* Describes the connection and its daemon. */
int mmx_info(mmx *m, struct mmx_info *out);

/* Copies the daemon's text of the last refusal on this handle, why the
 * connection ended, or that a call of 0.75 s or more has timed out, whichever
 * came last; cut to `size` bytes, empty if none of these has occurred. */
int mmx_error_text(mmx *m, char *out, size_t size);

/* events
 *
 * One event may report several bits of one room. Cells hold the true state;
 * events are hints and carry what does not fit into a cell. */
enum mmx_happening {
    MMX_GRANTED = 1,    /* encoder: rows [0, rows) have blocks: write them */
    MMX_HAVE = 2,       /* encoder: the rows of this key exist or another room
                           is writing them: write nothing, no MMX_GRANTED */
    MMX_WANTED = 4,     /* encoder: `a` destinations have asked */
    MMX_DONE = 8,       /* encoder: `a` destinations served, `b` failed. The
                           room has ended and is released with this event */
    MMX_LENGTH = 16,    /* total and aux are known */
    MMX_LANDED = 32,    /* stream: rows up to `rows` may be read */
    MMX_READY = 64,     /* all rows may be read; the aux is known */
    MMX_FAILED = 128,   /* the room has ended: reason, advice, text. Readable
                          rows stay until mmx_release, which is due in any
                          case. Encoder, peer-lost: the outcome is unknown */
    MMX_UP = 1 << 16,   /* connected to the daemon's run `epoch`. Ask for the
                          pools again: an old pool cannot open rooms */
    MMX_DOWN = 1 << 17, /* the daemon is lost. Rooms that had not ended have
                        reported MMX_FAILED(daemon-lost). Maps and ready rows
                        stay readable. The handle reconnects by itself */
    MMX_REFUSED = 1 << 18, /* the daemon refused `op`: reason, text, a, b. A
                        refused announce, request or attach ends the room and
                        frees it with this event; others change no room */
    MMX_TICKET = 1 << 19,  /* `request` holds id `a` of `space`, `generation` */
    MMX_TICKET_LOST = 1 << 20 /* `request` neither holds nor awaits an id:
                        reason. Timeout: the wait or the lease expired */
};

struct mmx_event {
    uint32_t what;       /* bits of enum mmx_happening */
    mmx_room room;       /* {0, 0} with UP, DOWN, and REFUSED of a decline or
                            of a room already released */
    uint64_t id;         /* room id */
    void *user;          /* the pointer passed when the room was opened */
    int state;           /* enum mmx_room_state */
    int reason, advice;  /* with FAILED, REFUSED, DOWN */
    int storage;         /* enum mmx_storage; 0: not known yet */
    uint32_t rows;       /* GRANTED: writable; LANDED, READY: readable */
    uint32_t total;      /* rows of the item, or MMX_UNKNOWN */
    uint32_t a, b;       /* WANTED, DONE, FAILED: see above; too-large: rows
                            asked, rows that fit; TICKET: a is the id */
    uint64_t generation; /* language side: number of this opening of the room;
                            TICKET: number of this holder of the id */
    uint64_t epoch;      /* UP: number of this run of the daemon */
    const void *aux;     /* LENGTH, READY; else NULL. Valid until the room is */
    uint32_t aux_len;    /* released */
    const char *op;      /* REFUSED: "announce", "commit", ... */
    const char *text;    /* FAILED, REFUSED: for logs; never NULL. Valid until
                            the room is released and mmx_step called again */
    const char *request; /* TICKET, TICKET_LOST; else NULL. Valid until it is
                            released; LOST: until the next mmx_step */
    int space;           /* TICKET, TICKET_LOST */
};

/* Sends queued messages, receives, reconnects when due, and fills at most `max`
 * events. Returns the number of events; 0: none. Never waits. Fails only with
 * -MMX_E_FORKED and -MMX_E_MALFORMED. */
int mmx_step(mmx *m, struct mmx_event *ev, int max);

/* Calls mmx_step until it returns events, for at most timeout_ms. Returns 0
 * after the timeout or a signal. */
int mmx_wait(mmx *m, struct mmx_event *ev, int max, int timeout_ms);

/* For scripts: waits until the room has reported, now or earlier, one bit of
 * `what` (enum mmx_happening). Consumes no events: mmx_step still returns them.
 * -reason: the room failed or was refused; -MMX_E_TIMEOUT. Does not reconnect:
 * only mmx_step and mmx_wait do. */
int mmx_wait_room(mmx *m, mmx_room room, uint32_t what, int timeout_ms);

/* Collect the messages of the calls between cork and uncork in one packet,
 * to save system calls. Calls nest; the last uncork, or mmx_step, sends. */
int mmx_cork(mmx *m);
int mmx_uncork(mmx *m);

/* pools */

#define MMX_FIELDS_MAX 32

struct mmx_field {
    char name[32];
    char dtype[8];     /* bf16 f16 f32 f8e4m3 f8e5m2 i8 u8 i16 i32 i64 bool */
    uint32_t elements; /* per row */
    uint32_t row_bytes;
    void *data; /* row r of block b: data + (b * block_rows + r) *
                   row_bytes */
};

struct mmx_pool {
    size_t size;
    int id;       /* for announce, request and attach on this handle; the
                     same for a name after reconnects */
    int writable; /* 0: mapped read only; a write is a fault */
    uint32_t block_rows, blocks;
    uint64_t bytes; /* size of the whole map */
    void *base;
    uint32_t fields_count;
    char name[65], memory[17];
    char layout[1025]; /* the fields as text */
    struct mmx_field fields[MMX_FIELDS_MAX];
    int gpu; /* -1: host memory; else number of the GPU in this process: base
                and each data are addresses on it, for kernels and copies */
};

/* Asks for a pool and maps it. name NULL: the daemon's first pool. layout: the
 * engine's fields, "embedding:bf16:8192,fill_ids:i32:1"; if the pool has others
 * the call fails with -MMX_E_INCOMPATIBLE_LAYOUT (mmx_error_text names both).
 * layout NULL accepts any fields. A pool with `layout: engine` takes its fields
 * from this call. A second call returns the same map; after MMX_UP it unmaps
 * the old map and maps the new one. The map is excluded from core dumps and
 * child processes, and stays until mmx_close. -MMX_E_NOT_READY: not connected,
 * step until MMX_UP; or (mmx_error_text) the pool has no layout yet, or its
 * memory is still being made after a call that timed out, ask again;
 * -MMX_E_STALE: the handle was connected again meanwhile, ask again;
 * -MMX_E_TIMEOUT; -MMX_E_SYSTEM: see errno. */
int mmx_pool(mmx *m, const char *name, const char *layout, int timeout_ms,
    struct mmx_pool *out);

/* Sets the callback for maps. It runs with mapped = 1 after a pool is mapped
 * (pin it here) and with 0 before it is unmapped (unpin it), for all pools
 * mapped now and later, also those of encoders, on a thread that is inside a
 * call that steps, maps or closes. It must not call the library. f NULL: no
 * callback. */
typedef void (*mmx_map_fn)(void *ud, const struct mmx_pool *pool, int mapped);
int mmx_on_map(mmx *m, mmx_map_fn f, void *ud);

/* rooms
 *
 * Common errors: -MMX_E_NOT_READY not connected; -MMX_E_QUOTA every cell is in
 * use; -MMX_E_BUSY the daemon does not read, step and try again; -MMX_E_STALE
 * the room was released, or the pool is of an earlier run of the daemon;
 * -MMX_E_MALFORMED an argument is out of range; -MMX_E_DAEMON_LOST the
 * connection has just ended. */

struct mmx_announce {
    size_t size;
    uint64_t id;           /* known to both engines, without a secret; 0: drawn,
                              with a secret (mmx_reference) */
    int pool;              /* mmx_pool.id */
    int storage;           /* enum mmx_storage; 0: compact */
    unsigned flags;        /* MMX_KEEP, MMX_OPEN: any number of destinations */
    uint32_t rows;         /* length of the item, if known */
    uint32_t max_rows;     /* rows for which blocks are taken; 0: for `rows`.
                              With rows 0 the length is not known yet */
    uint16_t required_dst; /* destinations that complete the room; 0: as in the
                              first request; with MMX_OPEN: 0 */
    uint16_t batch;        /* number of announces that follow on this handle
                              and get their blocks together with this one: n -
                              1, n - 2, ..., 0 for n rooms. Cork them. A refused
                              announce leaves the batch, the others proceed */
    uint32_t deadline_ms;  /* until its destinations ask; 0: as configured */
    const uint8_t *key;    /* 32 bytes that name the content, or NULL */
    const void *aux;       /* opaque bytes for the language engine */
    uint32_t aux_len;
    void *user;              /* returned in events */
    const char *traceparent; /* W3C trace context, for logs and traces; NULL:
                                none. -MMX_E_MALFORMED: not of that form */
    const struct mmx_reference *reference; /* instead of id, or NULL */
};

/* Encode side: opens a room for an item. Call it once the length is known,
 * before the encoder runs. MMX_GRANTED, with blocks, or MMX_HAVE follows. */
int mmx_announce(mmx *m, const struct mmx_announce *a, mmx_room *out);

/* Encode side: declares rows [first, first + rows) written; they must not be
 * written again. Any process of the session, any order. */
int mmx_commit(mmx *m, mmx_room room, uint32_t first, uint32_t rows);

/* Commits the last rows (rows may be 0): after this no process of the session
 * may write a row of the room. total: the length. aux: if not passed before. */
int mmx_commit_final(mmx *m, mmx_room room, uint32_t first, uint32_t rows,
    uint32_t total, const void *aux, uint32_t aux_len);

struct mmx_request {
    size_t size;
    uint64_t id;           /* 0: drawn, as in mmx_announce */
    int pool;              /* mmx_pool.id */
    int mode;              /* MMX_WHOLE, MMX_STREAM */
    int storage;           /* enum mmx_storage; 0: any */
    unsigned flags;        /* MMX_KEEP; MMX_ANNOUNCED: the room's id came from
                              its announce, so an encoder that does not have it
                              says unknown-room at once */
    uint32_t rows;         /* expected length; 0: not known */
    uint16_t readers;      /* further connections that will attach to read */
    uint16_t required_dst; /* destinations of the room; 0: this one */
    uint64_t group;        /* rooms admitted together; 0: none */
    uint16_t group_size;
    uint32_t deadline_ms; /* until READY; 0: as configured */
    const uint8_t *key;   /* 32 bytes, or NULL */
    const char *encoder;  /* name or address of the encoder's daemon; "null":
                             zero rows and immediate success, for warm-up */
    void *user;
    const char *traceparent;               /* as in mmx_announce; NULL: none */
    const struct mmx_reference *reference; /* as in mmx_announce; with another
                                secret this is a room that never comes */
};

/* Language side: asks for a room. */
int mmx_request(mmx *m, const struct mmx_request *r, mmx_room *out);

/* Declares that this engine will not fetch the room, so that its encoder can
 * free the rows. On a handle of mmx-encoded, with encoder NULL and the secret,
 * it declares that no engine will, and the room ends for all, even if it is
 * announced later. key: 32 bytes, or NULL. Succeeds also if there is no such
 * room. */
int mmx_decline(mmx *m, const char *encoder, const struct mmx_reference *r,
    const uint8_t key[32]);

struct mmx_attach {
    size_t size;
    uint64_t id;
    int pool;             /* ignored: events name the room's pool, which must
                             have been mapped here (mmx_pool) by then */
    int rights;           /* enum mmx_rights */
    uint32_t deadline_ms; /* until the room is opened; 0: as configured */
    const char *encoder;  /* language side: as in the request */
    void *user;
    const struct mmx_reference *reference; /* instead of id, or NULL */
};

/* Attaches to a room that another process of the session has opened or will
 * open. This handle gets its events as well, and must release it. */
int mmx_attach(mmx *m, const struct mmx_attach *a, mmx_room *out);

/* Copies the reference of a room of this handle. */
int mmx_reference(mmx *m, mmx_room room, struct mmx_reference *out);

/* Language side: gives rows [0, rows) back after reading; MMX_ALL ends the room
 * on this handle (before READY, on the handle that requested it, it aborts the
 * room). Encode side: MMX_ALL only, after MMX_FAILED; earlier it withdraws the
 * room. Released rows must not be touched after this call. flags: MMX_KEEP;
 * MMX_NO_READERS, language side, from the handle that requested the room (else
 * -MMX_E_NOT_OWNER): its blocks are freed without waiting for announced readers
 * that have not attached, and a later attach fails with MMX_E_GONE.
 * -MMX_E_MALFORMED: also for rows that may not be read yet. */
int mmx_release(mmx *m, mmx_room room, uint32_t rows, unsigned flags);

/* Fails the room for both engines. MMX_FAILED follows; then release the room.
 * reason: enum mmx_error, 0: aborted. text: for logs, or NULL. */
int mmx_abort(mmx *m, mmx_room room, int reason, const char *text);

/* looking at rooms */

struct mmx_state {
    int state;     /* enum mmx_room_state */
    int reason;    /* enum mmx_error, when failed */
    uint32_t rows; /* encoder: committed; language: readable */
};

/* Reads the cells of n rooms: no lock, no system call, some nanoseconds each.
 * out may be NULL. Returns the least state. A room is Bootstrapping until the
 * daemon has read its opening. */
int mmx_poll(const mmx *m, const mmx_room *rooms, int n, struct mmx_state *out);

/* Returns the cell itself, for loops that cannot afford a call; valid as long
 * as the handle. Bits 0-3 state, 4-9 reason, 10-31 tag, 32-63 rows. It belongs
 * to the room only while its tag equals room.tag; otherwise use mmx_poll. Read
 * it with acquire order, __atomic_load_n(cell, __ATOMIC_ACQUIRE): after a plain
 * read Arm may show rows as they were before the state. A room that the handle
 * itself has failed (the daemon is lost, or silent) does not show that here.
 * NULL: no such cell. */
const volatile uint64_t *mmx_cell(const mmx *m, mmx_room room);

struct mmx_look {
    size_t size;
    uint64_t id, generation;
    void *user;
    uint32_t seen; /* all bits of enum mmx_happening reported so far */
    int state, reason, storage;
    uint32_t first, rows; /* rows [first, rows) are mapped: see mmx_runs */
    uint32_t total;
    uint32_t stream_rows; /* stream: rows that can always be resident at once:
                             do not wait for more. 0: not answered yet */
    const void *aux;
    uint32_t aux_len;
    int pool; /* id of the pool that the rows lie in; -1: not known yet */
};

/* Copies all that the handle knows about a room. */
int mmx_look(mmx *m, mmx_room room, struct mmx_look *out);

struct mmx_run {
    uint32_t first, rows; /* rows [first, first + rows) of the room ... */
    uint32_t block;       /* ... start at row 0 of this block */
};

/* Locates the room's rows: writable rows (encoder), or readable and unreleased
 * rows (language). Fills at most `max` runs, returns the number of runs. They
 * may lie in a pool of an encoder on this host, which the handle has mapped by
 * itself, read-only, with blocks of its own size: mmx_look.pool says in which.
 * -MMX_E_NOT_READY: no event has reported them yet. */
int mmx_runs(mmx *m, mmx_room room, struct mmx_run *out, int max);

struct mmx_view {
    void *data; /* row `first`; const when the pool is not writable */
    uint32_t first, rows;
    uint64_t stride; /* bytes from row to row */
};

/* Returns rows [first, first + rows) of one field as an array in the pool;
 * MMX_ALL: up to the last readable or writable row. field NULL: the first
 * field. Valid until the rows are released. -MMX_E_SPLIT: they lie in several
 * runs; -MMX_E_NOT_READY: some of them have not landed. */
int mmx_view(mmx *m, mmx_room room, const char *field, uint32_t first,
    uint32_t rows, struct mmx_view *out);

/* Copies rows [first, first + rows) of one field between the room's blocks and
 * a buffer whose rows are `stride` bytes apart (0: the field's row_bytes). For
 * a GPU pool the buffer may be in host memory or on a GPU. Returns when the
 * copy is complete; the lock is not held while it runs. */
int mmx_gather(mmx *m, mmx_room room, const char *field, uint32_t first,
    uint32_t rows, void *dst, size_t stride);
int mmx_scatter(mmx *m, mmx_room room, const char *field, uint32_t first,
    uint32_t rows, const void *src, size_t stride);

/* As mmx_scatter, from rows of f32: into fields of bf16 and f16 they are
 * rounded to nearest, ties to even; what is too large becomes infinite, NaN
 * stays. stride 0: 4 bytes for each element. Rows that are rounded are read by
 * the CPU, also for a GPU pool. -MMX_E_INCOMPATIBLE_LAYOUT: another dtype. */
int mmx_scatter_f32(mmx *m, mmx_room room, const char *field, uint32_t first,
    uint32_t rows, const float *src, size_t stride);

/* sequence ids
 *
 * An engine context has n_seq_max sequence ids (llama.cpp). langd leases them:
 * a request holds an id of a space, or waits in a queue and gets an event when
 * its turn comes. An id is never negative. A generation counts the holders of
 * an id, so that a late release has no effect.
 *
 *     int s = mmx_space(m, "ctx-0", 8, 5000);
 *     struct mmx_ticket t = {.size = sizeof t, .space = s, .request = "r-17"};
 *     struct mmx_seq id;
 *
 *     mmx_ticket(m, &t);                         // MMX_TICKET follows
 *     mmx_ticket_wait(m, s, "r-17", 60000, &id); // or wait for it
 *     mmx_ticket_release(m, s, "r-17", id.generation);
 */

/* Language side: opens the space of ids 0 to n_seq_max - 1, or finds it: the
 * processes of a session share it. Returns its number on this handle, the
 * same for a name after reconnects; call it again after MMX_UP, as for pools.
 * -MMX_E_MALFORMED: the space has another n_seq_max, or n_seq_max exceeds
 * langd's limit; -MMX_E_QUOTA: too many spaces; -MMX_E_NOT_READY, -MMX_E_STALE,
 * -MMX_E_TIMEOUT, -MMX_E_SYSTEM as mmx_pool. */
int mmx_space(mmx *m, const char *name, uint32_t n_seq_max, int timeout_ms);

struct mmx_ticket {
    size_t size;
    int space;           /* from mmx_space */
    const char *request; /* request id, 1 to 63 bytes */
    uint32_t wait_ms;    /* limit of the wait for an id; 0: as configured */
    uint32_t hold_ms;    /* length of the lease; 0: until released */
    mmx_room room;       /* room whose failure frees the id; {0, 0}: none */
    void *user;          /* returned in events */
};

/* Asks for an id. MMX_TICKET or MMX_TICKET_LOST follows, also when an id is
 * free at once. A second call for the same request changes nothing and is
 * answered in the same way; of several processes that ask for one request, the
 * last gets the events. After MMX_TICKET, MMX_TICKET_LOST follows if the lease
 * expires, the room fails or the daemon is lost. -MMX_E_QUOTA: this handle has
 * 4,096 requests; -MMX_E_STALE: the space is of an earlier connection. */
int mmx_ticket(mmx *m, const struct mmx_ticket *t);

struct mmx_seq {
    int held;                /* 0: the request waits, and the rest is 0 */
    uint32_t id, generation; /* id < n_seq_max */
};

/* Waits until the request, made on this handle with mmx_ticket, has its id, and
 * consumes its event. -reason: it is lost; -MMX_E_TIMEOUT: it still waits until
 * it is released; -MMX_E_STALE: no such request on this handle. */
int mmx_ticket_wait(mmx *m, int space, const char *request, int timeout_ms,
    struct mmx_seq *out);

/* Releases a request's id. An older generation has no effect and causes no
 * event. MMX_UNKNOWN: releases the id or leaves the queue, whichever applies;
 * only for the handle that asked last. */
int mmx_ticket_release(
    mmx *m, int space, const char *request, uint32_t generation);

/* Asks the daemon what a request of the session holds, also one made by another
 * process. -MMX_E_UNKNOWN_ROOM: it neither holds nor awaits an id. */
int mmx_ticket_query(mmx *m, int space, const char *request, int timeout_ms,
    struct mmx_seq *out);

/* windows of a prompt
 *
 * A scheduler prefills a prompt window by window. A plan says which rows of
 * which rooms a window takes and where they go. It describes one step, lies in
 * the caller's memory and is never changed: keep it until the copy (or the
 * device's copy of its mask) is complete. For every step:
 *
 *     struct mmx_placeholder p[] = {{.offset = 2, .length = 4819}};
 *     struct mmx_window w = {.size = sizeof w, .computed = c, .length = 2048,
 *                            .rooms = 1};
 *     const struct mmx_plan *plan;
 *
 *     mmx_plan(&w, p, 1, mem, sizeof mem, &plan, NULL);
 *     mmx_plan_run(m, plan, rooms, "embedding", &tensor, &trouble);
 *
 * These structs do not begin with their size: they will not change. */
enum mmx_place_flags {
    MMX_INDIVISIBLE = 1, /* never cut by a window (attention both ways): the
                            window ends before it */
    MMX_ABSENT = 2       /* the rows are missing. An error if the window
                            needs them; left out if only a draft model's
                            shift reaches them */
};

struct mmx_placeholder {
    uint32_t offset, length; /* positions of the prompt */
    const uint64_t *embed;   /* bit i % 64 of word i / 64: position offset + i
                                takes a row; NULL: all do. mmx_pack_mask */
    uint32_t room;           /* index into the rooms of a run. Several
                                placeholders may show one room */
    uint32_t row_base;       /* row of its first position; MMX_PROMPT: of 0 */
    uint32_t elements;       /* elements of a row; 0: not checked */
    uint8_t storage;         /* enum mmx_storage; 0: compact */
    uint8_t flags;           /* enum mmx_place_flags */
};

/* Positions [computed + shift, computed + shift + length). */
struct mmx_window {
    size_t size;
    uint32_t computed, length;
    uint32_t shift;    /* 1 for a draft model (EAGLE, MTP) */
    uint32_t rooms;    /* number of rooms that the placeholders index */
    uint32_t elements; /* elements of a merged row; 0: not checked */
};

/* Rows [row, row + rows) of a room go to [at, at + rows) of the window. */
struct mmx_segment {
    uint32_t room, row, rows, at;
};

enum mmx_need_state {
    MMX_SKIP,  /* no position from `computed` on needs it: decline it */
    MMX_LATER, /* needed after this window; it may land later */
    MMX_NOW    /* needed for this window */
};

struct mmx_need {
    uint32_t state;      /* enum mmx_need_state */
    uint32_t first, end; /* this window's rows lie in [first, end) */
    uint32_t keep;       /* rows below are not used after this window and can be
                            released; MMX_ALL: all rows */
};

struct mmx_plan {
    size_t bytes;             /* bytes of mem in use */
    uint32_t computed, shift; /* as asked */
    uint32_t positions;       /* length of the window: as asked, or less where
                                 an indivisible span would have been cut */
    uint32_t rows;            /* rows of all segments; number of ones in mask */
    uint32_t segments_count, rooms;
    const struct mmx_segment *segments; /* ascending by place, disjoint */
    const uint64_t *mask; /* one bit per position of the window: takes a row */
    const struct mmx_need *needs; /* one for each room */
};

/* Packs n bytes, zero or not, into bits; writes (n + 63) / 64 words. */
void mmx_pack_mask(const uint8_t *bytes, uint32_t n, uint64_t *words);

/* Returns a size of mem that suffices for mmx_plan, or its negative error. */
int64_t mmx_plan_bytes(const struct mmx_window *w,
    const struct mmx_placeholder *p, int n, int *at);

/* Makes the plan in mem, aligned to 8 bytes. On failure *at (unless NULL) is
 * the index of the wrong placeholder, or n.
 *   -MMX_E_MALFORMED            a number is out of range, two spans claim one
 *                               position, or computed lies inside an
 *                               indivisible span: begin at its offset
 *   -MMX_E_INCOMPATIBLE_LAYOUT  rows of another width than the window's
 *   -MMX_E_TOO_LARGE            an indivisible span begins the window and is
 *                               longer than it
 *   -MMX_E_NOT_READY            an absent item has rows in the window
 *   -MMX_E_NO_BLOCKS            mem is too small */
int mmx_plan(const struct mmx_window *w, const struct mmx_placeholder *p, int n,
    void *mem, size_t mem_bytes, const struct mmx_plan **out, int *at);

/* Destination of rows. Position i of the window lies at data + i * stride. */
struct mmx_tensor {
    size_t size;
    void *data;
    uint64_t rows;   /* capacity: at least plan.positions, packed: plan.rows */
    uint64_t stride; /* bytes from row to row; 0: contiguous */
    uint32_t elements; /* as the field's */
    int packed; /* 1: the plan's rows are contiguous, as a masked scatter takes
                   them, without the positions between */
    const char *dtype; /* the field's, or "f32" from bf16 and f16 */
};

struct mmx_trouble {
    uint32_t room;        /* index; MMX_ALL: plan and tensor do not match */
    uint32_t first, rows; /* the rows that are missing, gone or too many */
};

/* Copies one field of the plan's rows. rooms has plan.rooms entries; a room
 * that the window does not need may be {0, 0}. Everything is checked before the
 * first byte is written. trouble may be NULL. For GPU pools the tensor lies on
 * the same GPU or in host memory and has the same dtype; each piece is one
 * synchronous copy.
 *   -MMX_E_GONE       rows of a released prefix
 *   -MMX_E_NOT_READY  rows that have not landed
 *   -MMX_E_STALE, ... the room's own error, as from mmx_gather
 *   -MMX_E_INCOMPATIBLE_LAYOUT, -MMX_E_MALFORMED  plan, rooms and tensor do
 *                     not match
 * The lock is not held while bytes are copied. */
int mmx_plan_run(mmx *m, const struct mmx_plan *plan, const mmx_room *rooms,
    const char *field, const struct mmx_tensor *to,
    struct mmx_trouble *trouble);

/* Makes the checks of mmx_plan_run and copies nothing. to NULL: checks only
 * that the rows have landed. */
int mmx_plan_check(mmx *m, const struct mmx_plan *plan, const mmx_room *rooms,
    const char *field, const struct mmx_tensor *to,
    struct mmx_trouble *trouble);

/* without a handle */

/* Returns the name of a reason of either sign ("too-large"); sets *text and
 * *advice unless NULL. Static strings. */
const char *mmx_reason(int reason, const char **text, int *advice);
const char *mmx_advice_name(int advice); /* "retry", "encode-locally", ... */
const char *mmx_state_name(int state);   /* "Bootstrapping", ... */

/* Returns the room id of a name, by the hash in EMBEDDING.md, section 1. The id
 * of a name that users can choose is guessable: use a key as well. */
uint64_t mmx_room_id(const void *name, size_t len);

/* Where an item can be encoded. Arrays have this struct: it will not change. */
struct mmx_encoder {
    const char *name; /* of its daemon: the same at all routers */
    uint32_t load;    /* items that wait there, or any other measure */
    uint64_t weight;  /* filled in */
};

/* Sorts encoders; pass all that are up and do not drain. An item's owner comes
 * first, then those that serve instead of the owner. The same names and loads
 * give the same order everywhere (EMBEDDING.md, section 6). key: len bytes that
 * name the item. Encoders with `bound` percent of the mean load, or more, come
 * last; 0: 125. -MMX_E_MALFORMED: bound is neither 0 nor from 100 to 10,000, or
 * n is not from 1 to 65,536. */
int mmx_place(const void *key, size_t len, struct mmx_encoder *encoders, int n,
    unsigned bound);

/* Draws a reference to hand to both sides. -MMX_E_SYSTEM: see errno. */
int mmx_reference_draw(struct mmx_reference *out);

/* Writes a reference as text or as bytes. Text: 16 hex digits of the id; if
 * there is a secret, "-" and its 32 hex digits. Bytes: the id, least byte
 * first, then the secret. Example: id 0xfedcba9876543210, secret 0, 1, ... 15:
 *   fedcba9876543210-000102030405060708090a0b0c0d0e0f
 * Both return the length, without the text's NUL; -MMX_E_MALFORMED: id 0. */
#define MMX_REFERENCE_TEXT  50
#define MMX_REFERENCE_BYTES 24
int mmx_reference_text(
    const struct mmx_reference *r, char out[MMX_REFERENCE_TEXT]);
int mmx_reference_bytes(
    const struct mmx_reference *r, uint8_t out[MMX_REFERENCE_BYTES]);

/* Reads either form, which has len bytes. -MMX_E_MALFORMED: it is neither. */
int mmx_reference_read(const void *from, size_t len, struct mmx_reference *out);

/* For a binding (mmx_binding.h). mmx_gpu_map maps a pool on a GPU by the answer
 * with it (fd -1: none), and sets the GPU's number in this process and the
 * address; returns NULL, or why it failed. */
const char *mmx_gpu_map(const char *share, int fd, const uint8_t *handle,
    size_t handle_len, uint64_t bytes, int writable, int *gpu, void **base);
void mmx_gpu_unmap(int gpu, void *base, uint64_t bytes);

/* Returns the version of the library, "0.1.0". */
const char *mmx_version(void);

#ifdef __cplusplus
}
#endif

#endif
