/* ucx_context.c - see ucx.h. Every setting of UCX is made here.
 *
 * data_conf must decide, not the environment. ucp_config_modify sets UCX's own
 * keys and overrides the environment. It cannot set keys of transports: 1.13
 * has other names for them than newer releases, and ignores a private prefix
 * (both tried). So UCX_* variables in the environment are overwritten, under a
 * mutex, until the process exits. Therefore carriers are opened while no other
 * thread reads the environment; shards start one after the other.
 *
 * Other UCX_* variables stay in force, for sites whose network cards need them,
 * and are named in the log. Some are read when the library loads, before main:
 * HANDLE_ERRORS, VFS_ENABLE, MEM_EVENTS and MEM_MMAP_HOOK_MODE belong in the
 * unit file. Rejected: restarting the process to set them.
 *
 * Workers with the same configuration share a context, so that memory is
 * registered once per process. If UCX was built without support for threads,
 * each worker has its own context. */
#include "io/data/ucx.h"

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

extern char **environ;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ucx_context *shared; /* under the mutex */

void ucx_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void ucx_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

/* environment */

static void look_at_environment(void)
{
    static const char *const loaded[] = {"UCX_HANDLE_ERRORS", "UCX_VFS_ENABLE",
        "UCX_MEM_EVENTS", "UCX_MEM_MMAP_HOOK_MODE"};

    for (char **v = environ; v && *v; v++) {
        bool known = strncmp(*v, "UCX_", 4) != 0;

        for (size_t i = 0; i < ARRAY_LEN(loaded); i++)
            known |= strncmp(*v, loaded[i], strlen(loaded[i])) == 0;
        if (!known)
            log_info(
                "the environment sets %.*s for UCX", (int)strcspn(*v, "="), *v);
    }
}

/* Sets a variable unless it has the value already: a worker may be replaced
 * while other threads read the environment. */
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

static bool older_than(unsigned minor)
{
    unsigned is[3];

    ucp_get_version(&is[0], &is[1], &is[2]);
    return is[0] == 1 && is[1] < minor;
}

static bool configure_transports(const struct data_conf *c)
{
    bool mm = text_lists(c->tls, "sm") || text_lists(c->tls, "shm") ||
              text_lists(c->tls, "mm") || text_lists(c->tls, "posix") ||
              text_lists(c->tls, "all");
    bool ok = true;
    char segment[24];

    snprintf(segment, sizeof(segment), "%" PRIu32, c->segment_bytes);
    if (text_lists(c->tls, "tcp") || text_lists(c->tls, "all"))
        ok = set_transport("UCX_TCP_TX_SEG_SIZE", segment) &&
             set_transport("UCX_TCP_RX_SEG_SIZE", segment) &&
             set_transport("UCX_TCP_CONN_NB", "y") &&
             set_transport(
                 "UCX_TCP_PORT_RANGE", c->ports && *c->ports ? c->ports : "0");
    /* Without this UCX silently drops shared memory for endpoints with error
     * handling. */
    if (mm)
        ok = ok && set_transport("UCX_POSIX_ERROR_HANDLING", "y");
    /* Before 1.19 UCX takes the address family of a UD packet from what only
     * NVIDIA's cards say; on others it drops those of RoCE v2 over IPv4. */
    if (older_than(19))
        ok = ok && set_transport("UCX_UD_VERBS_ETH_DGID_CHECK", "n");
    return ok;
}

/* Writes the transports without segments of System V: their mode is 0660
 * whatever the umask, so the daemon's group could access them. The files of
 * posix have no name and belong to the user alone. If other processes cannot
 * attach to this one, leaves out transports that need that. */
static void without_sysv(const char *tls, char *out, size_t size)
{
    /* A process that is not dumpable cannot be attached to. */
    const char *shut =
        prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1 ? "" : ",posix,cma";
    size_t used = 0;

    out[0] = 0;
    if (tls[0] == '^') {
        snprintf(out, size, "%s,sysv%s", tls, shut);
        return;
    }
    if (text_lists(tls, "all")) {
        snprintf(out, size, "^sysv%s", shut);
        return;
    }
    while (*tls) {
        struct span word = span_of(tls, strcspn(tls, ","));
        bool mm = span_eq(word, span_str("mm"));

        tls += word.len + (tls[word.len] == ',');
        if (span_eq(word, span_str("sm")) || span_eq(word, span_str("shm")))
            word = span_str("posix,cma");
        else if (mm || span_eq(word, span_str("sysv")))
            word = span_str("posix");
        CHECK(used + word.len + 2 < size, "%zu bytes of transports", used);
        used += (size_t)snprintf(out + used, size - used, "%s%.*s",
            used ? "," : "", (int)word.len, (const char *)word.p);
    }
}

/* contexts */

/* True if the newer protocols of this UCX end the process when a peer goes
 * during a zero-copy message or a rendezvous (assertion comp->count > 0, or a
 * segmentation fault, in 1.18; not in 1.22). The older protocols survive that.
 * A site that sets UCX_PROTO_ENABLE decides for itself. */
