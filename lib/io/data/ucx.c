/* ucx.c - see ucx.h. Everything that decides how UCX behaves is here.
 *
 * The environment must not decide what data_conf decides. Keys of UCX itself
 * are set by ucp_config_modify, which wins over the environment. Keys of its
 * transports cannot be set so: 1.13 has other names for them than newer
 * releases, and ignores a private prefix (both tried); so UCX_* of the
 * environment is overwritten, under a mutex, until the process exits.
 * Carriers are therefore opened while no other thread reads the environment;
 * shards start one after the other.
 *
 * Other UCX_* variables stay in force, for sites whose network cards need
 * them, and are named in the log. Three keys are read when the library loads,
 * before main: HANDLE_ERRORS, VFS_ENABLE and MEM_EVENTS belong in the unit
 * file; restarting the process to set them was rejected. */
#include "io/data/ucx.h"

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "wire/segment.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static pthread_mutex_t environment = PTHREAD_MUTEX_INITIALIZER;

static void look_at_environment(void)
{
    static const char *const loaded[] = {
        "UCX_HANDLE_ERRORS", "UCX_VFS_ENABLE", "UCX_MEM_EVENTS"};

    for (size_t i = 0; i < ARRAY_LEN(loaded); i++)
        if (!getenv(loaded[i]))
            log_debug("%s is not set, so UCX has its default; see the unit "
                      "file",
                loaded[i]);
    for (char **v = environ; v && *v; v++) {
        bool known = strncmp(*v, "UCX_", 4) != 0;

        for (size_t i = 0; i < ARRAY_LEN(loaded); i++)
            known |= strncmp(*v, loaded[i], strlen(loaded[i])) == 0;
        if (!known)
            log_info(
                "the environment sets %.*s for UCX", (int)strcspn(*v, "="), *v);
    }
}

static bool refused(const char *what, ucs_status_t s)
{
    if (s == UCS_OK)
        return false;
    log_error("ucx: %s: %s", what, ucs_status_string(s));
    return true;
}

static bool only_host(const char *tls)
{
    static const char *const names[] = {
        "tcp", "posix", "sysv", "self", "sm", "shm", "mm"};

    while (*tls) {
        size_t n = strcspn(tls, ",");
        bool known = n == 0;

        for (size_t i = 0; i < ARRAY_LEN(names); i++)
            known |= strlen(names[i]) == n && memcmp(tls, names[i], n) == 0;
        if (!known)
            return false;
        tls += n + (tls[n] == ',');
    }
    return true;
}

static bool set(ucp_config_t *config, const char *key, const char *value)
{
    ucs_status_t s = ucp_config_modify(config, key, value);

    if (s == UCS_OK)
        return true;
    log_error("ucx: cannot set %s to %s: %s", key, value, ucs_status_string(s));
    return false;
}

/* Sets a variable unless it has the value: a worker may be replaced while other
 * threads read the environment. */
static bool set_transport(const char *key, const char *value)
{
    const char *is = getenv(key);

    if (is && strcmp(is, value) == 0)
        return true;
    if (setenv(key, value, 1) == 0)
        return true;
    log_error("ucx: cannot set %s to %s", key, value);
    return false;
}

static bool configure_transports(const struct data_conf *c)
{
    bool mm = text_lists(c->tls, "sm") || text_lists(c->tls, "shm") ||
              text_lists(c->tls, "mm") || text_lists(c->tls, "all");
    bool ok = true;
    char segment[24];

    snprintf(segment, sizeof(segment), "%" PRIu32, c->segment_bytes);
    if (text_lists(c->tls, "tcp") || text_lists(c->tls, "all"))
        ok = set_transport("UCX_TCP_TX_SEG_SIZE", segment) &&
             set_transport("UCX_TCP_RX_SEG_SIZE", segment) &&
             set_transport(
                 "UCX_TCP_PORT_RANGE", c->ports && *c->ports ? c->ports : "0");
    /* Without these UCX silently drops shared memory for endpoints with error
     * handling. */
    if (mm || text_lists(c->tls, "posix"))
        ok = ok && set_transport("UCX_POSIX_ERROR_HANDLING", "y");
    if (mm || text_lists(c->tls, "sysv"))
        ok = ok && set_transport("UCX_SYSV_ERROR_HANDLING", "y");
    return ok;
}

/* True if this UCX ends the process by its newer protocols when a peer goes
 * during a zero-copy message or a rendezvous (assertion comp->count > 0, or a
 * segmentation fault, in 1.18; 1.22 does not). Its older ones survive that. */
static bool newer_protocols_end_us(void)
{
    unsigned major, minor, release;

    ucp_get_version(&major, &minor, &release);
    return major == 1 && minor < 22;
}

static bool configure(ucp_config_t *config, const struct data_conf *c)
{
    char keepalive[24], segment[24];

    snprintf(keepalive, sizeof(keepalive), "%" PRIu32 "ms", c->keepalive_ms);
    snprintf(segment, sizeof(segment), "%" PRIu32, c->segment_bytes);
    /* RNDV_THRESH: what fits a segment goes eager because post() says so; this
     * is for the transports whose choice is left to UCX. Left to UCX as a whole
     * it makes more rendezvous than a receiver has places to fetch. */
    return set(config, "TLS", c->tls) &&
           set(config, "NET_DEVICES", c->devices) &&
           set(config, "RNDV_SCHEME", "get_zcopy") &&
           set(config, "RNDV_THRESH", segment) &&
           (!newer_protocols_end_us() || set(config, "PROTO_ENABLE", "n")) &&
           set(config, "KEEPALIVE_INTERVAL", keepalive);
}

