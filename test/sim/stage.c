/* stage.c - helpers of scenarios: a quiet world, daemons in few words, engines
 * that announce and request when they are told to. */
#include "test/sim/stage.h"

#include "base/check.h"

struct daemon *e0, *e1, *l0, *l1;

void quiet_world(uint32_t encodeds, uint32_t langds)
{
    W.is = (struct nature){.encodeds = encodeds,
        .langds = langds,
        .net_us = 200,
        .data_us = 300,
        .local_us = 50,
        .shard_us = 20};
    W.healing = true; /* engines behave */
}

struct daemon *make(uint8_t role, const char *name, const char *layout,
    uint32_t blocks, uint32_t block_rows, uint32_t first_blocks)
{
    struct conf *c = conf_make(role, name);
    char text[80];

    c->limit_rooms = 128;
    c->limit_attachments = 256;
    conf_give(c, "pools[0].name=main");
    snprintf(text, sizeof(text), "pools[0].layout=%s", layout);
    conf_give(c, text);
    c->pools[0].blocks = blocks;
    c->pools[0].block_rows = block_rows;
    c->pools[0].default_blocks = first_blocks;
    if (role == ROLE_ENCODED)
        snprintf(c->control_listen, sizeof(c->control_listen),
            "tcp://10.0.0.%s:7601", name + 1);
    for (uint32_t k = 0; role == ROLE_LANGD && k < W.is.encodeds; k++) {
        snprintf(text, sizeof(text), "peers[%u].name=e%u", k, k);
        conf_give(c, text);
        snprintf(
            text, sizeof(text), "peers[%u].address=tcp://10.0.0.%u:7601", k, k);
        conf_give(c, text);
    }
    return daemon_new(role, c, 1 + conf_lands(c));
}

void start_all(void)
{
    for (uint32_t i = 0; i < W.daemons_count; i++)
        daemon_start(W.daemons[i]);
}

void pair(uint32_t e_blocks, uint32_t l_blocks, uint32_t block_rows,
    uint32_t first_blocks)
{
    e0 = make(ROLE_ENCODED, "e0", ROW_4K, e_blocks, block_rows, 0);
    l0 = make(ROLE_LANGD, "l0", ROW_4K, l_blocks, block_rows, first_blocks);
    start_all();
}

void quiet_pair(uint32_t e_blocks, uint32_t l_blocks, uint32_t block_rows,
    uint32_t first_blocks)
{
    quiet_world(1, 1);
    pair(e_blocks, l_blocks, block_rows, first_blocks);
}

struct prod *announce(
    struct daemon *e, uint64_t room, uint32_t rows, uint64_t when_ms)
{
    struct prod *p = prod_new(e, room);

    p->total = p->max_rows = rows;
    p->session = (uint32_t)(room % 4);
    prod_start(p, when_ms * MS);
    return p;
}

struct cons *request(
    struct daemon *l, struct daemon *e, uint64_t room, uint64_t when_ms)
{
    struct cons *c = cons_new(l, e->index, room);

    c->session = (uint32_t)(room % 4);
    c->must_succeed = true;
    cons_start(c, when_ms * MS);
    return c;
}

/* Runs until all is over: all announces succeed, and nothing is left. */
void all_succeed(uint32_t rooms)
{
    uint64_t end = W.now_ns + LIMIT;

    while (!world_over() && W.now_ns < end)
        (void)run_until(W.now_ns + 20 * MS);
    HOLDS(W.succeeded == rooms && W.failed == 0, "the scenario's rooms succeed",
        "%u of %u, %u failed; encode%s, language%s", W.succeeded, rooms,
        W.failed, prods_left(), cons_left());
    world_finish(LIMIT);
}
