/* host.h - what the encode host and the language host do alike. */
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
    const struct mmx_field *field; /* that has the rows: the first */
};

/* The program's name, for what it prints. */
extern const char *host_name;

/* Prints "NAME: ..." on stderr; die also ends the program with status 1. The
 * format is a literal. */
#define host_say(...) host_say_(__VA_ARGS__, "")
#define host_say_(fmt, ...)                                                    \
    fprintf(stderr, "%s: " fmt "%s\n", host_name, __VA_ARGS__)
#define host_die(...) (host_say(__VA_ARGS__), exit(1))

/* Lets only errors of llama.cpp through; all of it with MMX_LLAMA_LOG set. */
void host_quiet(void);

/* Connects and maps the pool (NULL: the daemon's first), or dies. */
void host_open(struct host *h, int role, const char *socket, const char *pool);

/* Connects again if need be and maps the pool of a daemon that was started
 * again. False: it is away. */
bool host_up(struct host *h);

/* Dies unless the pool's rows are as wide as the model's. */
void host_fits(const struct host *h, int width);

/* Returns "reason, advice A: the daemon's text", static. */
const char *host_reason(struct host *h, int e);

/* Says "ready" and gives each line of stdin that is not empty to serve(). True
 * if it returned false for one of them. */
bool host_serve(struct host *h, bool (*serve)(char *line));

/* An option has one place for its value; one of a number, from 1 to max. */
struct host_option {
    const char *name;
    const char **text;
    bool *flag;
    uint32_t *number;
    long max;
};

/* Reads the options, up to one without a name; what is wrong ends the program,
 * with the number's limits or the usage. */
void host_options(
    int argc, char **argv, const struct host_option *o, const char *usage);

#endif