static enum err open_context(struct ucx *u, const struct data_conf *c)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .name = "mmx"};
    ucp_config_t *config;
    bool failed;

    if (refused(
            "reading its configuration", ucp_config_read(NULL, NULL, &config)))
        return ERR_INTERNAL;
    failed = !configure(config, c) ||
             refused("ucp_init", ucp_init(&params, config, &u->context));
    ucp_config_release(config);
    return failed ? ERR_INTERNAL : OK;
}

static enum err open_worker(
    struct ucx *u, ucp_am_recv_callback_t arrived, void *arg)
{
    /* One thread at a time, but not always the one that made it: the loop and
     * the shard's thread hand the work to each other. */
    ucp_worker_params_t params = {
        .field_mask =
            UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
        .flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK};
    ucp_am_handler_param_t handler = {
        .field_mask =
            UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
            UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = UCX_AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = arrived,
        .arg = arg};

    if (refused("ucp_worker_create",
            ucp_worker_create(u->context, &params, &u->worker)) ||
        refused("setting the message handler",
            ucp_worker_set_am_recv_handler(u->worker, &handler)) ||
        refused(
            "the worker's descriptor", ucp_worker_get_efd(u->worker, &u->fd)))
        return ERR_INTERNAL;
    return OK;
}

static enum err read_address(struct ucx *u)
{
    ucp_worker_attr_t attr = {
        .field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS |
                      UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    enum err e = OK;

    if (refused("ucp_worker_query", ucp_worker_query(u->worker, &attr)))
        return ERR_INTERNAL;
    if (attr.address_length < UCX_ADDRESS_MIN ||
        attr.address_length > UCX_ADDRESS_MAX ||
        attr.max_am_header < DATA_HEADER_MAX) {
        log_error("ucx: address of %zu bytes (%d to %d can be used), headers "
                  "of %zu bytes (%d needed)",
            attr.address_length, UCX_ADDRESS_MIN, UCX_ADDRESS_MAX,
            attr.max_am_header, DATA_HEADER_MAX);
        e = ERR_INTERNAL;
    } else {
        u->address_len = (uint32_t)attr.address_length;
        memcpy(u->address, attr.address, attr.address_length);
    }
    ucp_worker_release_address(u->worker, attr.address);
    return e;
}

enum err ucx_open(struct ucx *out, const struct data_conf *c,
    ucp_am_recv_callback_t arrived, void *arg)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct ucx u = *out;
    enum err e;

    CHECK(!u.worker && !u.context, "opened twice");
    u.fd = -1;
    u.host_only = only_host(c->tls);

    pthread_once(&once, look_at_environment);
    pthread_mutex_lock(&environment);
    e = configure_transports(c) ? open_context(&u, c) : ERR_INTERNAL;
    if (e == OK)
        e = open_worker(&u, arrived, arg);
    pthread_mutex_unlock(&environment);
    if (e == OK)
        e = read_address(&u);
    if (e == OK) {
        ucx_memory_open(&u);
        *out = u;
        return OK;
    }
    log_error("ucx: no worker with transports %s on devices %s, ports %s",
        c->tls, c->devices, c->ports && *c->ports ? c->ports : "any");
    ucx_close(&u);
    return e;
}

void ucx_close(struct ucx *u)
{
    if (u->worker)
        ucp_worker_destroy(u->worker);
    if (u->context) {
        ucx_memory_close(u);
        ucp_cleanup(u->context);
    }
    u->worker = NULL;
    u->context = NULL;
    u->fd = -1;
}

/* Appends name to the comma-separated out, unless it is there or does not
 * fit. */
static void add_name(char *out, size_t size, const char *name, size_t len)
{
    char word[64];
    size_t used = strlen(out);

    if (len == 0 || len >= sizeof(word))
        return;
    memcpy(word, name, len);
    word[len] = 0;
    if (!text_lists(out, word) && used + len + 2 <= size)
        snprintf(out + used, size - used, "%s%s", used ? "," : "", word);
}

/* Parses what UCX prints of the endpoint, its only source, a line per lane:
 *   #   lane[0]:  2:tcp/lo.0 md[1]  -> md[1]/tcp/sysdev[255] am am_bw#0 */
void ucx_transport(ucp_ep_h ep, char *out, size_t size)
{
    char *text = NULL, *line, *save = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    out[0] = 0;
    if (!f)
        return;
    ucp_ep_print_info(ep, f);
    if (fclose(f) != 0) {
        free(text);
        return;
    }
    for (line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        const char *name = strstr(line, "lane[");

        name = name ? strchr(name, ':') : NULL;
        name = name ? strchr(name + 1, ':') : NULL;
        if (name && strchr(name, '/'))
            add_name(out, size, name + 1, strcspn(name + 1, ". "));
    }
    free(text);
}
