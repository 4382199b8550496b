/* there.h - helpers for tests of the language side: messages of its engines,
 * and a room as the encoder at link 0 knows it. Cells have the tag cell +
 * 100. */
#ifndef MMX_TEST_THERE_H
#define MMX_TEST_THERE_H

#include "test/brain.h"

/* A room as the encoder knows it. */
struct there {
    uint64_t room, generation;
    struct data_cmd open; /* the last command to the shards */
};

struct local_msg request(uint64_t room, uint32_t cell, uint8_t mode);
/* Requests a room of a group; size: the number of rooms in the group. */
struct local_msg request_in(
    uint64_t room, uint32_t cell, uint64_t group, uint16_t size);
struct local_msg attach(uint64_t room, uint32_t cell, uint8_t rights);
struct local_msg release(uint32_t cell, uint32_t rows);
struct local_msg abort_of(uint32_t cell);
struct peer_msg about(const struct there *t, enum peer_type type);
struct peer_msg length(
    const struct there *t, uint32_t total, uint32_t max_rows, bool aux);
struct peer_msg state(const struct there *t, enum peer_type answers,
    uint32_t attempt, uint32_t granted);
struct peer_msg acked(const struct there *t);
struct peer_msg want(const struct there *t, uint32_t attempt, uint32_t granted,
    uint32_t committed);
/* Returns the HELLO of an encoder on this host, whose pools may be mapped. */
struct peer_msg near_hello(uint64_t token);
/* Opens a langd with engine 0 of session "s"; up: the encoder `enc` is up. */
struct rig *langd(const char *a, const char *b);
struct rig *langd_up(const char *a, const char *b);
/* TEST_LANGD(id, setting, setting): with none, one or two of them. */
#define TEST_LANGD(id, ...)                                                    \
    TEST_WITH(id, struct rig *l,                                               \
        brain_of(langd_up,                                                     \
            (const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL, NULL}))
/* Takes the attempt of the last command to the shards, if there was one. */
void told(struct rig *l, struct there *t);
/* Requests a room, and answers INIT as the encoder. */
struct there ask(struct rig *l, uint32_t conn, struct local_msg m);
struct there ask_room(struct rig *l, uint64_t room, uint32_t cell);
/* Requests rooms 1 to n, in cells 0 to n - 1. */
void ask_rooms(struct rig *l, struct there *t, uint32_t n);
/* Requests a member of group 9, in cell room - 1. */
struct there member(struct rig *l, uint64_t room, uint16_t size);
/* Has committed rows wait for a grant: sends LENGTH, then WANT. */
void wants(struct rig *l, struct there *t, uint32_t granted, uint32_t total);
/* Announces the total; then all rows are granted and land. */
void fill(struct rig *l, struct there *t, uint32_t total);
/* Does what fill() does; then the room of this cell must have succeeded. */
void fill_succeeds(
    struct rig *l, struct there *t, uint32_t total, uint32_t cell);
/* Connection 0 releases a room; then `blocks` blocks must be free. */
void frees(struct rig *l, uint32_t cell, uint32_t blocks);
/* Returns the number of blocks in an event's runs. */
uint32_t there_blocks(const struct local_event *e);

#endif
