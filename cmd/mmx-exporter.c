/* mmx-exporter - serves the reports of the daemons of this host: /metrics for
 * Prometheus, /healthz for probes, / for people. A separate program, so that
 * the daemons speak no HTTP: it asks them over their sockets as mmxctl does.
 * One thread. */
#include "exporter/exporter.h"

#include "base/check.h"
#include "io/unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PORT = 9464, CONNECTIONS = 16, TIMEOUT_S = 10 };
enum { CANNOT_START = 1 };

static const char *const defaults[] = {CTL_ENCODED, CTL_LANGD};
static const char *const labels[] = {"encoded", "langd"};

enum { NAMES_MAX = 64 };

/* The options of the command line. */
struct served {
    const char *paths[ARRAY_LEN(defaults)]; /* NULL: not asked */
    const char *listen;
    struct sockaddr_storage at;
    const char *names[NAMES_MAX]; /* allowed in requests, besides addresses */
    uint32_t names_count;
    bool ids;
    struct daemon daemons[ARRAY_LEN(defaults)];
    uint32_t count;
};

static void usage(FILE *to)
{
    fputs(
        "usage: mmx-exporter [options]\n"
        "  --listen ADDRESS   serve there (default 127.0.0.1:9464)\n"
        "  --encoded PATH     ask only the daemons that are named, at their\n"
        "                     sockets; default: those in /run/mmx\n"
        "  --langd PATH       the same\n"
        "  --host NAME        serve requests for this name, too; may be\n"
        "                     repeated; else those for loopback and for the\n"
        "                     address that it listens at\n"
        "  --ids              show the ids of rooms on the page: who may\n"
        "                     read it may know them then, as far as the\n"
        "                     daemons tell them this user\n"
        "  --version          print the version and exit\n"
        "  --help             print this and exit\n"
        "It serves /metrics for Prometheus, / for people, and /healthz: 200\n"
        "if all that are asked are ready, else 503 and why. A daemon that is\n"
        "away, or has not greeted within 1 s and answered within 3 s more, is\n"
        "mmx_up 0, and the rest is served.\n"
        "exit status: 0 success, 1 cannot start, 64 bad command line\n",
        to);
}

/* Prints in one line whether rooms can complete. False: not at every daemon. */
static bool health_print(FILE *out, const struct daemon *d, uint32_t count)
{
    struct reader rows, row;
    char text[256];
    bool ready = true;

    for (uint32_t i = 0; i < count; i++) {
        bool good = false;

        rows = d[i].said[SAID_HEALTH];
        strcpy(text, "does not answer");
        if (rows_next(&rows, &row)) {
            rows_get(row, "text", text, sizeof(text));
            good = row_number(row, "ready") == 1;
        }
        fprintf(out, "%smmx-%s: %s", i > 0 ? "; " : "", d[i].label, text);
        ready &= good;
    }
    fputs("\n", out);
    return ready;
}

static const struct place {
    const char *url, *type;
    bool (*print)(FILE *out, const struct daemon *d, uint32_t count);
} places[] = {
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", metrics_print},
    {"/healthz", "text/plain; charset=utf-8", health_print},
    {"/", "text/html; charset=utf-8", page_print},
};

/* Returns the daemons to ask: of two, one whose socket this host has never had,
 * and whose unit is not enabled, is not its own, if the other one is. */
static struct daemon *of_this_host(struct served *s, uint32_t *count)
{
    struct daemon *d = s->daemons;

    for (uint32_t i = 0; i < s->count; i++)
        d[i].here |= access(d[i].path, F_OK) == 0 || unit_enabled(d[i].label);
    *count = s->count;
    if (s->count == 1 || d[0].here == d[1].here)
        return d;
    *count = 1;
    return d[0].here ? d : d + 1;
}

/* Returns the contents for a path, to be freed with free(); NULL: no memory. */
static char *made(
    struct served *s, const struct place *at, size_t *size, unsigned *status)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    uint32_t count;
    struct daemon *d = of_this_host(s, &count);

    if (!out)
        return NULL;
    daemons_ask(d, count);
    *status =
        at->print(out, d, count) ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
    for (uint32_t i = 0; i < count; i++)
        daemon_forget(&d[i]);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

static enum MHD_Result answer(struct MHD_Connection *c, unsigned status,
    char *text, size_t size, const char *type)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(
        size, text, text ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    enum MHD_Result queued;

    if (!r) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    /* The page has nothing from other servers, and no script. */
    MHD_add_response_header(r, "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'");
    queued = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return queued;
}

static enum MHD_Result refuse(struct MHD_Connection *c)
{
    static const char why[] = "not served for this name: mmx-exporter --host "
                              "NAME adds one\n";
    char *text = strdup(why);

    return text ? answer(c, MHD_HTTP_FORBIDDEN, text, sizeof(why) - 1,
                      "text/plain; charset=utf-8")
                : MHD_NO;
}

