/* ucx_probe.c - whether UCX here is better than plain TCP, and works:
 * transfer.carrier: auto must know this before a worker is opened.
 *
 * It asks UCX's own list of transports (uct), so that a card without its module
 * or driver does not count. Rejected: /sys/class/infiniband, which lists cards
 * but not what UCX can do with them. The thread that starts the shards. */
#include "io/data/ucx.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uct/api/uct.h>

/* A search, and its result: a usable one of these transports, or a device of
 * this name. */
struct search {
    const char *tls;
    bool named; /* the config names transports: each of them counts */
    struct ucx_offer *offer;
    struct span device;
    bool found;
};

/* True if `name`, "rc_mlx5", is one of the words of UCX_TLS: itself, its
 * family "rc", or "all". */
static bool wanted(const char *tls, const char *name)
{
    char family[32];

    snprintf(family, sizeof(family), "%.*s", (int)strcspn(name, "_"), name);
    return text_lists(tls, "all") || text_lists(tls, name) ||
           text_lists(tls, family) ||
           (text_lists(tls, "sm") &&
               (strcmp(family, "posix") == 0 || strcmp(family, "sysv") == 0));
}

/* Counts a transport that is better for rows than a TCP socket: those of
 * network cards other than TCP, and all that the configuration names. */
static void look_at(
    const struct search *s, const uct_tl_resource_desc_t *resource)
{
    bool net = resource->dev_type == UCT_DEVICE_TYPE_NET;
    bool shared = resource->dev_type == UCT_DEVICE_TYPE_SHM;

    if (strcmp(resource->tl_name, "tcp") == 0 ||
        !(net || (s->named && shared)) ||
        (s->named && !wanted(s->tls, resource->tl_name)))
        return;
    if (net)
        ucx_add_word(
            s->offer->devices, sizeof(s->offer->devices), resource->dev_name);
    ucx_add_word(
        s->offer->transports, sizeof(s->offer->transports), resource->tl_name);
}

/* Finds the device; its ports are "mlx5_0:1". */
static void look_for_device(
    struct search *s, const uct_tl_resource_desc_t *resource)
{
    const char *name = resource->dev_name;
    uint32_t n = s->device.len;

    s->found |= resource->dev_type == UCT_DEVICE_TYPE_NET &&
                strncmp(name, (const char *)s->device.p, n) == 0 &&
                (!name[n] || name[n] == ':');
}

static void look_into_domain(
    struct search *s, uct_component_h component, const char *name)
{
    uct_tl_resource_desc_t *resources;
    uct_md_config_t *config;
    unsigned count;
    uct_md_h md;

    if (uct_md_config_read(component, NULL, NULL, &config) != UCS_OK)
        return;
    if (uct_md_open(component, name, config, &md) == UCS_OK) {
        if (uct_md_query_tl_resources(md, &resources, &count) == UCS_OK) {
            for (unsigned i = 0; i < count; i++)
                s->offer ? look_at(s, &resources[i])
                         : look_for_device(s, &resources[i]);
            uct_release_tl_resource_list(resources);
        }
        uct_md_close(md);
    }
    uct_config_release(config);
}

static void look_into(struct search *s, uct_component_h component)
{
    uct_component_attr_t a = {
        .field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT};

    if (uct_component_query(component, &a) != UCS_OK || !a.md_resource_count)
        return;
    a.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    a.md_resources = calloc(a.md_resource_count, sizeof(*a.md_resources));
    if (a.md_resources && uct_component_query(component, &a) == UCS_OK)
        for (unsigned i = 0; i < a.md_resource_count; i++)
            look_into_domain(s, component, a.md_resources[i].md_name);
    free(a.md_resources);
}

static void look(struct search *s)
{
    uct_component_h *components;
    unsigned count;

    if (uct_query_components(&components, &count) != UCS_OK)
        return;
    for (unsigned i = 0; i < count; i++)
        look_into(s, components[i]);
    uct_release_component_list(components);
}

bool ucx_probe(struct ucx_offer *offer, const char *tls)
{
    struct search s = {
        .tls = tls, .named = strcmp(tls, "tcp") != 0, .offer = offer};
    unsigned major, minor, release;

    memset(offer, 0, sizeof(*offer));
    ucp_get_version(&major, &minor, &release);
    snprintf(offer->version, sizeof(offer->version), "%u.%u", major, minor);
    if (major == 1 && minor < 14) {
        snprintf(offer->why_not, sizeof(offer->why_not),
            "UCX %s " UCX_ENDS_PROCESS " while the two connect",
            offer->version);
        return false;
    }
    look(&s);
    if (!offer->transports[0])
        snprintf(offer->why_not, sizeof(offer->why_not),
            s.named ? "UCX %s has none of the transports %.100s"
                    : "UCX %s has nothing but TCP between hosts",
            offer->version, tls);
    else if ((!s.named || ucx_reaches(tls)) && !ucx_cache_works())
        snprintf(offer->why_not, sizeof(offer->why_not),
            "the registration cache of UCX %s does not work: UCX_MEM_EVENTS, "
            "or MemoryDenyWriteExecute of the unit (mmx-rdma.conf)",
            offer->version);
    return !offer->why_not[0];
}

void ucx_offer_text(const struct ucx_offer *offer, char *out, size_t size)
{
    const char *to = offer->transports, *on = offer->devices;

    snprintf(out, size, "%s%s%s%s%s", offer->version, *to ? " " : "", to,
        *on ? " on " : "", on);
}

bool data_ucx_device(struct span name)
{
    struct search s = {.device = name};

    for (uint32_t i = 0; i < name.len && !s.found; i++)
        s.found = name.p[i] && strchr("*?[^", name.p[i]) != NULL;
    if (name.len && !s.found)
        look(&s);
    return s.found;
}
