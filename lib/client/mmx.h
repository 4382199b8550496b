/* mmx.h - move multimodal embeddings between engines: the client library.
 *
 * An encode engine announces a room, gets blocks, writes rows into them and
 * commits. A language engine requests the same room by its id, hears when the
 * rows are there, reads them in place and releases. The daemon on this host
 * (mmx-encoded, mmx-langd) does the rest. An encode engine in short:
 *
 *     mmx *m;
 *     struct mmx_opt o = {.size = sizeof o, .role = MMX_ENCODED,
 *                         .timeout_ms = 5000};
 *     struct mmx_pool p = {.size = sizeof p};
 *     struct mmx_announce a = {.size = sizeof a, .id = 7, .rows = 500};
 *     mmx_room r;
 *
 *     mmx_open(&o, &m);
 *     mmx_pool(m, "vit", "embedding:bf16:8192", 5000, &p);
 *     a.pool = p.id;
 *     mmx_announce(m, &a, &r);              // before the encoder runs
 *     mmx_wait_room(m, r, MMX_GRANTED, -1); // or events from mmx_step
 *     mmx_scatter(m, r, NULL, 0, 500, rows, 0); // or write through mmx_view
 *     mmx_commit_final(m, r, 0, 500, 500, NULL, 0);
 *
 * and a language engine:
 *
 *     struct mmx_request q = {.size = sizeof q, .id = 7, .pool = p.id,
 *                             .encoder = "enc-0"};
 *     mmx_request(m, &q, &r);
 *     mmx_wait_room(m, r, MMX_READY, -1);
 *     mmx_view(m, r, "embedding", 0, MMX_ALL, &v); // v.data, v.rows, v.stride
 *     mmx_release(m, r, MMX_ALL, 0);
 *
 * Rules for every call
 *  - Results: 0 or a count, or -MMX_E_x. Outputs are untouched on failure.
 *  - Units: lengths and offsets of a room are rows, durations milliseconds,
 *    everything else bytes. MMX_ALL is all rows, MMX_UNKNOWN not known yet.
 *  - Structs begin with their size: set .size, leave what you do not need 0.
 *    Everything an argument points to is copied before the call returns.
 *  - No call waits unless it has a timeout (-1: for ever). A call that does
 *    not wait returns 0 when its message is on its way; should the daemon
 *    refuse it, MMX_REFUSED comes as an event of the room.
 *  - Threads: any call from any thread, except mmx_close, which must be the
 *    last one. One short lock inside, no threads, no signals, no output, no
 *    memory taken after mmx_open and mmx_pool (but by the first
 *    mmx_plan_launch for a GPU). mmx_commit and
 *    mmx_release may be called from a CUDA host callback.
 *  - GPU pools (mmx_pool.gpu): pointers are addresses of the GPU. Rows that can
 *    be read have landed, there is nothing to wait for. Kernels that write rows
 *    must be over before mmx_commit, those that read before mmx_release: call
 *    it from a host callback behind them, cudaLaunchHostFunc(stream, f, arg),
 *    or once an event recorded behind them is over. Never wait for a device.
 *  - fork: a child may only mmx_close the handle (everything else answers
 *    -MMX_E_FORKED) and must not touch the pools. Open again in the child.
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

/* A room on this handle, until it is released. Copy it freely. {0, 0} names
 * none. Using it after its release is answered with -MMX_E_STALE. */
typedef struct mmx_room {
    uint32_t cell, tag;
} mmx_room;

#define MMX_ALL     UINT32_MAX
#define MMX_UNKNOWN UINT32_MAX

/* words */

enum mmx_role { MMX_ANY, MMX_ENCODED, MMX_LANGD };

/* The least of several ranks' states is the one that all have reached. */
enum mmx_room_state {
    MMX_FAILED_STATE,  /* final: the reason says why and what to do */
    MMX_BOOTSTRAPPING, /* one of the two sides has not been heard */
    MMX_WAITING,       /* both sides know each other, no row has moved */
    MMX_TRANSFERRING,  /* rows are moving */
    MMX_SUCCESS        /* final: every row and aux are there */
};

