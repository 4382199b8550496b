/* check.c - checks that need the whole configuration: missing keys, values that
 * contradict each other, a daemon that would be open to others. Also fills in
 * values derived from others.
 *
 * Invariant: after conf_finish every value can be used without another check,
 * except files and devices, which only the host can check. Pure; any thread.
 *
 * Rejected: allowing loopback without a key. Every user of the host can reach
 * such a port, even users without rights to the engines' socket. Rejected:
 * warnings. A suspicious value is refused, or not worth a line. */
#include "core/conf/address.h"
#include "core/conf/table.h"

#include "base/check.h"
#include "base/text.h"
#include "wire/wire.h"

#include <stdio.h>

/* small readers */

static bool numeric(const char *s, uint64_t max)
{
    uint64_t v;

    return text_number(span_str(s), max, &v);
}

static bool name_good(const char *s)
{
    for (; *s; s++)
        if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') ||
                (*s >= '0' && *s <= '9') || strchr("._-", *s)))
            return false;
    return true;
}

/* addresses */

/* Checks an address that this daemon binds (listen) or connects to. */
static enum err check_address(
    const char *path, const char *text, bool listen, struct conf_error *e)
{
    struct address a;

    if (!address_split(span_str(text), &a) || !address_port(a.port))
        return conf_refuse(e, "%s: `%s` is not tcp://host:port", path, text);
    if (address_wildcard(&a) && !listen)
        return conf_refuse(
            e, "%s: `%s` is not an address to connect to", path, text);
    return OK;
}

/* Checks an address or pattern. */
static enum err check_allow(
    const struct conf *c, uint32_t i, struct conf_error *e)
{
    const char *text = c->control_allow.items[i];
    char path[32];
    struct address_pattern p;

    CHECK(i < c->control_allow.count && text[0], "item %u is empty", i);
    snprintf(path, sizeof(path), "control.allow[%u]", i);
    if (strcmp(text, CONF_ALLOW_KEY) == 0)
        return conf_secure(c) ? OK
                              : conf_refuse(e,
                                    "%s: `key` needs control.keys, there are "
                                    "none",
                                    path);
    if (!address_pattern(&p, text))
        return conf_refuse(e,
            "%s: `%s` is not tcp://host:port, tcp://network/bits:port (a port "
            "may be *) or key",
            path, text);
    if (address_wildcard(&p.at) && p.bits == ADDRESS_WHOLE)
        return conf_refuse(
            e, "%s: `%s` is not an address to connect to", path, text);
    return OK;
}

static enum err check_devices(const struct conf *c, struct conf_error *e)
{
    const char *all = c->transfer_devices, *at = all;
    bool lo = false, others = false;

    for (size_t n; n = strcspn(at, ",;"), n > 0; at += n + 1) {
        *(span_eq(span_of(at, n), span_str("lo")) ? &lo : &others) = true;
        if (lo && others)
            return conf_refuse(
                e, "transfer.devices: `%s` has lo beside others", all);
        if (!at[n])
            return OK;
    }
    return conf_refuse(e, "transfer.devices: `%s` has an empty name", all);
}

/* the sections */

/* Makes the daemon's name: the host's up to its first dot, in letters that a
 * name may have, and the role. */
static void derive_name(struct conf *c, const char *host_name)
{
    char host[48];
    size_t n = 0;

    for (; host_name[n] && host_name[n] != '.' && n + 1 < sizeof(host); n++) {
        const char one[2] = {host_name[n], 0};

        host[n] = one[0];
        if (!name_good(one))
            host[n] = '-';
    }
    host[n] = 0;
    snprintf(c->name, sizeof(c->name), "%s-%s", n ? host : "host",
        role_name(c->role));
}

/* Finds the path of the socket for orders. It must not be in the folder that
 * engines mount. */
static enum err check_orders(struct conf *c, struct conf_error *e)
{
    const char *slash = strrchr(c->socket_path, '/');
    size_t folder = slash ? (size_t)(slash - c->socket_path) + 1 : 0;

    if (!c->socket_orders[0] && !orders_path(c->socket_path, c->socket_orders))
        return conf_refuse(e,
            "socket.orders: is missing; none can be made of socket.path `%s`",
            c->socket_path);
    if (folder > 0 && strncmp(c->socket_orders, c->socket_path, folder) == 0)
        return conf_refuse(e,
            "socket.orders: `%s` lies in the folder of socket.path, which "
            "engines mount: give it another one",
            c->socket_orders);
    return OK;
}

