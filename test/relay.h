/* relay.h - a man in the middle of one connection for rows: sockets of the
 * test, turned by the thread that turns the ends. */
#ifndef MMX_TEST_RELAY_H
#define MMX_TEST_RELAY_H

#include "io/data/tcp.h"
#include "test/side.h"

/* Bytes on their way from one end of the relay to the other. */
struct pipe {
    int from, to;
    uint8_t *heard; /* all of them so far */
    size_t len, sent;
};

/* A man in the middle of one connection. */
struct relay {
    int listener;
    struct tcp_place to;
    struct pipe up, down; /* up: to the listener of rows */
    size_t flip_at;       /* of `up`: this byte is changed; SIZE_MAX: none */
    size_t cut_at;        /* and nothing goes on from here */
    uint8_t address[TCP_ADDRESS_MAX];
    uint32_t address_len;
};

/* Opens a relay in front of `to`; its address differs in the port alone. */
void relay_open(struct relay *r, struct side *to);
/* Ends the connections on both sides. */
void relay_end(struct relay *r);
void relay_close(struct relay *r);
/* Returns a connection to where the rows go. */
int relay_onward(const struct relay *r);
/* Connects onward for a connection that has come. */
void relay_accept(struct relay *r);
/* Passes on what has come, either way. */
void relay_turn(struct relay *r);
/* Turns all until *count is `wanted`, or a's endpoint broke. */
void relay_until(struct relay *r, struct side *a, struct side *b,
    const uint32_t *count, uint32_t wanted);

#endif
