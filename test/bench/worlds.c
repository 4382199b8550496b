/* worlds.c - which daemons a run is made of, and which cases belong to them.
 *
 * An engine has a handle to each of its daemons: pair i is handle i on both
 * sides unless a world says otherwise. Rejected: one world for all. Sixty
 * peers or a second shard cost something even when they are quiet. */
#include "test/bench/bench.h"

const char *const pool_names[POOLS] = {
    "rows", "small", "middle", "block", "open"};
const uint32_t pool_row_bytes[POOLS] = {
    ROW_BYTES, SMALL_BYTES, MIDDLE_BYTES, BLOCK_ROW_BYTES, 64};
const uint32_t pool_block_rows[POOLS] = {BLOCK_ROWS, 1, 1, BLOCK_ROWS, 1};

static const struct bench_case sent[] = {
    {"bulk", bulk_round, 0},
    {"latency", latency_round, 0},
    {"rate", rate_round, 0},
    {"middle", middle_round, 0},
    {"resume", resume_round, 0},
    {"overlap", overlap_round, 0},
    {"beside", beside_round, 0},
    {"open", open_round, 0},
    {"sizes", sizes_round, 0},
    {"poll", poll_round, 1},
    {"idle", idle_round, 1},
};
static const struct bench_case encrypted[] = {
    {"encrypted", encrypted_round, 0}};
static const struct bench_case copied[] = {
    {"same-host", copied_round, 0},
    {"block", block_copied_round, 0},
};
static const struct bench_case lent[] = {{"lent", lent_round, 0}};
static const struct bench_case spread[] = {{"spread", spread_round, 0}};
static const struct bench_case peers[] = {{"peers", peers_round, 0}};
static const struct bench_case ranks[] = {{"ranks", tp_round, 0}};
static const struct bench_case chosen[] = {{"carrier", chosen_round, 0}};
static const struct bench_case counts[] = {{"count", count_round, 1}};

const struct world worlds[] = {
    {"sent", 1, 1, 0, "off", false, false, sent, ARRAY_LEN(sent)},
    {"encrypted", 2, 2, 0, "off", false, false, encrypted,
        ARRAY_LEN(encrypted)},
    {"copied", 1, 1, 0, "copy", false, false, copied, ARRAY_LEN(copied)},
    {"lent", 1, 1, 0, "auto", false, false, lent, ARRAY_LEN(lent)},
    {"spread", 3, 19, 0, "off", false, false, spread, ARRAY_LEN(spread)},
    {"chosen", CHOICES, CHOICES, 0, "off", false, false, chosen,
        ARRAY_LEN(chosen)},
    {"peers", 2, 65, 0, "off", true, false, peers, ARRAY_LEN(peers)},
    {"ranks", 1, 1, RANKS - 1, "off", false, false, ranks, ARRAY_LEN(ranks)},
};
const size_t worlds_count = ARRAY_LEN(worlds);
const struct world counted = {
    "counted", 1, 1, 0, "off", true, true, counts, ARRAY_LEN(counts)};

bool world_wanted(const struct world *w)
{
    if (w->cases == encrypted && (opt.clear || opt.ucx))
        return false;
    for (size_t i = 0; i < w->cases_count; i++)
        if (wanted(w->cases[i].name))
            return true;
    return false;
}

/* Returns the shards of a pair, in worlds whose pairs differ: 1, 2 and 4. */
unsigned world_shards(const struct world *w, unsigned pair)
{
    return w->cases == spread && pair < SPREADS_SHARDS ? 1u << pair : 1;
}

unsigned world_encoder(const struct world *w, unsigned lang)
{
    if (w->cases == spread)
        return lang < SPREADS_SHARDS ? lang : 0;
    if (w->cases == chosen || w->cases == encrypted)
        return lang;
    return w->cases == peers && lang + 1 == w->langs ? 1 : 0;
}

void world_carrier(const struct world *w, int role, unsigned i, FILE *f)
{
    const char *tls = opt.ucx ? opt.ucx : "tcp";

    if (w->cases == encrypted && i == 0)
        fprintf(f, "  encrypt: on\n");
    if (w->cases != chosen && !opt.ucx)
        return;
    if (!opt.clear)
        /* without this there is no UCX */
        fprintf(f, "  trusted_network: true\n");
    if (opt.devices)
        fprintf(f, "  devices: \"%s\"\n", opt.devices);
    if (w->cases != chosen || i == BY_UCX)
        fprintf(f, "  carrier: ucx\n  tls: \"%s\"\n", tls);
    else if (i == BY_TCP || (i == BESIDE_UCX && role == LANG))
        fprintf(f, "  carrier: tcp\n");
    else if (opt.ucx || i == BESIDE_UCX) /* auto opens UCX if it is sound */
        fprintf(f, "  tls: \"%s\"\n", opt.ucx ? tls : "posix,tcp");
}

static uint32_t bulk_blocks(const struct world *w, int role, unsigned i)
{
    unsigned dst = i - SPREADS_SHARDS;

    if (w->small)
        return 0;
    if (w->cases == ranks)
        return TP_ROWS / BLOCK_ROWS;
    if (w->cases == lent) /* at most half of a pool is lent */
        return (BULK_ROWS + BLOCK_ROWS - 1) / BLOCK_ROWS *
               (role == ENC ? 2 : 1);
    if (w->cases == chosen)
        return SPREAD_ROWS / BLOCK_ROWS;
    if (w->cases != spread)
        return (BULK_ROWS + BLOCK_ROWS - 1) / BLOCK_ROWS;
    if (role == ENC || i < SPREADS_SHARDS)
        return SPREAD_ROWS / BLOCK_ROWS;
    return SPREAD_ROWS / BLOCK_ROWS / (dst < 4 ? 4u : 16u);
}

uint32_t world_blocks(const struct world *w, int role, unsigned i, int pool)
{
    if (pool == POOL_ROWS)
        return bulk_blocks(w, role, i);
    if (pool == POOL_SMALL)
        return 4 * IN_FLIGHT;
    if (pool == POOL_BLOCK)
        return w->cases == sent || w->cases == copied ? 8 : 0;
    if (w->cases != sent)
        return 0;
    return pool == POOL_MIDDLE ? 4 * IN_FLIGHT : OPEN_MAX;
}
