/* stage.h - worlds with one exact course: see stage.c. */
#ifndef MMX_SIM_STAGE_H
#define MMX_SIM_STAGE_H

#include "test/sim/sim.h"

#define ROW_4K "a:u8:4096"
#define LIMIT  (600 * NS_PER_S)

extern struct daemon *e0, *e1, *l0, *l1;

/* Makes a world in which no message is lost or late, and engines behave. */
void quiet_world(uint32_t encodeds, uint32_t langds);
/* Makes a daemon with one pool. Encoded comes first; names are e0, e1, l0,
 * l1. */
struct daemon *make(uint8_t role, const char *name, const char *layout,
    uint32_t blocks, uint32_t block_rows, uint32_t first_blocks);
void start_all(void);
/* Makes and starts e0 and l0, each with one pool of e_blocks or l_blocks
 * blocks. */
void pair(uint32_t e_blocks, uint32_t l_blocks, uint32_t block_rows,
    uint32_t first_blocks);
/* Does the same in a new quiet world. */
void quiet_pair(uint32_t e_blocks, uint32_t l_blocks, uint32_t block_rows,
    uint32_t first_blocks);
struct prod *announce(
    struct daemon *e, uint64_t room, uint32_t rows, uint64_t when_ms);
/* Requests a room that must succeed. */
struct cons *request(
    struct daemon *l, struct daemon *e, uint64_t room, uint64_t when_ms);
/* Runs until all is over: `rooms` rooms succeed, none fails, nothing is
 * left. */
void all_succeed(uint32_t rooms);

#endif