static bool newer_protocols_end_us(void)
{
    return older_than(22) && !getenv("UCX_PROTO_ENABLE");
}

static bool set(ucp_config_t *config, const char *key, const char *value)
{
    ucs_status_t s = ucp_config_modify(config, key, value);

    if (s == UCS_OK)
        return true;
    log_error("ucx: cannot set %s to %s: %s", key, value, ucs_status_string(s));
    return false;
}

/* RNDV_THRESH applies only to messages that data_ucx.c leaves to UCX; it
 * chooses itself for nearly all whether they are eager. */
static bool configure(
    ucp_config_t *config, const struct data_conf *c, bool cached)
{
    char keepalive[24], segment[24], tls[1024];

    without_sysv(c->tls, tls, sizeof(tls));
    snprintf(keepalive, sizeof(keepalive), "%" PRIu32 "ms", c->keepalive_ms);
    snprintf(segment, sizeof(segment), "%" PRIu32, c->segment_bytes);
    return set(config, "TLS", tls) && set(config, "NET_DEVICES", c->devices) &&
           set(config, "RNDV_SCHEME", "get_zcopy") &&
           set(config, "RNDV_THRESH", segment) &&
           set(config, "RCACHE_ENABLE", cached ? "y" : "n") &&
           (!newer_protocols_end_us() || set(config, "PROTO_ENABLE", "n")) &&
           set(config, "KEEPALIVE_INTERVAL", keepalive);
}

static bool init(ucp_context_h *out, const struct data_conf *c, bool cached)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES |
                                         UCP_PARAM_FIELD_NAME |
                                         UCP_PARAM_FIELD_MT_WORKERS_SHARED,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .mt_workers_shared = 1,
        .name = "mmx"};
    ucs_status_t s = UCS_ERR_NO_MEMORY;
    ucp_config_t *config;

    if (ucp_config_read(NULL, NULL, &config) != UCS_OK)
        return false;
    if (configure(config, c, cached))
        s = ucp_init(&params, config, out);
    ucp_config_release(config);
    if (s != UCS_OK && !cached)
        log_error("ucx: ucp_init: %s", ucs_status_string(s));
    return s == UCS_OK;
}

bool ucx_cache_works(void)
{
    const struct data_conf c = {.tls = "self",
        .devices = "all",
        .segment_bytes = 8192,
        .keepalive_ms = 1000};
    ucp_context_h h;
    bool works;

    ucx_lock();
    works = init(&h, &c, true);
    if (works)
        ucp_cleanup(h);
    ucx_unlock();
    return works;
}

/* Opens the context, with a registration cache if rows are not copied. */
static bool open_context(struct ucx_context *x, const struct data_conf *c)
{
    x->copies = !ucx_reaches(c->tls);
    x->cached = !x->copies && init(&x->h, c, true);
    if (x->cached)
        return true;
    if (!init(&x->h, c, false))
        return false;
    if (!x->copies)
        log_warn("ucx: no registration cache: rows are copied; see "
                 "UCX_MEM_EVENTS and MemoryDenyWriteExecute of the unit");
    return true;
}

/* True if workers of several threads may use the context. */
static bool shareable(const struct ucx_context *x)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_THREAD_MODE};

    return ucp_context_query(x->h, &attr) == UCS_OK &&
           attr.thread_mode == UCS_THREAD_MODE_MULTI;
}

/* Call with the mutex held. */
static struct ucx_context *context_new(const struct data_conf *c, char *text)
{
    struct ucx_context *x = calloc(1, sizeof(*x));

    if (!x || !open_context(x, c)) {
        free(x);
        return NULL;
    }
    x->text = text;
    if (shareable(x)) {
        x->next = shared;
        shared = x;
    }
    return x;
}

struct ucx_context *ucx_context_take(const struct data_conf *c)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *ports = c->ports && *c->ports ? c->ports : "any";
    struct ucx_context *x = NULL;
    char *text;

    if (asprintf(&text, "transports %s on devices %s, ports %s, %u, %u", c->tls,
            c->devices, ports, c->segment_bytes, c->keepalive_ms) < 0)
        return NULL;
    pthread_once(&once, look_at_environment);
    ucx_lock();
    if (configure_transports(c)) {
        for (x = shared; x && strcmp(x->text, text) != 0;)
            x = x->next;
        x = x ? x : context_new(c, text);
    }
    if (x)
        x->users++;
    else
        log_error("ucx: no context with %s", text);
    ucx_unlock();
    if (!x || x->text != text)
        free(text);
    return x;
}

void ucx_context_give(struct ucx_context **at)
{
    struct ucx_context *x = *at;
    bool last;

    if (!x)
        return;
    *at = NULL;
    ucx_lock();
    CHECK(x->users > 0, "a context without users is given back");
    last = --x->users == 0;
    for (struct ucx_context **p = &shared; last && *p; p = &(*p)->next)
        if (*p == x) {
            *p = x->next;
            break;
        }
    if (last)
        ucp_cleanup(x->h);
    ucx_unlock();
    if (!last)
        return;
    free(x->text);
    free(x);
}
