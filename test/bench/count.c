/* count.c - instructions per small room, by valgrind's callgrind: the only
 * figure that does not depend on the machine. There are two runs, with one
 * thousand and three thousand rooms; their difference is without what both have
 * (start, HELLO, end). Without valgrind there is no figure. Runs in the parent
 * only. */
#include "test/bench/bench.h"

static uint64_t total_of(int role)
{
    char path[128], line[256];
    uint64_t n = 0;
    FILE *f;

    snprintf(path, sizeof path, "%s/counts-%d", opt.dir, role);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "totals: ", 8) == 0 ||
            strncmp(line, "summary: ", 9) == 0)
            n = strtoull(strchr(line, ' '), NULL, 10);
    if (f)
        fclose(f);
    return n;
}

bool count_instructions(struct shared *s)
{
    uint64_t before[SIDES];

    counted_rooms = COUNTED_ROOMS;
    if (!world_run(&counted, s))
        return false;
    for (int i = 0; i < SIDES; i++)
        before[i] = total_of(i);
    counted_rooms = 3 * COUNTED_ROOMS;
    if (!world_run(&counted, s))
        return false;
    for (int i = 0; i < SIDES; i++)
        s->instructions[i] = (total_of(i) - before[i]) / (2 * COUNTED_ROOMS);
    return true;
}
