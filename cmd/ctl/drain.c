/* drain.c - mmxctl drain and undrain: sends the order, and with --wait shows
 * the progress of the drain until no room is open. One thread. */
#include "ctl.h"

#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MS 250

/* What is left to drain, as reported by the daemon. */
struct left {
    char name[64], state[16], text[224];
    uint64_t rooms, bytes;
};

/* Returns the bytes in the blocks of open rooms: not of rooms that wait for
 * their readers or are kept for later. */
static uint64_t pool_bytes(struct reader row)
{
    uint64_t idle = rows_number(row, "free") + rows_number(row, "ready") +
                    rows_number(row, "kept") + rows_number(row, "quarantined");
    uint64_t blocks = rows_number(row, "blocks");

    return (blocks > idle ? blocks - idle : 0) *
           rows_number(row, "block_rows") * rows_number(row, "row_bytes");
}

/* Fills *l from the answer to QUERY health. */
static bool take(struct ctl *c, struct left *l)
{
    struct reader rows = c->got, row;

    if (!rows_next(&rows, &row))
        return false;
    rows_get(row, "name", l->name, sizeof(l->name));
    rows_get(row, "state", l->state, sizeof(l->state));
    rows_get(row, "text", l->text, sizeof(l->text));
    l->rooms = rows_number(row, "rooms_open");
    return true;
}

static bool look(struct ctl *c, struct left *l, struct local_msg *m)
{
    struct reader row;

    if (!ctl_ask(c, "pools", m))
        return false;
    for (l->bytes = 0; rows_next(&c->got, &row);)
        l->bytes += pool_bytes(row);
    return ctl_ask(c, "health", m) && take(c, l);
}

/* Prints what is left: on a terminal over the last line, otherwise on a new
 * line after each change. */
static void show(const struct left *l, char shown[256], const struct asked *a)
{
    bool live = isatty(STDOUT_FILENO);
    char text[256], bytes[SIZE_TEXT];

    size_text(l->bytes, bytes);
    snprintf(text, sizeof(text), "%s: %llu room%s left, %s in their blocks",
        l->name, (unsigned long long)l->rooms, l->rooms == 1 ? "" : "s", bytes);
    if (a->json || strcmp(text, shown) == 0)
        return;
    memcpy(shown, text, sizeof(text));
    printf(live ? "\r\033[K%s" : "%s\n", text);
    fflush(stdout);
}

/* Returns the exit status once no room is left, or a->wait_s have passed. */
static int wait_for(
    struct ctl *c, struct left *l, struct local_msg *m, const struct asked *a)
{
    const struct timespec rest = {.tv_nsec = LOOK_MS * 1000000L};
    uint64_t until = clock_ns() + a->wait_s * NS_PER_S;
    char shown[256] = "";

    while (look(c, l, m)) {
        bool over = l->rooms == 0 || strcmp(l->state, "draining") != 0;

        show(l, shown, a);
        if (!over && clock_ns() < until) {
            nanosleep(&rest, NULL);
            continue;
        }
        if (shown[0] && isatty(STDOUT_FILENO))
            putchar('\n');
        return over && l->rooms == 0 && l->state[0] == 'd' ? CTL_SHOWN
                                                           : CTL_REFUSED;
    }
    if (errno == EAGAIN)
        return ctl_failed(m);
    fputs("mmxctl: the daemon ended before its rooms\n", stderr);
    return CTL_NO_DAEMON;
}

static int finish(
    struct ctl *c, const struct left *l, int status, const struct asked *a)
{
    CHECK(a->waits || status == CTL_SHOWN, "%d without a wait", status);
    if (a->json)
        rows_json(c->got);
    else if (!a->waits || status == CTL_SHOWN)
        printf("%s: %s\n", l->name, l->text);
    else if (status == CTL_REFUSED)
        fprintf(stderr, "mmxctl: %s: %s after %llu s\n", l->name, l->text,
            (unsigned long long)a->wait_s);
    return fflush(stdout) == 0 ? status : CTL_REFUSED;
}

int drain(struct ctl *c, const char *order, const struct asked *a)
{
    struct local_msg m = {0};
    struct left l = {0};
    int status = CTL_SHOWN;

    if (!ctl_ask(c, order, &m) || !take(c, &l))
        return ctl_failed(&m);
    if (a->waits)
        status = wait_for(c, &l, &m, a);
    return status == CTL_NO_DAEMON ? status : finish(c, &l, status, a);
}