/* Reasons: positive in events and states, negative as results of calls.
 * mmx_reason() gives name, sentence and advice. */
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
    MMX_E_SPLIT = 64,  /* the rows are not one array: mmx_runs, mmx_gather */
    MMX_E_FORKED = 65, /* the handle belongs to the parent process */
    MMX_E_SYSTEM = 66  /* the operating system refused: errno says what */
};

/* What an engine should do about a reason. */
enum mmx_advice {
    MMX_ADVICE_NOTHING,        /* not a failure */
    MMX_ADVICE_RETRY,          /* the same call may work after a moment */
    MMX_ADVICE_ENCODE_LOCALLY, /* ask another encoder, or encode here */
    MMX_ADVICE_GIVE_UP         /* it will fail again: mend caller or config */
};

enum mmx_storage { MMX_COMPACT = 1, MMX_PADDED = 2, MMX_PROMPT = 3 };
enum mmx_mode { MMX_WHOLE, MMX_STREAM };
enum mmx_rights { MMX_READ = 1, MMX_WRITE = 2, MMX_WATCH = 4 };
enum mmx_flags { MMX_KEEP = 1, MMX_OPEN = 2, MMX_NO_READERS = 4 };

/* connection */

struct mmx_opt {
    size_t size;
    int role;            /* the daemon expected: enum mmx_role */
    const char *socket;  /* NULL: $MMX_ENCODED_SOCKET or $MMX_LANGD_SOCKET,
                            else /run/mmx/encoded.sock or langd.sock */
    const char *engine;  /* name of this process, for people; NULL: pid */
    const char *session; /* name that this engine's processes share; NULL:
                            this process alone */
    uint32_t cells;      /* rooms open at once on this handle; 0: 1024 */
    int timeout_ms;      /* wait so long for the daemon. 0: do not wait, it is
                            there when mmx_step gives MMX_UP */
    char *why;           /* NULL, or where a failure of mmx_open is told */
    size_t why_size;
};

/* -MMX_E_NOT_READY: no daemon there in time; -MMX_E_TIMEOUT: it does not
 * answer; -MMX_E_VERSION, -MMX_E_NOT_OWNER, ...: it refuses;
 * -MMX_E_SYSTEM: errno. With timeout_ms = 0 only the last can happen. */
int mmx_open(const struct mmx_opt *opt, mmx **out);

/* Unmaps every pool (mmx_on_map is told first), releases every room, ends the
 * connection and sets *m to NULL. Waits for the daemon at most 0.2 s. Accepts
 * NULL. No other thread may be inside a call. */
void mmx_close(mmx **m);

/* A descriptor to poll for reading; call mmx_step when it is readable. It
 * stays the same for the life of the handle. Do not read or close it. */
int mmx_fd(const mmx *m);

struct mmx_info {
    size_t size;
    int role;            /* enum mmx_role */
    int up;              /* 1: connected; else the rest is of the last time */
    uint32_t protocol;   /* version spoken on this connection */
    uint64_t epoch;      /* this run of the daemon */
    uint32_t cells;      /* rooms open at once on this handle */
    uint32_t rooms_max;  /* rooms open at once, all engines together */
    uint32_t aux_max;    /* bytes of aux a room may have */
    char name[65];       /* the daemon's name */
    char advertise[129]; /* encoded: what language engines name as encoder */
    char software[33];
};
int mmx_info(mmx *m, struct mmx_info *out);

/* The daemon's words about the last thing it refused on this handle, or what
 * ended the connection; cut to size, empty if there was none. */
int mmx_error_text(mmx *m, char *out, size_t size);

/* events
 *
 * Several happenings of one room may be folded into one event. Cells are the
 * truth, events are hints and carry what does not fit into a cell. */
