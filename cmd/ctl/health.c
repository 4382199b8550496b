/* health.c - mmxctl health: whether a daemon is alive, and whether rooms could
 * complete there, as an exit status and one line. A daemon is alive if its loop
 * answers within LIVE_S: only the loop serves the socket. A daemon that still
 * prepares its pools has no loop, and is not alive. One thread. */
#include "ctl.h"

#include "base/check.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LIVE_S   1
#define AGAIN_MS 200

struct health {
    const char *socket;
    bool live, ready;
    char name[64], role[16], state[16], text[288];
};

static void missed(struct health *h, const char *why)
{
    snprintf(h->state, sizeof(h->state), "not-live");
    snprintf(h->text, sizeof(h->text), "not live: %s", why);
}

/* Handles a refusal: the daemon is alive, and nothing more is known. */
static void refused(struct health *h, struct span text)
{
    int n = snprintf(h->text, sizeof(h->text), "live, but it refuses: ");

    h->live = true;
    snprintf(h->state, sizeof(h->state), "unknown");
    text_copy(text, h->text + n, sizeof(h->text) - (size_t)n);
}

static void ask(struct ctl *c, struct health *h)
{
    struct local_msg m = {0};
    struct reader row;
    char ready[8], live[8];

    if (ctl_hello(c, 1, &m) && m.type == LOCAL_WELCOME &&
        ctl_ask(c, "health", &m) && rows_next(&c->got, &row)) {
        rows_get(row, "name", h->name, sizeof(h->name));
        rows_get(row, "role", h->role, sizeof(h->role));
        rows_get(row, "live", live, sizeof(live));
        rows_get(row, "ready", ready, sizeof(ready));
        rows_get(row, "state", h->state, sizeof(h->state));
        rows_get(row, "text", h->text, sizeof(h->text));
        h->live = live[0] != '0';
        h->ready = ready[0] == '1';
        if (!h->live)
            missed(h, "a shard hangs");
    } else if (m.type == LOCAL_ANSWER) {
        refused(h, m.answer.text);
    } else if (m.type == LOCAL_REPORT && m.report.err) {
        refused(h, m.report.text);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        missed(h, "no answer within a second: it starts, or hangs");
    } else {
        missed(h, errno ? strerror(errno) : "it closed the connection");
    }
}

static void look(const char *path, struct health *h)
{
    struct ctl *c = ctl_open(path, LIVE_S);

    *h = (struct health){.socket = path};
    if (c) {
        ask(c, h);
        ctl_close(c);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        missed(h, "no connection within a second");
    } else {
        missed(h,
            errno == ECONNREFUSED ? "no daemon is listening" : strerror(errno));
    }
    CHECK(h->text[0] || h->live, "%s has no health", path);
}

/* Checks all daemons; returns the worst status. */
static int look_at_all(
    const char *const *paths, uint32_t count, bool live, struct health *all)
{
    int worst = CTL_SHOWN;

    for (uint32_t i = 0; i < count; i++) {
        int status;

        look(paths[i], &all[i]);
        status = !all[i].live           ? CTL_NO_DAEMON
                 : all[i].ready || live ? CTL_SHOWN
                                        : CTL_REFUSED;
        worst = status > worst ? status : worst;
    }
    return worst;
}

static void print_json(const struct health *all, uint32_t count)
{
    uint8_t bytes[2 * 4096];
    struct writer w = writer_of(bytes, sizeof(bytes));

    for (uint32_t i = 0; i < count; i++) {
        const struct health *h = &all[i];
        char path[256]; /* longer than any socket's path */

        snprintf(path, sizeof(path), "%s", h->socket);
        rows_put(&w);
        rows_put_text(&w, "socket", path);
        rows_put_text(&w, "name", h->name);
        rows_put_text(&w, "role", h->role);
        rows_put_number(&w, "live", h->live);
        rows_put_number(&w, "ready", h->ready);
        rows_put_text(&w, "state", h->state);
        rows_put_text(&w, "text", h->text);
    }
    CHECK(!w.failed, "the health of %u daemons does not fit", count);
    rows_json(reader_of(w.p, w.len));
}

static void print(const struct health *all, uint32_t count, bool json)
{
    if (json)
        print_json(all, count);
    for (uint32_t i = 0; i < count && !json; i++)
        printf("%s: %s\n", all[i].name[0] ? all[i].name : all[i].socket,
            all[i].text);
}

int health(const char *const *paths, uint32_t count, const struct asked *a)
{
    const struct timespec again = {.tv_nsec = AGAIN_MS * 1000000L};
    const struct timespec rest = {.tv_sec = (time_t)a->watch_s};
    uint64_t until = clock_ns() + a->wait_s * NS_PER_S;
    struct health all[2];
    int status;

    CHECK(count > 0 && count <= ARRAY_LEN(all), "%u daemons", count);
    while ((status = look_at_all(paths, count, a->live, all)) != CTL_SHOWN &&
           clock_ns() < until)
        nanosleep(&again, NULL);
    rows_again(a, "health");
    print(all, count, a->json);
    while (a->watch_s && fflush(stdout) == 0) {
        nanosleep(&rest, NULL);
        status = look_at_all(paths, count, a->live, all);
        rows_again(a, "health");
        print(all, count, a->json);
    }
    return fflush(stdout) == 0 ? status : CTL_REFUSED;
}