static enum err check_socket(struct conf *c, struct conf_error *e)
{
    const char *mode = c->socket_mode;

    if (strspn(mode, "01234567") != 4 || mode[0] != '0')
        return conf_refuse(
            e, "socket.mode: `%s` is not an octal mode such as 0660", mode);
    if (!c->socket_path[0])
        snprintf(c->socket_path, sizeof(c->socket_path), "/run/mmx/%s.sock",
            role_name(c->role));
    return check_orders(c, e);
}

static enum err check_keys(const struct conf *c, struct conf_error *e)
{
    const struct conf_list *l = &c->control_keys;

    if (!conf_secure(c) && !c->insecure)
        return conf_refuse(e,
            "control.keys: is missing; `mmxctl keygen /etc/mmx/fleet.key` "
            "writes a key, which every daemon of the fleet names there; only "
            "with `insecure: true` a daemon runs without one");
    if (l->count > CONF_KEYS_MAX)
        return conf_refuse(
            e, "control.keys: %u files, at most %u", l->count, CONF_KEYS_MAX);
    if (conf_secure(c) && c->insecure)
        return conf_refuse(e,
            "insecure: true: control.keys are given, too; leave one of the two "
            "out");
    if (c->control_identities[0] && l->count != 1)
        return conf_refuse(e,
            "control.identities: control.keys has %u files, expected one, with "
            "this daemon's own key",
            l->count);
    if (conf_encrypts(c) && !conf_secure(c))
        return conf_refuse(
            e, "transfer.encrypt: `on` and `aes-256` need control.keys");
    if (conf_secure(c) && c->transfer_carrier == CARRIER_UCX &&
        !c->transfer_trusted_network)
        return conf_refuse(e,
            "transfer.carrier: `ucx` beside control.keys needs "
            "transfer.trusted_network: true; UCX neither proves a key nor "
            "encrypts, and any program that reaches its port can end the "
            "daemon");
    if (conf_encrypts(c) && c->transfer_carrier == CARRIER_UCX)
        return conf_refuse(
            e, "transfer.encrypt: `on` and `aes-256` cannot go by carrier ucx");
    return OK;
}

static enum err check_control(struct conf *c, struct conf_error *e)
{
    struct address a;
    enum err r = OK;

    for (uint32_t i = 0; !r && i < c->control_allow.count; i++)
        r = check_allow(c, i, e);
    if (r || conf_lands(c))
        return r;
    r = check_address("control.listen", c->control_listen, true, e);
    if (r)
        return r;
    if (!c->control_advertise[0])
        memcpy(c->control_advertise, c->control_listen,
            sizeof(c->control_advertise));
    if (!address_split(span_str(c->control_advertise), &a) ||
        !address_port(a.port))
        return conf_refuse(e, "control.advertise: `%s` is not tcp://host:port",
            c->control_advertise);
    if (address_wildcard(&a))
        return conf_refuse(e,
            "control.advertise: must be set when control.listen is `%s`: "
            "`%s` is not an address to connect to",
            c->control_listen, c->control_advertise);
    return OK;
}

static enum err check_ports(const struct conf *c, struct conf_error *e)
{
    struct span last = span_str(c->transfer_ports), first;
    uint64_t from, to;

    if (last.len == 0)
        return OK;
    if (!text_cut(&last, '-', &first) || !text_number(first, 65535, &from) ||
        !text_number(last, 65535, &to) || from == 0 || from > to)
        return conf_refuse(e,
            "transfer.ports: `%s` is not first-last, 1 to 65535",
            c->transfer_ports);
    if (to - from + 1 < c->transfer_shards)
        return conf_refuse(e,
            "transfer.ports: `%s` are %u ports, transfer.shards needs %u",
            c->transfer_ports, (unsigned)(to - from + 1),
            (unsigned)c->transfer_shards);
    return OK;
}

enum { LEAST_PACE = 64 * 1024 };

static enum err check_transfer(const struct conf *c, struct conf_error *e)
{
    enum err r = check_devices(c, e);

