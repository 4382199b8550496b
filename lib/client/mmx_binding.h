/* mmx_binding.h - a handle for a binding of another language, whose arrays keep
 * maps alive and whose calls never wait here. Python's is one.
 *
 * A handle that was opened with mmx_opt.binding
 *  - keeps each answer of the daemon for mmx_answers, which is called after
 * each mmx_step until it returns 0. mmx_sent names the message that a call has
 *    sent. After the end of a connection each message without an answer has
 *    that of MMX_E_DAEMON_LOST;
 *  - maps no pool: mmx_ask_pool's answer has a descriptor. The caller maps it;
 *    the pool's base is NULL and each field's data the offset in the map;
 *  - releases no room by itself, also not with MMX_DONE;
 *  - is offered pools of encoders with an answer whose number is 0. mmx_lend
 *    says when such a pool is mapped, and when its map has gone. */
#ifndef MMX_BINDING_H
#define MMX_BINDING_H

#include "mmx.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mmx_answer {
    size_t size;
    uint32_t number; /* of the message, as from mmx_sent */
    int reason;      /* enum mmx_error; 0: it is done */
    uint32_t a, b;   /* numbers of the answer, see PROTOCOL.md */
    const char *text;
    uint32_t text_len;
    int more;                    /* 1: of a query; more of its text follows */
    const struct mmx_pool *pool; /* of mmx_ask_pool and offers, else NULL */
    uint16_t pool_number;
    int fd;            /* the caller closes it; -1: none */
    const char *share; /* of a pool on a GPU, for mmx_gpu_map */
    const uint8_t *handle;
    uint32_t handle_len;
    int gone; /* 1: an offered pool's encoder has ended: unmap it */
};

/* Takes the oldest answer. 1: there was one, and what it points to stays until
 * the next call; 0: there is none. */
int mmx_answers(mmx *m, struct mmx_answer *out);

/* Returns the number of the last message that the handle has queued. */
uint32_t mmx_sent(const mmx *m);

/* As mmx_pool, mmx_space and mmx_ticket_query, without a wait. mmx_ask_space
 * returns the space, which can be used once the answer has come. */
int mmx_ask_pool(mmx *m, const char *name, const char *layout);
int mmx_ask_space(mmx *m, const char *name, uint32_t n_seq_max);
int mmx_ask_ticket(mmx *m, int space, const char *request);

/* Asks for a report, whose text comes in answers. */
int mmx_query(mmx *m, const char *what);

/* Says of an offered pool: 1 it is mapped, and rows may be shown there; 0 they
 * may not; -1 it is not mapped any more. */
int mmx_lend(mmx *m, int pool, int mapped);

struct mmx_blocks {
    uint32_t block, blocks;
};

/* Copies the blocks of the room's rows from row *first on, as the last event
 * has reported them, at most `max`; returns their number. pool: the daemon's
 * number of their pool, which the caller may not know yet; then the blocks may
 * be beyond its end. */
int mmx_blocks(mmx *m, mmx_room room, int *pool, uint32_t *first,
    struct mmx_blocks *out, int max);

/* Makes mmx_fd readable, so that the next mmx_step is due. */
void mmx_wake(mmx *m);

/* Says that the handle will end: sends BYE, whose answer comes as others do. */
int mmx_bye(mmx *m);

/* Ends the connection at once and closes mmx_fd. The handle does not connect
 * again; steps return what has ended. Close it once no map is in use. */
int mmx_end(mmx *m);

#ifdef __cplusplus
}
#endif

#endif
