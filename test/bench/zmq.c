/* zmq.c - measures what engines do today: the rows are frames of one ZMQ
 * message, PUSH to PULL over TCP. The receiver copies each to its place, as an
 * engine does that gets buffers instead of a map. Frames are sent from where
 * they lie; there is no pickle, so the figure is better than that of a real
 * engine.
 *
 * One frame per picture: an eighth of the room. One thread of each engine. */
#include "test/bench/bench.h"

#include <zmq.h>

#define FRAMES 8

static void check(bool good, const char *what)
{
    if (!good)
        die("zmq: %s: %s", what, zmq_strerror(zmq_errno()));
}

void zmq_open(struct side *x)
{
    static char at[64];

    x->zmq_ctx = zmq_ctx_new();
    x->zmq = zmq_socket(x->zmq_ctx, x->which == ENC ? ZMQ_PUSH : ZMQ_PULL);
    check(x->zmq != NULL, "socket");
    if (x->which == LANG) {
        size_t n = sizeof at;

        check(zmq_bind(x->zmq, "tcp://127.0.0.1:*") == 0, "bind");
        check(zmq_getsockopt(x->zmq, ZMQ_LAST_ENDPOINT, at, &n) == 0, "name");
        memcpy(x->s->am_address, at, sizeof at);
    }
    meet(x);
    if (x->which == ENC)
        check(zmq_connect(x->zmq, (char *)x->s->am_address) == 0, "connect");
    meet(x);
}

static void send_all(struct side *x)
{
    uint8_t *p = x->e->pools[POOL_ROWS].base;
    zmq_msg_t m;

    for (int i = 0; i < FRAMES; i++) {
        check(zmq_msg_init_data(&m, p + BULK_BYTES / FRAMES * (size_t)i,
                  BULK_BYTES / FRAMES, NULL, NULL) == 0,
            "message");
        check(zmq_msg_send(&m, x->zmq, i + 1 < FRAMES ? ZMQ_SNDMORE : 0) >= 0,
            "send");
    }
}

static void receive_all(struct side *x)
{
    zmq_msg_t m;

    zmq_msg_init(&m);
    for (size_t i = 0; i < FRAMES; i++) {
        check(zmq_msg_recv(&m, x->zmq, 0) == (int)(BULK_BYTES / FRAMES),
            "receive");
        memcpy(x->landing + BULK_BYTES / FRAMES * i, zmq_msg_data(&m),
            BULK_BYTES / FRAMES);
    }
    zmq_msg_close(&m);
}

void zmq_bulk(struct side *x)
{
    meet(x);
    if (x->which == ENC) {
        x->s->stamp = now_ns();
        send_all(x);
    } else {
        receive_all(x);
        note(x, S_ZMQ, now_ns() - x->s->stamp);
    }
    meet(x);
}

void zmq_end(struct side *x)
{
    zmq_close(x->zmq);
    zmq_ctx_term(x->zmq_ctx);
}
