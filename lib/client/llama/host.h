/* host.h - the common part of the encode host and the language host. */
#ifndef MMX_LLAMA_HOST_H
#define MMX_LLAMA_HOST_H

#include <llama.h>
#include <mmx.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct host {
    mmx *m;
    struct mmx_pool pool;
    const struct mmx_field *field; /* the field with the rows: the first */
};

/* The program's name in messages. */
extern const char *host_name;

/* Prints "NAME: ..." on stderr; die also ends the program with status 1. The
 * format is a literal. */
#define host_say(...) host_say_(__VA_ARGS__, "")
#define host_say_(fmt, ...)                                                    \
    fprintf(stderr, "%s: " fmt "%s\n", host_name, __VA_ARGS__)
#define host_die(...) (host_say(__VA_ARGS__), exit(1))

/* Shows only errors of llama.cpp; with MMX_LLAMA_LOG set, its whole log. */
void host_quiet(void);

/* Connects and maps the pool (NULL: the daemon's first), or dies. */
void host_open(struct host *h, int role, const char *socket, const char *pool);

/* Maps the pool again if its daemon was restarted, or the connection to it was
 * lost. Returns 0 or why not. */
int host_up(struct host *h);

/* Dies unless the pool's rows are as wide as the model's. */
void host_fits(const struct host *h, int width);

/* Returns "reason, advice A: the daemon's text", static. */
const char *host_reason(struct host *h, int e);

/* Prints "ready" and passes each non-empty line of stdin to serve(). True if
 * serve() returned false for a line. */
bool host_serve(struct host *h, bool (*serve)(char *line));

/* An option stores its value in one of the three places. A number is 1 to
 * max. */
struct host_option {
    const char *name;
    const char **text;
    bool *flag;
    uint32_t *number;
    long max;
};

/* Reads the options; the list ends with one without a name. A wrong option ends
 * the program with the number's limits or the usage. */
void host_options(
    int argc, char **argv, const struct host_option *o, const char *usage);

#endif
