/* node_carriers.c - the carriers that this host has for rows: which the shards
 * open, what HELLO says of them, and the data addresses of each.
 *
 * With transfer.carrier: auto these are TCP, and UCX if it is better; the
 * brains choose one of them for each peer (wire/carriers.h). Owned by the
 * loop's thread. */
#include "node/loop/node_in.h"

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "wire/carriers.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>

static void add_part(
    struct node_carriers *c, const struct data_ops *ops, const char *what)
{
    CHECK(c->count < DATA_CARRIERS_MAX, "%u carriers", c->count);
    snprintf(c->what[c->count], sizeof(c->what[0]), "%s%s%s", ops->name,
        what[0] ? " " : "", what);
    c->any_thread = ops->any_thread && (c->count == 0 || c->any_thread);
    c->parts[c->count++] = ops;
}

enum data_safe node_carriers_safe(const struct conf *conf)
{
    static const enum data_safe by_encrypt[] = {/* auto, off, on, aes-256 */
        SAFE_AUTO, SAFE_PROVED, SAFE_ENCRYPTED, SAFE_AES_256};

    CHECK(conf->transfer_encrypt < ARRAY_LEN(by_encrypt), "encrypt %llu",
        (unsigned long long)conf->transfer_encrypt);
    return conf_secure(conf) ? by_encrypt[conf->transfer_encrypt] : SAFE_OFF;
}

/* True if one of these UCX transports works within the host. */
static bool has_local(const char *tls)
{
    static const char *const within[] = {
        "sm", "shm", "posix", "cma", "xpmem", "knem", "self", "mm"};

    for (size_t i = 0; i < ARRAY_LEN(within); i++)
        if (text_lists(tls, within[i]))
            return true;
    return false;
}

/* Lets UCX transports within the host read this daemon's memory and open its
 * files, as a debugger would. Other programs of its user may do so then,
 * too. */
static void open_to_peers(const struct conf *conf, const char *tls)
{
    bool sent =
        strcmp(tls, "all") == 0 && conf->transfer_same_host == SAME_HOST_OFF;

    if (!sent && !has_local(tls))
        return;
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    log_warn("UCX within a host (%s): other programs of this user may read "
             "this daemon's memory and files",
        tls);
}

/* Returns why UCX may not be opened here; NULL: it may. UCX neither proves nor
 * encrypts, even within the host. */
static const char *untrusted(const struct conf *conf)
{
    if (!conf_secure(conf))
        return NULL;
    if (conf_encrypts(conf))
        return "cannot encrypt, as transfer.encrypt asks";
    return conf->transfer_trusted_network
               ? NULL
               : "cannot encrypt, and transfer.trusted_network is not set";
}

/* Chooses the carriers for transfer.carrier: auto. UCX neither proves nor
 * encrypts, so it needs a trusted network; without an RDMA card it gains
 * nothing. */
static void choose_auto(struct node_carriers *c, const struct conf *conf)
{
    bool named = strcmp(conf->transfer_tls, "tcp") != 0;
    struct ucx_offer ucx = {0};
    char what[216];

    if (!conf->insecure && !conf_secure(conf) && !named)
        snprintf(c->why_not, sizeof(c->why_not), "ucx: %s",
            "only loopback devices are allowed (insecure)");
    else if (!ucx_probe(&ucx, conf->transfer_tls))
        snprintf(c->why_not, sizeof(c->why_not), "ucx: %s", ucx.why_not);
    else if (untrusted(conf)) {
        snprintf(c->why_not, sizeof(c->why_not), "ucx: %s", untrusted(conf));
        c->barred = 1u << CARRIER_UCX;
    }
    if (c->why_not[0]) {
        add_part(c, &data_tcp, "");
        return;
    }
    if (!named)
        snprintf(c->tls, sizeof(c->tls), "all");
    if (ucx.devices[0] && c->lists == 1)
        snprintf(c->devices, sizeof(c->devices), "%.127s,%s",
            conf->transfer_devices, ucx.devices);
    ucx_offer_text(&ucx, what, sizeof(what));
    add_part(c, &data_ucx, what);
    add_part(c, &data_tcp, "");
}

static void take_devices(struct node_carriers *c, const char *all)
{
    snprintf(c->devices, sizeof(c->devices), "%.127s", all);
    c->lists = 1;
    for (char *at = c->devices; (at = strchr(at, ';')) != NULL; c->lists++)
        *at++ = 0;
}

const char *node_carriers_devices(const struct node_carriers *c, uint32_t shard)
{
    const char *at = c->devices;

    CHECK(c->lists > 0, "devices of shard %u are not chosen", shard);
    for (uint32_t left = shard % c->lists; left > 0; left--)
        at += strlen(at) + 1;
    return at;
}