    if (!r && c->transfer_carrier == CARRIER_TCP &&
        strcmp(c->transfer_tls, "tcp") != 0)
        r = conf_refuse(e,
            "transfer.tls: `%s` needs transfer.carrier: auto or ucx",
            c->transfer_tls);
    if (!r && c->transfer_tls[0] != '^' && strstr(c->transfer_tls, "sysv"))
        r = conf_refuse(e,
            "transfer.tls: `%s` has sysv, whose segments are open to the "
            "daemon's group; name posix",
            c->transfer_tls);
    if (!r && c->transfer_pace > 0 && c->transfer_pace < LEAST_PACE)
        r = conf_refuse(e,
            "transfer.pace: %llu bytes a second are taken for a "
            "stall; expected 0B or 64KiB and more",
            (unsigned long long)c->transfer_pace);
    if (!r)
        r = check_ports(c, e);
    if (r)
        return r;
    for (uint32_t i = 0; i < c->transfer_cpus.count; i++)
        if (!numeric(c->transfer_cpus.items[i], 4095))
            return conf_refuse(e,
                "transfer.cpus[%u]: `%s` is not a core's number", i,
                c->transfer_cpus.items[i]);
    if (c->transfer_cpus.count > c->transfer_shards)
        return conf_refuse(e, "transfer.cpus: %u cores for %u shards",
            c->transfer_cpus.count, (unsigned)c->transfer_shards);
    return OK;
}

/* pools and peers */

static enum err check_name(
    const char *list, uint32_t i, const char *name, struct conf_error *e)
{
    if (!name[0])
        return conf_refuse(e, "%s[%u].name: is missing", list, i);
    if (!name_good(name))
        return conf_refuse(e,
            "%s[%u].name: `%s` may only have letters, digits "
            "and . _ -",
            list, i, name);
    return OK;
}

static enum err check_ids(const char *what, uint32_t pool,
    const struct conf_list *l, struct conf_error *e)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (!numeric(l->items[i], UINT32_MAX - 1))
            return conf_refuse(e, "pools[%u].%s[%u]: `%s` is not a numeric id",
                pool, what, i, l->items[i]);
    return OK;
}

static bool memory_good(const char *s)
{
    return strcmp(s, "host") == 0 ||
           (strncmp(s, "cuda:", 5) == 0 && numeric(s + 5, 255));
}

/* Refuses a layout that cannot be read from byte `at` on. */
static enum err refuse_layout(
    uint32_t pool, const char *text, uint32_t at, struct conf_error *e)
{
    static const char dtypes[] =
#define DTYPE(name, bytes, doc) " " #name
#include "wire/dtype.def"
        ;
    uint32_t start = at, colons = 0;
    int word = (int)strcspn(text + at, ":,");

    for (; start > 0 && text[start - 1] != ','; start--)
        colons += text[start - 1] == ':';
    if (colons == 1 && text[at - 1] == ':')
        return conf_refuse(e,
            "pools[%u].layout: `%.*s` at byte %u is not a dtype; there are%s",
            pool, min_u32((uint32_t)word, 60), text + at, at + 1, dtypes);
    if (colons < 2 && at > start && word == 0)
        return conf_refuse(e,
            "pools[%u].layout: `%.*s` lacks a part; a field is "
            "name:dtype:elements",
            pool, min_u32(at - start, 60), text + start);
    return conf_refuse(e,
        "pools[%u].layout: cannot read `%.60s` at byte %u; expected "
        "name:dtype:elements with comma between, or engine",
        pool, text + at, at + 1);
}

_Static_assert(ROW_BYTES_MAX <= 1u << 29, "a pool of 32 bits of rows fits");

/* Normalizes the layout's text, and checks that the pool's rows fit 32 bits. */
static enum err check_layout(
    struct conf_pool *p, uint32_t i, struct conf_error *e)
{
    uint64_t rows = p->blocks * p->block_rows;
    struct layout l;
    uint32_t at;

    if (rows >= ROWS_UNKNOWN)
        return conf_refuse(e,
            "pools[%u].blocks: %llu blocks of %llu rows are more "
            "than 4294967294 rows",
            i, (unsigned long long)p->blocks,
            (unsigned long long)p->block_rows);
    if (strcmp(p->layout, "engine") == 0)
        return OK;
    if (layout_parse(span_str(p->layout), &l, &at))
        return refuse_layout(i, p->layout, at, e);
    if (conf_on_gpu(p) && l.row_bytes > CONF_GPU_ROW)
        return conf_refuse(e,
            "pools[%u].layout: rows of %u bytes; in memory of a GPU at most "
            "%u",
            i, l.row_bytes, CONF_GPU_ROW);
    CHECK(strlen(l.text) < sizeof(p->layout), "a layout of pool %u", i);
    memcpy(p->layout, l.text, strlen(l.text) + 1);
    return OK;
}

