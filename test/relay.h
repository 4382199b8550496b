/* relay.h - a relay in the middle of one connection for rows. Its sockets
 * belong to the test; the thread that runs the ends runs the relay, too. */
#ifndef MMX_TEST_RELAY_H
#define MMX_TEST_RELAY_H

#include "io/data/tcp.h"
#include "test/side.h"

/* Bytes on their way from one end of the relay to the other. */
struct pipe {
    int from, to;
    uint8_t *heard; /* all bytes so far */
    size_t len, sent;
};

/* A relay in the middle of one connection. */
struct relay {
    int listener;
    struct tcp_place to;
    struct pipe up, down; /* up: towards the listener for rows */
    size_t flip_at;       /* changes this byte of `up`; SIZE_MAX: none */
    size_t cut_at;        /* passes no byte on from here */
    uint8_t address[TCP_ADDRESS_MAX];
    uint32_t address_len;
};

/* Opens a relay in front of `to`; its address differs in the port alone. */
void relay_open(struct relay *r, struct side *to);
/* Ends the connections on both sides. */
void relay_end(struct relay *r);
void relay_close(struct relay *r);
/* Returns a new connection to the listener for rows. */
int relay_onward(const struct relay *r);
/* Accepts a connection, and connects onward for it. */
void relay_accept(struct relay *r);
/* Passes on what has arrived, in both directions. */
void relay_turn(struct relay *r);
/* Runs the relay and both sides until *count is `wanted`, or a's endpoint
 * breaks. */
void relay_until(struct relay *r, struct side *a, struct side *b,
    const uint32_t *count, uint32_t wanted);

#endif