void node_carriers_choose(struct node *n)
{
    const struct conf *conf = n->conf;
    struct node_carriers *c = &n->carriers;
    struct ucx_offer ucx;
    char what[216];

    snprintf(c->tls, sizeof(c->tls), "%.127s", conf->transfer_tls);
    take_devices(c, conf->transfer_devices);
    switch ((enum carrier_number)conf->transfer_carrier) {
    case CARRIER_TCP:
        add_part(c, &data_tcp, "");
        snprintf(c->why_not, sizeof(c->why_not), "ucx: %s",
            "transfer.carrier is tcp");
        break;
    case CARRIER_UCX:
        (void)ucx_probe(&ucx, conf->transfer_tls);
        ucx_offer_text(&ucx, what, sizeof(what));
        add_part(c, &data_ucx, what);
        snprintf(c->why_not, sizeof(c->why_not), "tcp: %s",
            "transfer.carrier is ucx");
        CHECK(!untrusted(conf), "UCX %s", untrusted(conf));
        break;
    default:
        choose_auto(c, conf);
    }
    for (uint32_t i = 0; i < c->count; i++)
        if (c->parts[i] == &data_ucx)
            open_to_peers(conf, c->tls);
}

/* Writes the shards' addresses of one carrier. false: a shard does not have it.
 */
static bool gather(struct node *n, uint8_t number, struct writer *w)
{
    for (uint32_t k = 0; k < n->shards_count; k++) {
        struct span a = shard_address(n->shards[k], number);

        if (!a.p)
            return false;
        put_span(w, a, 2, ADDRESS_MAX);
    }
    return true;
}

/* True if all shards have opened the part, and its addresses fit a HELLO. */
static bool opened(struct node *n, uint32_t i)
{
    uint8_t blob[ADDRESSES_MAX];
    struct writer w = writer_of(blob, sizeof(blob));

    if (!gather(n, n->carriers.parts[i]->number, &w))
        return false;
    if (w.failed)
        log_warn("rows do not go by %s: the data addresses of its %u shards "
                 "are more than %u bytes: fewer transfer.shards, or fewer "
                 "transports or devices in transfer.tls and transfer.devices",
            n->carriers.parts[i]->name, n->shards_count, ADDRESSES_MAX);
    return !w.failed;
}

/* Notes which proof data connections to this daemon require. */
static void say_safe(struct node *n)
{
    enum data_safe safe = node_carriers_safe(n->conf);
    bool tcp = n->brain_conf.carriers >> CARRIER_TCP & 1;

    if (!tcp || safe == SAFE_OFF || !conf_lands(n->conf))
        return;
    n->brain_conf.data_keys = true;
    n->brain_conf.data_key_bits =
        data_tcp_bits(shard_address(n->shards[0], CARRIER_TCP), safe);
    log_info("connections for rows prove a key%s",
        n->brain_conf.data_key_bits ? " and are encrypted" : "");
}

enum err node_carriers_opened(struct node *n)
{
    struct node_carriers *c = &n->carriers;

    for (uint32_t i = 0; i < c->count; i++) {
        size_t used = strlen(c->text);

        if (!opened(n, i))
            continue;
        n->brain_conf.carriers |= (uint8_t)(1u << c->parts[i]->number);
        snprintf(c->text + used, sizeof(c->text) - used, "%s%s",
            used ? "; " : "", c->what[i]);
    }
    n->brain_conf.carriers_text = c->text;
    n->brain_conf.carriers_barred = c->barred;
    say_safe(n);
    log_info("rows go by: %s%s%s", c->text, c->why_not[0] ? "; not by " : "",
        c->why_not);
    return n->brain_conf.carriers ? OK : ERR_INTERNAL;
}

const uint8_t *node_carriers_draw(const struct node *n, uint8_t *fresh)
{
    if (!n->brain_conf.data_keys)
        return NULL;
    CHECK(getrandom(fresh, DATA_KEY_FRESH, 0) == DATA_KEY_FRESH,
        "getrandom: no random bytes: %d", errno);
    return fresh;
}

static enum err say(struct node *n, uint8_t number)
{
    uint8_t blob[ADDRESSES_MAX];
    struct writer w = writer_of(blob, sizeof(blob));
    struct own_addresses a = {.carrier = number};
    struct event ev = {.type = EV_ADDRESSES, .addresses = &a};

    if (!(n->brain_conf.carriers >> number & 1) || !gather(n, number, &w))
        return OK;
    if (w.failed) {
        log_error("the data addresses of %s have grown beyond the %u bytes of "
                  "a HELLO: fewer transfer.shards",
            carrier_name(number), ADDRESSES_MAX);
        return ERR_TOO_LARGE;
    }
    a.data = span_of(blob, w.len);
    a.loopback = number == CARRIER_TCP
                     ? data_tcp_loopback(shard_address(n->shards[0], number))
                     : strcmp(n->carriers.devices, "lo") == 0;
    node_event(n, &ev);
    return OK;
}

enum err node_carriers_say(struct node *n)
{
    enum err e = OK;

    for (uint32_t i = 0;
         conf_lands(n->conf) && e == OK && i < n->carriers.count; i++)
        e = say(n, n->carriers.parts[i]->number);
    return e;
}

void node_carriers_watch(struct node *n)
{
    uint64_t replaced = 0;

    if (!conf_lands(n->conf) || node_congested(n))
        return;
    /* carry_tick() releases it. */
    for (uint32_t k = 0; k < n->shards_count; k++)
        replaced += atomic_load_explicit(
            &shard_stats(n->shards[k])->workers_replaced, memory_order_acquire);
    if (replaced == n->carriers.replaced)
        return;
    n->carriers.replaced = replaced;
    if (node_carriers_say(n) == OK)
        log_warn("a shard has a new data address");
}
