/* fake_daemon.h - a double of a daemon's socket, for tests of the client
 * library. It encodes and decodes messages by wire/wire.h and does nothing by
 * itself. A rig is an open handle on a fake, with a pool. */
#ifndef MMX_TEST_FAKE_DAEMON_H
#define MMX_TEST_FAKE_DAEMON_H

#include "client/mmx.h"
#include "wire/wire.h"
#include "io/mem.h"
#include "test/t.h"

#define CELLS      64
#define BLOCKS     16
#define BLOCK_ROWS 4
#define ROW        8 /* field a has 8 bytes; field b has 4 more */
#define LAYOUT     "a:f32:2,b:i32:1"
#define POOL_BYTES (BLOCKS * BLOCK_ROWS * (ROW + 4))
#define EPOCH      0x1234

/* One end of a daemon's socket. Tests take frames one by one; `packets` counts
 * the packets in which they came. */
struct fake {
    const char *layout; /* layout of pools in answers; NULL: LAYOUT */
    char path[108];
    int listen, conn;
    uint64_t epoch;
    uint8_t role, number; /* number: of later pools; 0: 3 */
    int cells_fd, pool_fd;
    uint64_t *cells;
    uint8_t *pool;
    const struct mem *gpu; /* memory of later pools; NULL: host memory */
    uint8_t in[LOCAL_PACKET_MAX];
    struct reader r;
    uint32_t packets, hello_seq;
};

struct rig {
    struct fake f;
    mmx *m;
    struct mmx_pool pool;
    uint32_t seq; /* of the last message that the fake has taken */
};

int fake_memory(size_t bytes, void *map_out);
void fake_listen(struct fake *f, uint8_t role);
struct local_msg fake_get(struct fake *f);
struct local_msg fake_want(struct fake *f, enum local_type type);
bool fake_idle(struct fake *f);
void fake_put(struct fake *f, const struct local_msg *m, int fd);
void fake_answer(struct fake *f, uint32_t seq, enum err e, const char *text);
void fake_event(struct fake *f, const struct local_event *e);
void fake_welcome(struct fake *f, int fd);
void fake_pool(struct fake *f, uint32_t seq, const char *name, int fd);
struct mmx_opt fake_opt(const struct fake *f, int timeout_ms);
struct mmx_event rig_one_event(mmx *m);
void rig_no_event(mmx *m);
void rig_pool(struct rig *g);
void rig_open(struct rig *g, uint8_t role);
void rig_close(struct rig *g);
/* A case with a rig `g`, which is closed at the end. */
#define TEST_RIG(id, role)                                                     \
    static void t_rig_##id(struct rig *g);                                     \
    TEST(id)                                                                   \
    {                                                                          \
        struct rig rig;                                                        \
                                                                               \
        rig_open(&rig, role);                                                  \
        t_rig_##id(&rig);                                                      \
        rig_close(&rig);                                                       \
    }                                                                          \
    static void t_rig_##id(struct rig *g)
mmx_room rig_announce(struct rig *g, uint64_t id, uint32_t rows);
mmx_room rig_request(struct rig *g, uint64_t id, int mode);
void rig_event(struct rig *g, mmx_room r, struct local_event e,
    const uint32_t *runs, uint32_t count);
void rig_word(struct rig *g, mmx_room r, unsigned state, uint32_t rows);

#endif