static enum err check_pool(
    const struct conf *c, struct conf_pool *p, uint32_t i, struct conf_error *e)
{
    enum err r = check_name("pools", i, p->name, e);

    if (r)
        return r;
    if (p->blocks == 0)
        return conf_refuse(e, "pools[%u].blocks: is missing", i);
    if (!memory_good(p->memory))
        return conf_refuse(
            e, "pools[%u].memory: `%s` is not host or cuda:N", i, p->memory);
    if (strcmp(p->numa, "any") != 0 && !numeric(p->numa, 1023))
        return conf_refuse(e,
            "pools[%u].numa: `%s` is not a node's number or any", i, p->numa);
    if (conf_lands(c) && p->default_blocks > p->blocks)
        return conf_refuse(e,
            "pools[%u].default_blocks: %llu is more than blocks, %llu", i,
            (unsigned long long)p->default_blocks,
            (unsigned long long)p->blocks);
    if (conf_lands(c) && p->max_room_blocks > p->blocks)
        return conf_refuse(e,
            "pools[%u].max_room_blocks: %llu is more than blocks, %llu", i,
            (unsigned long long)p->max_room_blocks,
            (unsigned long long)p->blocks);
    r = check_ids("uids", i, &p->uids, e);
    if (!r)
        r = check_ids("gids", i, &p->gids, e);
    return r ? r : check_layout(p, i, e);
}

static enum err check_pools(struct conf *c, struct conf_error *e)
{
    if (c->pools_count == 0)
        return conf_refuse(e, "pools: at least one pool is needed");
    for (uint32_t i = 0; i < c->pools_count; i++) {
        enum err r = check_pool(c, &c->pools[i], i, e);

        if (r)
            return r;
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(c->pools[i].name, c->pools[j].name) == 0)
                return conf_refuse(e,
                    "pools[%u].name: `%s` is pools[%u] already", i,
                    c->pools[i].name, j);
    }
    return OK;
}

static enum err check_peer(
    const struct conf *c, uint32_t i, struct conf_error *e)
{
    const struct conf_peer *p = &c->peers[i], *q;
    enum err r = check_name("peers", i, p->name, e);
    char path[32];

    if (r)
        return r;
    if (strcmp(p->name, "null") == 0)
        return conf_refuse(e, "peers[%u].name: `null` means no encoder", i);
    snprintf(path, sizeof(path), "peers[%u].address", i);
    if (!p->address[0])
        return conf_refuse(e, "%s: is missing", path);
    r = check_address(path, p->address, false, e);
    if (r)
        return r;
    for (q = c->peers; q < p; q++) {
        if (strcmp(p->name, q->name) == 0)
            return conf_refuse(e, "peers[%u].name: `%s` is peers[%u] already",
                i, p->name, (unsigned)(q - c->peers));
        if (strcmp(p->address, q->address) == 0)
            return conf_refuse(e,
                "%s: `%s` is the address of peers[%u] already", path,
                p->address, (unsigned)(q - c->peers));
    }
    return OK;
}

static enum err check_peers(const struct conf *c, struct conf_error *e)
{
    if (c->peers_count > c->limit_peers)
        return conf_refuse(e, "peers: %u are more than limits.peers, %u",
            c->peers_count, (unsigned)c->limit_peers);
    for (uint32_t i = 0; i < c->peers_count; i++) {
        enum err r = check_peer(c, i, e);

        if (r)
            return r;
    }
    return OK;
}

enum err conf_finish(
    struct conf *c, const char *host_name, struct conf_error *e)
{
    enum err r;

    CHECK(c->pools_count <= CONF_POOLS_MAX && c->peers_count <= CONF_PEERS_MAX,
        "%u pools, %u peers", c->pools_count, c->peers_count);
    if (!c->name[0])
        derive_name(c, host_name);
    if (!name_good(c->name))
        return conf_refuse(
            e, "name: `%s` may only have letters, digits and . _ -", c->name);
    r = check_socket(c, e);
    if (!r)
        r = check_keys(c, e);
    if (!r)
        r = check_control(c, e);
    if (!r)
        r = check_transfer(c, e);
    if (!r)
        r = check_pools(c, e);
    return r ? r : check_peers(c, e);
}