/* The library calls it twice per request: at its header, then when complete. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *c,
    const char *url, const char *method, const char *version,
    const char *upload, size_t *upload_size, void **context)
{
    static int begun;
    struct served *s = arg;
    const char *host =
        MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    const struct place *at = places;
    unsigned status;
    size_t size = 0;
    char *text;

    (void)version;
    (void)upload;
    if (!host_served(host, &s->at, s->names, s->names_count))
        return refuse(c);
    /* For HEAD the library omits the body. */
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 &&
        strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return answer(c, MHD_HTTP_METHOD_NOT_ALLOWED, NULL, 0, "text/plain");
    if (!*context || *upload_size) {
        *context = &begun;
        *upload_size = 0;
        return MHD_YES;
    }
    while (at < places + ARRAY_LEN(places) && strcmp(url, at->url) != 0)
        at++;
    if (at == places + ARRAY_LEN(places))
        return answer(c, MHD_HTTP_NOT_FOUND, NULL, 0, "text/plain");
    text = made(s, at, &size, &status);
    return text ? answer(c, status, text, size, at->type) : MHD_NO;
}

/* Reads host:port, an address in brackets if it has colons. */
static bool listen_at(const char *text, struct sockaddr_storage *at)
{
    struct sockaddr_in *four = (struct sockaddr_in *)at;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)at;
    const char *colon = strrchr(text, ':');
    char host[64] = "", *end;
    size_t len = colon ? (size_t)(colon - text) : 0;
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;

    if (port == 0 || port > UINT16_MAX || *end || len >= sizeof(host))
        return false;
    memcpy(host, text, len);
    if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        return true;
    }
    if (host[0] != '[' || host[len - 1] != ']')
        return false;
    host[len - 1] = 0;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons((uint16_t)port);
    return inet_pton(AF_INET6, host + 1, &six->sin6_addr) == 1;
}

/* Returns a socket that listens at the address; -1: errno. libmicrohttpd could
 * do this, but may change errno before it returns. */
static int socket_at(const struct sockaddr_storage *at)
{
    int fd = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, e;

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (at->ss_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    if (bind(fd, (const struct sockaddr *)at,
            at->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                      : sizeof(struct sockaddr_in)) == 0 &&
        listen(fd, CONNECTIONS) == 0)
        return fd;
    e = errno;
    close(fd);
    errno = e;
    return -1;
}

/* Serves until a signal comes. */
static void serve(struct MHD_Daemon *d, int ends)
{
    int requests = MHD_get_daemon_info(d, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    struct pollfd waits[] = {{ends, POLLIN, 0}, {requests, POLLIN, 0}};
    MHD_UNSIGNED_LONG_LONG ms;

    while (!waits[0].revents) {
        int wait_ms = MHD_get_timeout(d, &ms) == MHD_YES
                          ? (int)min_u64(ms, TIMEOUT_S * 1000)
                          : -1;

        if (poll(waits, ARRAY_LEN(waits), wait_ms) < 0 && errno != EINTR)
            return;
        MHD_run(d);
    }
}

static int start(struct served *s)
{
    unsigned flags = MHD_USE_EPOLL;
    struct MHD_Daemon *d;
    int fd, ends;

    if (!listen_at(s->listen, &s->at)) {
        fprintf(stderr,
            "mmx-exporter: --listen %s: expected an address and a port, "
            "127.0.0.1:%d or [::1]:%d\n",
            s->listen, PORT, PORT);
        return CTL_USAGE;
    }
    ends = ctl_ends();
    if (s->at.ss_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    fd = socket_at(&s->at);
    if (fd < 0 || ends < 0) {
        fprintf(stderr, "mmx-exporter: --listen %s: %s\n", s->listen,
            strerror(errno));
        return CANNOT_START;
    }
    d = MHD_start_daemon(flags, 0, NULL, NULL, on_request, s,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS / 2, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)TIMEOUT_S, MHD_OPTION_END);
    if (!d) {
        fputs("mmx-exporter: libmicrohttpd does not start\n", stderr);
        close(fd);
        return CANNOT_START;
    }
    fprintf(stderr, "mmx-exporter: http://%s/metrics\n", s->listen);
    serve(d, ends);
    MHD_stop_daemon(d);
    return 0;
}

/* Handles an option. False: too many names. */
static bool take(struct served *s, int option, const char *value)
{
    if (option == 0 || option == 1)
        s->paths[option] = value;
    else if (option == 'l')
        s->listen = value;
    else if (option == 'i')
        s->ids = true;
    else if (s->names_count < NAMES_MAX)
        s->names[s->names_count++] = value;
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"listen", required_argument, NULL, 'l'},
        {"encoded", required_argument, NULL, 0},
        {"langd", required_argument, NULL, 1},
        {"host", required_argument, NULL, 'H'}, {"ids", no_argument, NULL, 'i'},
        {"version", no_argument, NULL, 'v'}, {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    static struct served s = {.listen = "127.0.0.1:9464"};
    bool named;
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'v')
            return printf("mmx-exporter %s\n", MMX_VERSION) < 0;
        if (c == 'h')
            return usage(stdout), 0;
        if (c == '?' || !take(&s, c, optarg))
            return usage(stderr), CTL_USAGE;
    }
    if (optind != argc)
        return usage(stderr), CTL_USAGE;
    named = s.paths[0] || s.paths[1];
    if (!named)
        memcpy(s.paths, defaults, sizeof(defaults));
    for (uint32_t i = 0; i < ARRAY_LEN(defaults); i++)
        if (s.paths[i])
            s.daemons[s.count++] = (struct daemon){.label = labels[i],
                .path = s.paths[i],
                .ids = s.ids,
                .here = named};
    return start(&s);
}
