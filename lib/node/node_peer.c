/* node_peer.c - `mmxctl peer`: encoders that come and go while langd runs. What
 * is added is a peer as one of the file is, until it is removed, or a restart;
 * a reload keeps it unless the file has its name or address. What is removed
 * comes back with a reload of a file that has it. The loop's thread.
 *
 * Rejected: writing the file. It belongs to who manages the host. */
#include "node/node_impl.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

#define WORDS 3

/* The words of a command, cut out of its arguments. */
struct words {
    char text[260];
    const char *word[WORDS]; /* NULL: there are fewer */
    bool more;               /* than can be */
};

static void cut(struct words *w, const char *args)
{
    char *at = w->text, *save = NULL, *word;
    uint32_t n = 0;

    snprintf(w->text, sizeof(w->text), "%s", args);
    for (word = strtok_r(at, " ", &save); word;
         word = strtok_r(NULL, " ", &save))
        if (n < WORDS)
            w->word[n++] = word;
        else
            w->more = true;
    CHECK(n <= WORDS, "%u words", n);
}

/* Returns the peer's place in the configuration; NONE: there is none. */
static uint32_t find(const struct conf *c, const char *name)
{
    for (uint32_t i = 0; i < c->peers_count; i++)
        if (strcmp(c->peers[i].name, name) == 0 ||
            strcmp(c->peers[i].address, name) == 0)
            return i;
    return NONE;
}

/* Makes a name of an address: 10.0.0.7-7601. */
static void name_of(const char *address, char *out, size_t size)
{
    const char *from = strstr(address, "//");

    snprintf(out, size, "%.63s", from ? from + 2 : address);
    for (char *p = out; *p; p++)
        if (*p == ':' || *p == '[' || *p == ']' || *p == '%')
            *p = '-';
}

static enum err add(struct conf *c, const struct words *w, struct conf_error *e)
{
    uint32_t i = c->peers_count;
    char name[64], path[32];
    enum err r;

    if (w->word[2])
        snprintf(name, sizeof(name), "%s", w->word[2]);
    else
        name_of(w->word[1], name, sizeof(name));
    snprintf(path, sizeof(path), "peers[%u].name", i);
    r = conf_set(c, path, span_str(w->word[2] ? w->word[2] : name), e);
    snprintf(path, sizeof(path), "peers[%u].address", i);
    if (r == OK)
        r = conf_set(c, path, span_str(w->word[1]), e);
    if (r == OK)
        r = conf_finish(c, "", e);
    if (r == OK)
        c->peers[i].at_run_time = true;
    return r;
}

static enum err take_out(
    struct conf *c, const struct words *w, struct conf_error *e)
{
    uint32_t i = find(c, w->word[1]);

    if (i == NONE) {
        snprintf(e->text, sizeof(e->text), "no peer `%.128s`", w->word[1]);
        return ERR_MALFORMED;
    }
    CHECK(i < c->peers_count, "peer %u of %u", i, c->peers_count);
    memmove(&c->peers[i], &c->peers[i + 1],
        (c->peers_count - i - 1) * sizeof(c->peers[0]));
    c->peers_count--;
    return OK;
}

/* Says what the peer was before, and is now. */
static void say(struct rows_out *s, const struct conf_peer *p, const char *what)
{
    s->row(s);
    s->text(s, "name", p->name);
    s->text(s, "address", p->address);
    s->text(s, "result", what);
}

static const char usage[] =
    "peer add ADDRESS [NAME], or peer remove ADDRESS|NAME [now]";

/* Changes *next, a copy of what is in force. */
static enum err change(struct node *n, struct query *q, const struct words *w,
    struct conf *next, struct conf_error *e)
{
    bool adds = strcmp(w->word[0], "add") == 0;
    bool now = w->word[2] && !adds;
    enum err r;

    memcpy(next, n->conf, sizeof(*next));
    if (adds) {
        r = add(next, w, e);
        if (r == OK)
            say(admin_rows(q), &next->peers[next->peers_count - 1],
                "added, until it is removed or a restart");
    } else {
        uint32_t i = find(n->conf, w->word[1]);

        r = take_out(next, w, e);
        if (r == OK)
            say(admin_rows(q), &n->conf->peers[i],
                now ? "removed, its rooms fail"
                    : "removed, its rooms complete");
    }
    if (r == OK)
        node_conf_take(n, next, now ? w->word[1] : NULL);
    return r;
}

void command_peer(struct node *n, struct query *q, const char *args)
{
    struct conf_error e = {.text = "no memory"};
    struct words w = {0};
    struct conf *next;
    enum err r;

    cut(&w, args);
    if (!conf_lands(n->conf)) {
        admin_refuse(n, q, ERR_MALFORMED, "peers are named at langd");
        return;
    }
    if (!w.word[1] || w.more ||
        (strcmp(w.word[0], "add") != 0 &&
            (strcmp(w.word[0], "remove") != 0 ||
                (w.word[2] && strcmp(w.word[2], "now") != 0)))) {
        admin_refuse(n, q, ERR_MALFORMED, usage);
        return;
    }
    next = malloc(sizeof(*next));
    r = next ? change(n, q, &w, next, &e) : ERR_NO_BLOCKS;
    free(next);
    if (r == OK)
        admin_answer(n, q);
    else
        admin_refuse(n, q, r, e.text);
}
