/* calls.h - the calls of engines that both daemons answer alike: HELLO, POOL,
 * and what a pool is to an engine. Pure; one thread. */
#ifndef MMX_CORE_CALLS_H
#define MMX_CORE_CALLS_H

#include "core/head.h"

void call_hello(
    struct brain *b, struct out *out, uint32_t conn, const struct local_msg *m);
void call_pool(
    struct brain *b, struct out *out, uint32_t conn, const struct local_msg *m);
/* POOL_INFO for pool i, with its descriptor. */
void call_say_pool(
    struct brain *b, struct out *out, uint32_t conn, uint32_t seq, uint32_t i);
/* Counts and answers a frame that could not be read. */
void call_bad(struct brain *b, struct out *out, const struct event *ev);
/* Answers the POOL calls that waited for memory, and tells the peers. */
void calls_pools_ready(struct brain *b, struct out *out);
bool calls_pools_waiting(const struct brain *b);
/* Pool i as this connection may use it, or the reason why not. */
MUST_CHECK enum err call_pool_check(
    const struct brain *b, uint32_t conn, uint32_t i, const char **text);

#endif