enum mmx_happening {
    MMX_GRANTED = 1,    /* encoder: blocks are there, rows [0, rows) writable */
    MMX_HAVE = 2,       /* encoder: rows of this key are here or are written
                           under another room: there is nothing to write, and
                           MMX_GRANTED does not come */
    MMX_WANTED = 4,     /* encoder: `a` destinations have asked */
    MMX_DONE = 8,       /* encoder: `a` served, `b` failed. The room has ended
                           and is released with this event */
    MMX_LENGTH = 16,    /* total and aux are known */
    MMX_LANDED = 32,    /* stream: rows up to `rows` may be read */
    MMX_READY = 64,     /* all rows may be read; aux is there */
    MMX_FAILED = 128,   /* the room has ended: reason, advice, text. Rows that
                          were shown stay until you mmx_release the room, which
                          is due in any case. Encoder, peer-lost: the outcome is
                          unknown */
    MMX_GONE = 256,     /* kept for a daemon that tells when a kept item is
                           given away; today MMX_FAILED(gone) says so when it
                           is asked for again */
    MMX_UP = 1 << 16,   /* connected, `epoch` says to which run. Ask for the
                          pools again: an old pool cannot open rooms */
    MMX_DOWN = 1 << 17, /* the daemon is lost. Rooms that had not ended have
                        had MMX_FAILED(daemon-lost). Maps stay readable, rows
                        that were ready too. Reconnects by itself */
    MMX_REFUSED = 1 << 18, /* the daemon refused `op`: reason, text, a, b. A
                        refused announce, request or attach ends the room and
                        frees it with this event; after anything else the room
                        is as it was */
    MMX_TICKET = 1 << 19,  /* `request` holds id `a` of `space`, `generation` */
    MMX_TICKET_LOST = 1 << 20 /* `request` has no id and waits for none:
                        reason. Timeout: of the wait or the lease */
};

struct mmx_event {
    uint32_t what;       /* bits of enum mmx_happening */
    mmx_room room;       /* {0, 0} with UP, DOWN, and REFUSED of what had no
                            room any more */
    uint64_t id;         /* room id */
    void *user;          /* as given when the room was opened */
    int state;           /* enum mmx_room_state */
    int reason, advice;  /* with FAILED, REFUSED, DOWN */
    int storage;         /* enum mmx_storage; 0: not known yet */
    uint32_t rows;       /* GRANTED: writable; LANDED, READY: readable */
    uint32_t total;      /* rows of the item, or MMX_UNKNOWN */
    uint32_t a, b;       /* WANTED, DONE, FAILED: see above; too-large: rows
                            asked, rows that fit; TICKET: a is the id */
    uint64_t generation; /* language side: this opening of the room; TICKET:
                            this holder of the id */
    uint64_t epoch;      /* UP: this run of the daemon */
    const void *aux;     /* LENGTH, READY; else NULL. Valid until the room is */
    uint32_t aux_len;    /* released */
    const char *op;      /* REFUSED: "announce", "commit", ... */
    const char *text;    /* FAILED, REFUSED: for people; never NULL. Valid
                            until the room is released and mmx_step is called
                            again, whichever is later */
    const char *request; /* TICKET, TICKET_LOST; else NULL. Valid until it is
                            released; LOST: until mmx_step is called again */
    int space;           /* TICKET, TICKET_LOST */
};

/* Sends what is queued, takes what has come, reconnects when it is time, and
 * fills at most max events. Returns how many; 0: nothing has happened. Never
 * waits. Only -MMX_E_FORKED and -MMX_E_MALFORMED can fail. */
int mmx_step(mmx *m, struct mmx_event *ev, int max);

/* mmx_step, after waiting up to timeout_ms for something to happen. 0: time is
 * over or a signal came. */
int mmx_wait(mmx *m, struct mmx_event *ev, int max, int timeout_ms);

/* For scripts: waits until one of these bits of enum mmx_happening has
 * happened to the room, now or earlier. It takes no events away: mmx_step
 * still gives them. -reason when the room failed or was refused,
 * -MMX_E_TIMEOUT, -MMX_E_SYSTEM when a signal came. It does not reconnect:
 * only mmx_step and mmx_wait do. */
int mmx_wait_room(mmx *m, mmx_room room, uint32_t what, int timeout_ms);

