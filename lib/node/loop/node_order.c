/* node_order.c - the orders that end rooms and rows. `mmxctl kill` ends the
 * rooms of an engine that hangs, or one room before its deadline; `mmxctl drop`
 * ends kept rows, as after the encoder's weights changed. Each returns how many
 * it ended. The loop's thread. */
#include "node/loop/node_in.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>

/* Steps the brain with the event; returns by how much the counter rose. */
static uint64_t ended(struct node *n, struct event *ev, enum counter s)
{
    uint64_t before = brain_counter(n->brain, s);

    node_event(n, ev);
    CHECK(brain_counter(n->brain, s) >= before, "counter %u fell", s);
    return brain_counter(n->brain, s) - before;
}

static void answer(
    struct node *n, struct query *q, const char *what, uint64_t count)
{
    struct rows_out *s = admin_rows(q);

    s->row(s);
    s->text(s, "name", n->conf->name);
    s->number(s, what, count);
    admin_answer(n, q);
}

/* A number alone means the room with that id if there is one, else the
 * process. */
void command_kill(struct node *n, struct query *q, const char *args)
{
    bool room = strncmp(args, "room ", 5) == 0;
    bool pid = strncmp(args, "pid ", 4) == 0;
    struct event ev = {.type = EV_KILL};
    uint64_t number, count = 0;

    if (room || pid)
        args = strchr(args, ' ') + 1;
    if (!text_number(span_str(args), UINT64_MAX, &number)) {
        admin_refuse(n, q, ERR_MALFORMED,
            "kill ROOM|PID, the number of one; room ROOM or pid PID says "
            "which");
        return;
    }
    ev.room = number;
    if (!pid)
        count = ended(n, &ev, STAT_killed);
    ev.pid = (int32_t)number;
    if (!room && count == 0 && number > 0 && number <= INT32_MAX)
        count = ended(n, &ev, STAT_killed);
    if (count > 0)
        answer(n, q, "rooms_ended", count);
    else
        admin_refuse(n, q, ERR_UNKNOWN_ROOM,
            "no open room, and no process with one, has that number");
}

/* Reads 64 hex digits. False: it is something else. */
static bool take_key(const char *text, struct key *key)
{
    if (strlen(text) != 2 * KEY_BYTES ||
        strspn(text, "0123456789abcdefABCDEF") != 2 * KEY_BYTES)
        return false;
    for (uint32_t i = 0; i < KEY_BYTES; i++) {
        unsigned byte;

        if (sscanf(text + 2 * (size_t)i, "%2x", &byte) != 1)
            return false;
        key->b[i] = (uint8_t)byte;
    }
    return true;
}

static uint32_t find_pool(const struct conf *c, const char *name)
{
    for (uint32_t i = 0; i < c->pools_count; i++)
        if (strcmp(c->pools[i].name, name) == 0)
            return i;
    return NONE;
}

void command_drop(struct node *n, struct query *q, const char *args)
{
    char first[65] = "", second[65] = "", more[2] = "";
    int words = sscanf(args, "%64s %64s %1s", first, second, more);
    struct event ev = {.type = EV_DROP, .pool = NONE};
    bool alone = words == 1 && find_pool(n->conf, first) == NONE;
    struct key key;

    if (conf_lands(n->conf)) {
        admin_refuse(n, q, ERR_MALFORMED, "rows are kept at mmx-encoded");
        return;
    }
    if (words > 0 && !alone)
        ev.pool = find_pool(n->conf, first);
    if (alone || words == 2)
        ev.key = take_key(alone ? first : second, &key) ? &key : NULL;
    if (words > 2 || ((alone || words == 2) && !ev.key) ||
        (words > 0 && !alone && ev.pool == NONE))
        admin_refuse(n, q, ERR_MALFORMED,
            "drop [POOL] [KEY], a pool's name and 64 hex digits");
    else
        answer(n, q, "rooms_dropped", ended(n, &ev, STAT_dropped));
}
