/* ucx.c - see ucx.h: a worker, its address, and the transports of endpoints. */
#include "io/data/ucx.h"

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "wire/segment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool refused(const char *what, ucs_status_t s)
{
    if (s == UCS_OK)
        return false;
    log_error("ucx: %s: %s", what, ucs_status_string(s));
    return true;
}

static enum err open_worker(
    struct ucx *u, ucp_am_recv_callback_t arrived, void *arg)
{
    /* One thread at a time, its owner's. */
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
            ucp_worker_create(u->context->h, &params, &u->worker)) ||
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
    free(u->address);
    u->address = malloc(attr.address_length);
    if (!u->address || attr.address_length < UCX_ADDRESS_MIN ||
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
    struct ucx u = *out;
    enum err e;

    CHECK(!u.worker, "opened twice");
    u.fd = -1;
    if (!u.context)
        u.context = ucx_context_take(c);
    if (!u.context)
        return ERR_INTERNAL;
    ucx_lock(); /* UCX reads the environment */
    e = open_worker(&u, arrived, arg);
    ucx_unlock();
    if (e == OK)
        e = read_address(&u);
    *out = u;
    if (e == OK)
        return OK;
    log_error("ucx: no worker with transports %s on devices %s, ports %s",
        c->tls, c->devices, c->ports && *c->ports ? c->ports : "any");
    ucx_worker_close(out);
    return e;
}

void ucx_worker_close(struct ucx *u)
{
    if (u->worker)
        ucp_worker_destroy(u->worker);
    u->worker = NULL;
    u->fd = -1;
}

void ucx_close(struct ucx *u)
{
    ucx_worker_close(u);
    ucx_memory_drop(u);
    ucx_context_give(&u->context);
    free(u->address);
    u->address = NULL;
    u->address_len = 0;
}

/* True if the transport named at p (n bytes) copies through host memory. */
static bool copying(const char *p, size_t n)
{
    static const char *const names[] = {"tcp", "posix", "sysv", "self", "mm"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strlen(names[i]) == n && memcmp(p, names[i], n) == 0)
            return true;
    return n == 0;
}

bool ucx_reaches(const char *list)
{
    while (*list) {
        if (!copying(list, strcspn(list, "/,")))
            return true;
        list += strcspn(list, ",");
        list += *list == ',';
    }
    return false;
}

void ucx_add_word(char *out, size_t size, const char *word)
{
    size_t used = strlen(out);

    if (!text_lists(out, word) && used + strlen(word) + 2 <= size)
        snprintf(out + used, size - used, "%s%s", used ? "," : "", word);
}

/* Parses UCX's printed description of the endpoint, the only source; a line per
 * lane:
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
        char *name = strstr(line, "lane[");

        name = name ? strchr(name, ':') : NULL;
        name = name ? strchr(name + 1, ':') : NULL;
        if (!name || !strchr(name, '/'))
            continue;
        name[1 + strcspn(name + 1, ". ")] = 0;
        if (name[1])
            ucx_add_word(out, size, name + 1);
    }
    free(text);
}