/* Calls between cork and uncork travel in one packet, which saves system calls
 * on both sides. Counts; the outermost uncork sends, and so does mmx_step. */
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
    int writable; /* 0: mapped read only; writing is a fault */
    uint32_t block_rows, blocks;
    uint64_t bytes; /* of the whole map */
    void *base;
    uint32_t fields_count;
    char name[65], memory[17];
    char layout[1025]; /* the fields as text */
    struct mmx_field fields[MMX_FIELDS_MAX];
    int gpu; /* -1: host memory; else number of the GPU in this process: base
                and every data pointer are addresses of it, for kernels and
                copies only */
};

/* Asks for a pool and maps it. name NULL: the daemon's first pool. layout: the
 * fields that the engine has, "embedding:bf16:8192,fill_ids:i32:1", or NULL to
 * take what is there; -MMX_E_INCOMPATIBLE_LAYOUT otherwise (mmx_error_text has
 * both). A pool with `layout: engine` gets its fields this way. Calling it
 * again gives the same map; after MMX_UP it unmaps the old one and maps the
 * new one. The map is kept out of core dumps and of child processes, and
 * stays until mmx_close. -MMX_E_NOT_READY: not connected, step until MMX_UP;
 * -MMX_E_TIMEOUT; -MMX_E_SYSTEM: errno (EINTR: a signal came). */
int mmx_pool(mmx *m, const char *name, const char *layout, int timeout_ms,
    struct mmx_pool *out);

/* f is told of every map: mapped = 1 after mapping (pin it here), 0 before
 * unmapping (unpin), for all pools mapped now and later, on the thread that is
 * inside mmx_on_map, mmx_pool or mmx_close. It must not call the library.
 * NULL: nobody. */
typedef void (*mmx_map_fn)(void *ud, const struct mmx_pool *pool, int mapped);
int mmx_on_map(mmx *m, mmx_map_fn f, void *ud);

/* rooms
 *
 * Common errors: -MMX_E_NOT_READY not connected; -MMX_E_QUOTA every cell is in
 * use; -MMX_E_BUSY the daemon does not read, step and try again; -MMX_E_STALE
 * the room was released, or the pool is of an earlier run of the daemon;
 * -MMX_E_MALFORMED an argument makes no sense; -MMX_E_DAEMON_LOST the
 * connection just ended. */

struct mmx_announce {
    size_t size;
    uint64_t id;           /* room id, known to both engines */
    int pool;              /* mmx_pool.id */
    int storage;           /* enum mmx_storage; 0: compact */
    unsigned flags;        /* MMX_KEEP, MMX_OPEN: any number of destinations */
    uint32_t rows;         /* length of the item, if it is known */
    uint32_t max_rows;     /* if it is not: rows is 0 and blocks are taken for
                              so many */
    uint16_t required_dst; /* destinations that complete the room; 0: what the
                              first request says; with MMX_OPEN: 0 */
    uint16_t batch;        /* announces that follow on this handle and want
                              their blocks together with this one: n - 1, n -
                              2, ..., 0 for n rooms. Cork them. One that is
                              refused is left out, the others get theirs */
    uint32_t deadline_ms;  /* for the first destination; 0: as configured */
    const uint8_t *key;    /* 32 bytes that name the content, or NULL */
    const void *aux;       /* opaque bytes for the language engine */
    uint32_t aux_len;
    void *user; /* comes back in events */
};

/* Encode side: an item is coming. As early as the length is known, before the
 * encoder runs. MMX_GRANTED follows when the blocks are there, or MMX_HAVE:
 * wait for either. */
int mmx_announce(mmx *m, const struct mmx_announce *a, mmx_room *out);

/* Encode side: rows [first, first + rows) are written and will not be written
 * again. Any process of the session, any order. */
int mmx_commit(mmx *m, mmx_room room, uint32_t first, uint32_t rows);

/* The same (rows may be 0), and no process of this session writes a row of the
 * room any more; total is the length. aux: if it was not told before. */
int mmx_commit_final(mmx *m, mmx_room room, uint32_t first, uint32_t rows,
    uint32_t total, const void *aux, uint32_t aux_len);

