/* host.c - for both hosts: connects, maps the pool, and says in words what is
 * wrong. At the start an error ends the program before a model is loaded, and
 * its text says how to mend it; later an error fails one request and the host
 * goes on. One thread. */
#include "host.h"

#include <getopt.h>
#include <mtmd-helper.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *host_name = "mmx-llama";

static void of_llama(enum ggml_log_level level, const char *text, void *all)
{
    if (all || level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

void host_quiet(void)
{
    llama_log_set(of_llama, getenv("MMX_LLAMA_LOG"));
    mtmd_helper_log_set(of_llama, getenv("MMX_LLAMA_LOG"));
}

const char *host_reason(struct host *h, int e)
{
    static char out[1024];
    char text[512] = "";
    int advice;
    const char *name = mmx_reason(e, NULL, &advice);

    (void)mmx_error_text(h->m, text, sizeof text);
    snprintf(out, sizeof out, "%s, advice %s%s%s", name,
        mmx_advice_name(advice), *text ? ": " : "", text);
    return out;
}

void host_open(struct host *h, int role, const char *socket, const char *pool)
{
    char why[512] = "";
    struct mmx_opt o = {.size = sizeof o,
        .role = role,
        .socket = socket,
        .engine = host_name,
        .timeout_ms = 5000,
        .why = why,
        .why_size = sizeof why};
    int e = mmx_open(&o, &h->m);

    if (e)
        host_die("no daemon: %s%s%s; try mmxctl doctor",
            mmx_reason(e, NULL, NULL), *why ? ": " : "", why);
    h->pool.size = sizeof h->pool;
    e = mmx_pool(h->m, pool, NULL, 5000, &h->pool);
    if (e)
        host_die("no pool: %s", host_reason(h, e));
    h->field = &h->pool.fields[0];
    if (h->pool.gpu != -1)
        host_die("pool %s is in GPU memory; llama.cpp takes rows from host "
                 "memory",
            h->pool.name);
    if (strcmp(h->field->dtype, "f32") && strcmp(h->field->dtype, "bf16"))
        host_die("pool %s has rows of %s; llama.cpp takes f32 or bf16",
            h->pool.name, h->field->dtype);
}

int host_up(struct host *h)
{
    return mmx_pool(h->m, h->pool.name, h->pool.layout, 5000, &h->pool);
}

void host_fits(const struct host *h, int width)
{
    if (width > 0 && (uint32_t)width == h->field->elements)
        return;
    host_die("rows of this model are %d wide, those of pool %s %u: set its "
             "layout to %s:%s:%d on both sides",
        width, h->pool.name, h->field->elements, h->field->name,
        h->field->dtype, width);
}

/* Steps the handle until stdin has a line, so that messages that the daemon was
 * too slow to take still go out. */
static void idle(struct host *h)
{
    struct pollfd p[] = {{STDIN_FILENO, POLLIN, 0}, {mmx_fd(h->m), POLLIN, 0}};
    struct mmx_event ev[16];

    do
        while (mmx_step(h->m, ev, 16) > 0)
            ;
    while (poll(p, 2, -1) < 0 || !p[0].revents);
}

bool host_serve(struct host *h, bool (*serve)(char *line))
{
    bool failed = false;
    char *line = NULL;
    size_t size = 0;
    ssize_t n;

    host_say("ready");
    /* idle() polls stdin, so stdio may buffer nothing */
    setvbuf(stdin, NULL, _IONBF, 0);
    while (idle(h), (n = getline(&line, &size, stdin)) > 0) {
        if (line[n - 1] == '\n')
            line[n - 1] = 0;
        if (*line && !serve(line))
            failed = true;
    }
    free(line);
    return failed;
}

static uint32_t number(const struct host_option *o, const char *text)
{
    char *end;
    long v = strtol(text, &end, 10);

    if (!*text || *end || v < 1 || v > o->max)
        host_die("--%s %s: a number from 1 to %ld", o->name, text, o->max);
    return (uint32_t)v;
}

void host_options(
    int argc, char **argv, const struct host_option *o, const char *usage)
{
    struct option known[16] = {{"help", 0, NULL, '?'}};
    int c;

    for (int i = 0; o[i].name; i++)
        known[i + 1] = (struct option){o[i].name, !o[i].flag, NULL, i};
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1 && c != '?')
        if (o[c].text)
            *o[c].text = optarg;
        else if (o[c].flag)
            *o[c].flag = true;
        else
            *o[c].number = number(&o[c], optarg);
    if (c == '?' || optind != argc) {
        fputs(usage, stderr);
        exit(2);
    }
}