struct mmx_request {
    size_t size;
    uint64_t id;
    int pool;              /* mmx_pool.id */
    int mode;              /* MMX_WHOLE, MMX_STREAM */
    int storage;           /* enum mmx_storage; 0: any */
    unsigned flags;        /* MMX_KEEP */
    uint32_t rows;         /* expected; 0: not known */
    uint16_t readers;      /* further connections that will attach to read */
    uint16_t required_dst; /* destinations of the room; 0: this one */
    uint64_t group;        /* rooms admitted together; 0: none */
    uint16_t group_size;
    uint32_t deadline_ms; /* until READY; 0: as configured */
    const uint8_t *key;   /* 32 bytes, or NULL */
    const char *encoder;  /* name or address of the encoder's daemon; "null":
                             zero rows and success at once, for warm-up */
    void *user;
};

/* Language side: I want this room. */
int mmx_request(mmx *m, const struct mmx_request *r, mmx_room *out);

/* Language side: nobody here will fetch the room; its source may go. */
int mmx_decline(
    mmx *m, const char *encoder, uint64_t id, const uint8_t key[32]);

struct mmx_attach {
    size_t size;
    uint64_t id;
    int pool;             /* not looked at: events tell the room's pool, which
                             must have been mapped here (mmx_pool) by then */
    int rights;           /* enum mmx_rights */
    uint32_t deadline_ms; /* for the room to be opened; 0: as configured */
    const char *encoder;  /* language side: as in the request */
    void *user;
};

/* Another process of the session has opened the room, or will: show it here.
 * Its events come here too; release it when done. */
int mmx_attach(mmx *m, const struct mmx_attach *a, mmx_room *out);

/* Language side: rows [0, rows) are read and may go; MMX_ALL ends the room on
 * this handle (before READY the owner aborts it so). Encode side: MMX_ALL, the
 * answer to MMX_FAILED; earlier it withdraws. Nothing of the released rows may
 * be touched from here on. flags: MMX_KEEP; MMX_NO_READERS, language side, from
 * the handle that requested the room: readers that were announced and have not
 * attached will not come, blocks go back without them, and one that comes yet
 * fails with MMX_E_GONE (a daemon that does not know this waits for them). */
int mmx_release(mmx *m, mmx_room room, uint32_t rows, unsigned flags);

/* Ends the room as failed, for everybody. MMX_FAILED comes, then release.
 * reason: enum mmx_error, 0: aborted. text: for people, or NULL. */
int mmx_abort(mmx *m, mmx_room room, int reason, const char *text);

/* looking at rooms */

struct mmx_state {
    int state;     /* enum mmx_room_state */
    int reason;    /* enum mmx_error, when failed */
    uint32_t rows; /* encoder: committed; language: readable */
};

/* Reads n rooms' cells: no lock, no system call, some nanoseconds each. out
 * may be NULL. Returns the least state. A room whose opening the daemon has
 * not read yet is Bootstrapping. */
int mmx_poll(const mmx *m, const mmx_room *rooms, int n, struct mmx_state *out);

/* The cell itself, for loops that cannot afford a call; valid as long as the
 * handle. Bits 0-3 state, 4-9 reason, 10-31 tag, 32-63 rows. It speaks of the
 * room only while its tag is room.tag; otherwise ask mmx_poll. NULL: no such
 * cell. */
const volatile uint64_t *mmx_cell(const mmx *m, mmx_room room);

struct mmx_look {
    size_t size;
    uint64_t id, generation;
    void *user;
    uint32_t seen; /* every bit of enum mmx_happening so far */
    int state, reason, storage;
    uint32_t first, rows; /* rows [first, rows) have a place: see mmx_runs */
    uint32_t total;
    uint32_t stream_rows; /* stream: so many rows can always be resident: do
                             not wait for more. 0: not answered yet */
    const void *aux;
    uint32_t aux_len;
};

/* All that the handle knows about a room. */
int mmx_look(mmx *m, mmx_room room, struct mmx_look *out);

struct mmx_run {
    uint32_t first, rows; /* rows [first, first + rows) of the room ... */
    uint32_t block;       /* ... lie from row 0 of this block on */
};

/* Where the room's rows lie: writable ones (encoder), or readable ones that
 * are not released (language). Fills at most max, returns how many there are.
 * -MMX_E_NOT_READY: no event has told yet. */
int mmx_runs(mmx *m, mmx_room room, struct mmx_run *out, int max);

struct mmx_view {
    void *data; /* row `first`; const when the pool is not writable */
    uint32_t first, rows;
    uint64_t stride; /* bytes from row to row */
};

/* Rows [first, first + rows) of one field as an array in the pool; MMX_ALL: to
 * the end of what can be read or written. field NULL: the first one. Valid
 * until the rows are released. -MMX_E_SPLIT: they lie in several runs;
 * -MMX_E_NOT_READY: not all of them are there. */
int mmx_view(mmx *m, mmx_room room, const char *field, uint32_t first,
    uint32_t rows, struct mmx_view *out);

/* Copies rows [first, first + rows) of one field between the room's blocks and
 * a buffer whose rows are stride bytes apart (0: the field's row_bytes). Of a
 * GPU pool the buffer may be in host memory or on a GPU. Returns when the bytes
 * are there; the lock is not held while they are copied. */
int mmx_gather(mmx *m, mmx_room room, const char *field, uint32_t first,
    uint32_t rows, void *dst, size_t stride);
int mmx_scatter(mmx *m, mmx_room room, const char *field, uint32_t first,
    uint32_t rows, const void *src, size_t stride);

/* sequence ids
 *
 * An engine context has n_seq_max sequence ids (llama.cpp). langd leases them:
 * a request holds an id of a space, or waits in line and is told when its turn
 * comes. Nobody is ever given a negative id. A generation counts the holders
 * of an id, so that a late release changes nothing.
 *
 *     int s = mmx_space(m, "ctx-0", 8, 5000);
 *     struct mmx_ticket t = {.size = sizeof t, .space = s, .request = "r-17"};
 *     struct mmx_seq id;
 *
 *     mmx_ticket(m, &t);                         // MMX_TICKET will come
 *     mmx_ticket_wait(m, s, "r-17", 60000, &id); // or wait for it
 *     mmx_ticket_release(m, s, "r-17", id.generation);
 */

/* Language side: opens the space of ids 0 to n_seq_max - 1, or finds it: the
 * processes of a session share it. Returns its number on this handle, the
 * same for a name after reconnects; ask again after MMX_UP, as for pools.
 * -MMX_E_MALFORMED: it has another n_seq_max, or more than langd allows;
 * -MMX_E_QUOTA: too many spaces; -MMX_E_NOT_READY, -MMX_E_TIMEOUT,
 * -MMX_E_SYSTEM as mmx_pool. */
int mmx_space(mmx *m, const char *name, uint32_t n_seq_max, int timeout_ms);

struct mmx_ticket {
    size_t size;
    int space;           /* from mmx_space */
    const char *request; /* request id, 1 to 63 bytes */
    uint32_t wait_ms;    /* in line at most so long; 0: as configured */
    uint32_t hold_ms;    /* lease: lost by itself after so long; 0: none */
    mmx_room room;       /* whose failure frees the id; {0, 0}: none */
    void *user;          /* comes back in events */
};

/* Asks for an id. MMX_TICKET or MMX_TICKET_LOST follows, also when there is an
 * id at once. Asking again for what a request has, or waits for, changes
 * nothing and is answered in the same way; of several processes that ask for
 * one request the last one hears what comes. After MMX_TICKET,
 * MMX_TICKET_LOST comes if the lease ends, the room fails or the daemon is
 * lost. -MMX_E_QUOTA: this handle has 4,096 requests; -MMX_E_STALE: the space
 * is of an earlier connection. */
int mmx_ticket(mmx *m, const struct mmx_ticket *t);

struct mmx_seq {
    int held;                /* 0: it waits, and the rest is 0 */
    uint32_t id, generation; /* id < n_seq_max */
};

/* Waits until the request, which was asked for on this handle, has its id, and
 * takes its event. -reason: it is lost; -MMX_E_TIMEOUT: it still waits, and
 * whoever does not want it any more releases it; -MMX_E_STALE: nobody asked;
 * -MMX_E_SYSTEM: a signal came. */
int mmx_ticket_wait(mmx *m, int space, const char *request, int timeout_ms,
    struct mmx_seq *out);

/* The request is over, whatever became of it. Of an older generation it
 * changes nothing, and nobody is told. MMX_UNKNOWN: held or waiting, give it
 * back or leave the line; only for the handle that asked last. */
int mmx_ticket_release(
    mmx *m, int space, const char *request, uint32_t generation);

/* What a request of the session has, whoever asked for it. Asks the daemon.
 * -MMX_E_UNKNOWN_ROOM: it has no id and waits for none. */
int mmx_ticket_query(mmx *m, int space, const char *request, int timeout_ms,
    struct mmx_seq *out);

/* windows of a prompt
 *
 * A scheduler prefills a prompt window by window. A plan says which rows of
 * which rooms a window takes and where they go; it is one step's value, made
 * in memory of its own, and nothing changes it: keep it until the copy (or the
 * device's copy of its mask) is over. For every step:
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
    MMX_ABSENT = 2       /* the rows are not there. An error where the window
                            needs them; left out where only a draft model's
                            shift reaches them */
};

struct mmx_placeholder {
    uint32_t offset, length; /* positions of the prompt */
    const uint64_t *embed;   /* bit i % 64 of word i / 64: position offset + i
                                takes a row; NULL: all do. mmx_pack_mask */
    uint32_t room;           /* whose rows: index into the rooms of a run.
                                Several placeholders may show one room */
    uint32_t row_base;       /* the room's row for the span's first one; with
                                MMX_PROMPT, for position 0 */
    uint32_t elements;       /* of a row; 0: not checked */
    uint8_t storage;         /* enum mmx_storage; 0: compact */
    uint8_t flags;           /* enum mmx_place_flags */
};

/* Positions [computed + shift, computed + shift + length). */
struct mmx_window {
    size_t size;
    uint32_t computed, length;
    uint32_t shift;    /* 1 for a draft model (EAGLE, MTP) */
    uint32_t rooms;    /* how many rooms the placeholders speak of */
    uint32_t elements; /* of the merged rows; 0: not checked */
};

/* Rows [row, row + rows) of a room go to places [at, at + rows) of the
 * window. */
struct mmx_segment {
    uint32_t room, row, rows, at;
};

enum mmx_need_state {
    MMX_SKIP,  /* nothing from computed on shows it: do not fetch, decline */
    MMX_LATER, /* needed, but not in this window: it need not be there yet */
    MMX_NOW
};

struct mmx_need {
    uint32_t state;      /* enum mmx_need_state */
    uint32_t first, end; /* this window's rows lie in [first, end) */
    uint32_t keep; /* rows below are not used after this window: release them,
                      all if it is MMX_ALL */
};

struct mmx_plan {
    size_t bytes;             /* of mem that are used */
    uint32_t computed, shift; /* as asked */
    uint32_t positions;       /* of the window: as asked, or less where an
                                 indivisible span would have been cut */
    uint32_t rows;            /* of all segments; as many ones are in mask */
    uint32_t segments_count, rooms;
    const struct mmx_segment *segments; /* ascending by place, disjoint */
    const uint64_t *mask; /* bit per position of the window: takes a row */
    const struct mmx_need *needs; /* of each room */
};

/* Bits from bytes that are 0 or not; writes (n + 63) / 64 words. */
void mmx_pack_mask(const uint8_t *bytes, uint32_t n, uint64_t *words);

/* Bytes that are enough for mmx_plan, or a negative error as from it. */
int64_t mmx_plan_bytes(const struct mmx_window *w,
    const struct mmx_placeholder *p, int n, int *at);

/* Makes the plan in mem, aligned to 8 bytes. *at (unless NULL) is the
 * placeholder that is wrong, or n.
 *   -MMX_E_MALFORMED            a number makes no sense, two spans claim one
 *                               position, or computed lies inside an
 *                               indivisible span: begin at its offset
 *   -MMX_E_INCOMPATIBLE_LAYOUT  rows of another width than the window's
 *   -MMX_E_TOO_LARGE            an indivisible span begins the window and is
 *                               longer than it
 *   -MMX_E_NOT_READY            an absent item has rows in the window
 *   -MMX_E_NO_BLOCKS            mem is too small */
int mmx_plan(const struct mmx_window *w, const struct mmx_placeholder *p, int n,
    void *mem, size_t mem_bytes, const struct mmx_plan **out, int *at);

/* Where rows go. Place i of the window lies at data + i * stride. */
struct mmx_tensor {
    size_t size;
    void *data;
    uint64_t rows;   /* that fit: at least plan.positions, packed: plan.rows */
    uint64_t stride; /* bytes; 0: rows touch */
    uint32_t elements; /* the field's */
    int packed; /* the plan's rows one after the other, as a masked scatter
                   takes them, without the places between */
    const char *dtype; /* the field's, or "f32" from bf16 and f16 */
};

struct mmx_trouble {
    uint32_t room;        /* index; MMX_ALL: plan and tensor do not fit */
    uint32_t first, rows; /* the rows that are missing, gone or too many */
};

/* Copies one field of the plan's rows. rooms: as many as plan.rooms; those
 * that the window does not take from may be {0, 0}. Everything is checked
 * before the first byte is written. trouble may be NULL. Of GPU pools: tensor
 * on the same GPU or in host memory, of the same dtype, by one copy per piece
 * that is waited for; mmx_plan_launch does it by one launch.
 *   -MMX_E_GONE       rows of a released prefix
 *   -MMX_E_NOT_READY  rows that have not landed
 *   -MMX_E_STALE, ... the room's own, as from mmx_gather
 *   -MMX_E_INCOMPATIBLE_LAYOUT, -MMX_E_MALFORMED  they do not fit
 * The lock is not held while bytes are copied. */
int mmx_plan_run(mmx *m, const struct mmx_plan *plan, const mmx_room *rooms,
    const char *field, const struct mmx_tensor *to,
    struct mmx_trouble *trouble);

/* The same for rooms of pools on one GPU and a tensor there, by a kernel behind
 * what `stream` (cudaStream_t, CUstream) has been given so far: one launch for
 * 64 pieces, waits for nothing, and makes f32 of bf16 and f16, too. The rows
 * are in use until the stream has come so far: release behind it. The first
 * call for a GPU loads the kernels from $MMX_KERNELS, or from where `make
 * install` put them. -MMX_E_INTERNAL: no kernels or the GPU refused; for both
 * mmx_error_text. -MMX_E_MALFORMED: a room of host memory, or f32 that is not
 * aligned to 4, too. That the tensor is the GPU's is not checked. */
int mmx_plan_launch(mmx *m, const struct mmx_plan *plan, const mmx_room *rooms,
    const char *field, const struct mmx_tensor *to, void *stream,
    struct mmx_trouble *trouble);

/* The same checks without a copy; to may be NULL: are the rows there? */
int mmx_plan_check(mmx *m, const struct mmx_plan *plan, const mmx_room *rooms,
    const char *field, const struct mmx_tensor *to,
    struct mmx_trouble *trouble);

/* without a handle */

/* Name of a reason of either sign ("too-large"); *text, *advice unless NULL.
 * Static strings. */
const char *mmx_reason(int reason, const char **text, int *advice);
const char *mmx_advice_name(int advice); /* "retry", "encode-locally", ... */
const char *mmx_state_name(int state);   /* "Bootstrapping", ... */

/* Room id from a name: FNV-1a 64 over the bytes (basis 0xcbf29ce484222325,
 * prime 0x100000001b3), then h ^= h >> 33, h *= 0xff51afd7ed558ccd,
 * h ^= h >> 33, h *= 0xc4ceb9fe1a85ec53, h ^= h >> 33, modulo 2^64.
 *   ""            0xefd01f60ba992926
 *   "a"           0x82a2a958a9bece5b
 *   "room-1"      0x656bb5e56c350c3f
 * A name that users can choose makes a guessable id: use a key as well. */
uint64_t mmx_room_id(const void *name, size_t len);

/* Version of the library, "0.1.0". */
const char *mmx_version(void);

#ifdef __cplusplus
}
#endif

#endif
