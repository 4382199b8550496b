/* conf_test.c - configuration: values, refusals with their texts, checks that
 * are possible only at the end, and that the sample files are what conf_print
 * writes. */
#include "core/conf/conf.h"
#include "wire/wire.h"
#include "io/yaml.h"
#include "test/t.h"

static struct conf conf; /* large; every case has its own process */
static struct conf_error error;
static char printed[65536];

static void set(const char *path, const char *value)
{
    T_CHECK(
        conf_set(&conf, path, span_str(value), &error) == OK, "%s", error.text);
}

static void refused(const char *path, const char *value, const char *text)
{
    static struct conf before;

    before = conf;
    T_CHECK(conf_set(&conf, path, span_str(value), &error) == ERR_MALFORMED,
        "%s=%s was accepted", path, value);
    T_EQ_STR(error.text, text);
    /* Entries beyond the counts may have any bytes. */
    memset(before.pools + before.pools_count, 0,
        sizeof(before.pools[0]) * (CONF_POOLS_MAX - before.pools_count));
    memset(conf.pools + conf.pools_count, 0,
        sizeof(conf.pools[0]) * (CONF_POOLS_MAX - conf.pools_count));
    T_EQ_MEM(&conf, &before, sizeof(conf));
}

static void begin(uint8_t role)
{
    conf_init(&conf, role);
    set("control.keys", "fleet.key");
    set("pools[0].name", "vit");
    set("pools[0].blocks", "64");
    if (role == ROLE_LANGD) {
        set("peers[0].name", "encoded-0");
        set("peers[0].address", "tcp://127.0.0.1:7601");
    }
}

static void finish(void)
{
    T_CHECK(conf_finish(&conf, "host", &error) == OK, "%s", error.text);
}

static void unfinished(const char *text)
{
    T_CHECK(conf_finish(&conf, "host", &error) == ERR_MALFORMED,
        "finished, not refused: %s", text);
    T_EQ_STR(error.text, text);
}

/* Checks that each of these values is refused, at once or at the end, with the
 * same text. */
static void none_of(
    bool at_end, const char *path, const char *const *values, const char *is)
{
    char text[256];

    for (; *values; values++) {
        snprintf(text, sizeof(text), "%s: `%s` %s", path, *values, is);
        if (at_end) {
            set(path, *values);
            unfinished(text);
        } else
            refused(path, *values, text);
    }
}
#define NONE_OF(path, is, ...)                                                 \
    none_of(false, path, (const char *const[]){__VA_ARGS__, NULL}, is)
#define NONE_AT_END(path, is, ...)                                             \
    none_of(true, path, (const char *const[]){__VA_ARGS__, NULL}, is)

/* values */

TEST(defaults)
{
    conf_init(&conf, ROLE_LANGD);
    T_EQ_U64(conf.role, ROLE_LANGD);
    T_EQ_U64(conf.transfer_shards, 1);
    T_EQ_U64(conf.limit_aux_total, 4u << 20);
    T_EQ_U64(conf.timeout_total, 300 * NS_PER_S);
    T_EQ_U64(conf.control_lost_after, 500 * NS_PER_MS);
    T_EQ_STR(conf.transfer_devices, "lo");
    T_EQ_STR(conf.socket_mode, "0660");
    T_EQ_U64(conf.log_level, 2);
    T_FALSE(conf.insecure);
    T_EQ_U64(conf.pools_count, 0);
    T_EQ_U64(conf.transfer_cpus.count, 0);
}

TEST(numbers)
{
    begin(ROLE_ENCODED);
    set("transfer.shards", "64");
    T_EQ_U64(conf.transfer_shards, 64);
    NONE_OF("transfer.shards", "is not a number from 1 to 64", "0", "65", "",
        "-1", "01", "4 ", "99999999999999999999999");
}

TEST(sizes)
{
    begin(ROLE_ENCODED);
    set("limits.aux_total", "64KiB");
    T_EQ_U64(conf.limit_aux_total, 65536);
    set("limits.aux_total", "65536B");
    set("limits.aux_total", "4MiB");
    T_EQ_U64(conf.limit_aux_total, 4u << 20);
    set("limits.aux_total", "1GiB");
    NONE_OF("limits.aux_total",
        "is not a size from 64KiB to 1GiB; units are B KiB MiB GiB TiB",
        "262144", "0", "1TiB", "16kib", "18446744073709551615KiB");
}

TEST(durations)
{
    begin(ROLE_ENCODED);
    set("timeouts.linger", "0");
    T_EQ_U64(conf.timeout_linger, 0);
    set("timeouts.linger", "250ms");
    T_EQ_U64(conf.timeout_linger, 250 * NS_PER_MS);
    set("timeouts.linger", "2m");
    T_EQ_U64(conf.timeout_linger, 120 * NS_PER_S);
    set("timeouts.linger", "1h");
    T_EQ_U64(conf.timeout_linger, 3600 * NS_PER_S);
    NONE_OF("timeouts.linger",
        "is not a duration from 0ms to 1h; units are ms s m h", "5", "3601s",
        "1.5s", "s", "99999999999999999999s");
    NONE_OF("control.heartbeat",
        "is not a duration from 100ms to 1m; units are ms s m h", "99ms");
}

TEST(words)
{
    begin(ROLE_LANGD);
    set("log", "debug");
    T_EQ_U64(conf.log_level, 3);
    set("pools[0].engine_access", "write");
    T_EQ_U64(conf.pools[0].engine_access, 1);
    set("insecure", "true");
    T_TRUE(conf.insecure);
    NONE_OF("insecure", "is not true or false", "yes");
    NONE_OF("log", "is not one of error, warn, info, debug", "trace", "",
        "info|error");
}

TEST(texts)
{
    char long_name[80];

    begin(ROLE_ENCODED);
    memset(long_name, 'n', 64);
    long_name[64] = 0;
    refused("name", long_name,
        "name: `nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn..."
        "` is 64 bytes long, 63 at most");
    long_name[63] = 0;
    set("name", long_name);
    T_EQ_STR(conf.name, long_name);
    set("name", "");
    T_EQ_STR(conf.name, "");
    refused("control.listen", "", "control.listen: must not be empty");
    refused("socket.mode", "", "socket.mode: must not be empty");
    refused("name", "a\nb", "name: `a?b` has control characters");
    refused("name", "a\x7f", "name: `a?` has control characters");
    T_ERR(conf_set(&conf, "name", span_of("a\0b", 3), &error), ERR_MALFORMED);
}

TEST(lists)
{
    begin(ROLE_ENCODED);
    set("transfer.cpus[0]", "2");
    set("transfer.cpus[1]", "3");
    set("transfer.cpus[0]", "1");
    T_EQ_U64(conf.transfer_cpus.count, 2);
    T_EQ_STR(conf.transfer_cpus.items[0], "1");
    T_EQ_STR(conf.transfer_cpus.items[1], "3");
    refused("transfer.cpus[3]", "4", "transfer.cpus[3]: comes before item 2");
    refused("transfer.cpus[2]", "", "transfer.cpus[2]: must not be empty");
    set("transfer.cpus", "");
    T_EQ_U64(conf.transfer_cpus.count, 0);
    set("transfer.cpus", "4,5,6");
    T_EQ_U64(conf.transfer_cpus.count, 3);
    T_EQ_STR(conf.transfer_cpus.items[2], "6");
    refused("transfer.cpus", "1,,2", "transfer.cpus: must not be empty");
    refused("transfer.cpus", "1,",
        "transfer.cpus: a comma without an item after it");
    set("pools[0].uids[0]", "1000");
    set("pools[1].gids[0]", "44");
    T_EQ_U64(conf.pools_count, 2);
    T_EQ_STR(conf.pools[1].gids.items[0], "44");
}

TEST(list_is_bounded)
{
    char path[32];

    begin(ROLE_ENCODED);
    for (unsigned i = 0; i < CONF_LIST_MAX; i++) {
        snprintf(path, sizeof(path), "transfer.cpus[%u]", i);
        set(path, "1");
    }
    refused("transfer.cpus[64]", "1", "transfer.cpus[64]: 64 items at most");
}

TEST(entries_come_in_order)
{
    conf_init(&conf, ROLE_ENCODED);
    refused("pools[1].name", "a", "pools[1].name: comes before pools[0]");
    refused("pools[0].blocks", "0",
        "pools[0].blocks: `0` is not a number from 1 to 16777216");
    T_EQ_U64(conf.pools_count, 0);
    set("pools[0].blocks", "4");
    T_EQ_U64(conf.pools_count, 1);
    T_EQ_U64(conf.pools[0].block_rows, 128);
    T_EQ_STR(conf.pools[0].layout, "engine");
    set("pools[0].name", "a");
    T_EQ_U64(conf.pools_count, 1);
    for (unsigned i = 1; i < CONF_POOLS_MAX; i++) {
        char path[32];

        snprintf(path, sizeof(path), "pools[%u].name", i);
        set(path, "x");
    }
    refused("pools[16].name", "a", "pools[16].name: 16 pools at most");
}

TEST(a_failed_first_key_leaves_nothing_behind)
{
    conf_init(&conf, ROLE_ENCODED);
    set("pools[0].name", "a");
    set("pools[0].block_rows", "7");
    T_ERR(conf_set(&conf, "pools[1].blocks", span_str("x"), &error),
        ERR_MALFORMED);
    set("pools[1].name", "b");
    T_EQ_U64(conf.pools[1].blocks, 0);
    T_EQ_U64(conf.pools[1].block_rows, 128);
}

#define TOP                                                                    \
    "; there are name log insecure socket control transfer timeouts limits "   \
    "pools peers"
#define POOL                                                                   \
    "; there are name memory blocks block_rows default_blocks "                \
    "max_room_blocks layout engine_access uids gids huge_pages numa"

TEST(unknown_keys)
{
    begin(ROLE_LANGD);
    refused("pool", "", "unknown key `pool`" TOP);
    refused("socket.paht", "",
        "unknown key `socket.paht`; there are path mode group orders");
    refused("sockt.path", "", "unknown key `sockt.path`");
    refused("shards", "", "unknown key `shards`" TOP);
    refused("pools[0].block", "", "unknown key `pools[0].block`" POOL);
    refused("peers[0].adress", "",
        "unknown key `peers[0].adress`; there are name address");
    refused("control.listen", "",
        "`control.listen` is a key of mmx-encoded, not of mmx-langd");
    refused("", "", "unknown key ``" TOP);
    refused("pools[", "", "unknown key `pools[`" TOP);
    refused("name[0]", "", "unknown key `name[0]`" TOP);
    refused("transfer", "1", "transfer: has keys of its own, not a value");
    refused("pools", "1", "pools: has keys of its own, not a value");
    refused("pools[0]", "1", "pools[0]: has keys of its own, not a value");
}

TEST(keys_of_the_other_role)
{
    begin(ROLE_ENCODED);
    refused("peers", "", "`peers` is a key of mmx-langd, not of mmx-encoded");
    refused("peers[0].name", "x",
        "`peers[0].name` is a key of mmx-langd, not of mmx-encoded");
    refused("pools[0].default_blocks", "1",
        "`pools[0].default_blocks` is a key of mmx-langd, not of mmx-encoded");
}

TEST(shapes)
{
    T_EQ_U64(conf_shape(ROLE_LANGD, "name"), CONF_VALUE);
    T_EQ_U64(conf_shape(ROLE_LANGD, "transfer"), CONF_MAP);
    T_EQ_U64(conf_shape(ROLE_LANGD, "transfer.cpus"), CONF_LIST);
    T_EQ_U64(conf_shape(ROLE_LANGD, "transfer.cpus[0]"), CONF_VALUE);
    T_EQ_U64(conf_shape(ROLE_LANGD, "pools"), CONF_MAPS);
    T_EQ_U64(conf_shape(ROLE_LANGD, "pools[3]"), CONF_MAP);
    T_EQ_U64(conf_shape(ROLE_LANGD, "pools[3].uids"), CONF_LIST);
    T_EQ_U64(conf_shape(ROLE_LANGD, "pools.name"), CONF_NOTHING);
    T_EQ_U64(conf_shape(ROLE_LANGD, "pools[3]name"), CONF_NOTHING);
    T_EQ_U64(conf_shape(ROLE_LANGD, "pools[x].name"), CONF_NOTHING);
    T_EQ_U64(conf_shape(ROLE_LANGD, "pools[3x].name"), CONF_NOTHING);
    T_EQ_U64(conf_shape(ROLE_LANGD, "transfer.cpus[x]"), CONF_NOTHING);
    T_EQ_U64(conf_shape(ROLE_LANGD, "transfer.cpus[0]x"), CONF_NOTHING);
    T_EQ_U64(conf_shape(ROLE_LANGD, "pools[99999999999].name"), CONF_NOTHING);
    T_EQ_U64(conf_shape(ROLE_ENCODED, "peers"), CONF_NOTHING);
    T_EQ_U64(conf_shape(ROLE_ENCODED, "transfe"), CONF_NOTHING);
    T_EQ_U64(conf_shape(ROLE_ENCODED, "control.listen"), CONF_VALUE);
    T_EQ_U64(conf_shape(ROLE_LANGD, "control.listen"), CONF_NOTHING);
}

TEST(assignments)
{
    begin(ROLE_LANGD);
    T_OK(conf_set_assign(&conf, "socket.path=run/x=y.sock", &error));
    T_EQ_STR(conf.socket_path, "run/x=y.sock");
    T_OK(conf_set_assign(&conf, "transfer.cpus=1,2", &error));
    T_EQ_U64(conf.transfer_cpus.count, 2);
    T_OK(conf_set_assign(&conf, "pools[0].blocks=9", &error));
    T_EQ_U64(conf.pools[0].blocks, 9);
    T_OK(conf_set_assign(&conf, "name=", &error));
    T_ERR(conf_set_assign(&conf, "name", &error), ERR_MALFORMED);
    T_EQ_STR(error.text, "`name` is not key=value");
    T_ERR(conf_set_assign(&conf, "=x", &error), ERR_MALFORMED);
    memset(printed, 'x', 128);
    strcpy(printed + 128, "=");
    T_ERR(conf_set_assign(&conf, printed, &error), ERR_MALFORMED);
    T_ERR(conf_set_assign(&conf, "nam=x", &error), ERR_MALFORMED);
    T_EQ_STR(error.text, "unknown key `nam`" TOP);
}

/* at the end */

TEST(derived)
{
    begin(ROLE_ENCODED);
    set("pools[0].layout", "a:u8:1,  b:u8:2");
    finish();
    T_EQ_STR(conf.name, "host-encoded");
    T_EQ_STR(conf.socket_path, "/run/mmx/encoded.sock");
    T_EQ_STR(conf.socket_orders, "/run/mmx-admin/encoded.sock");
    T_EQ_STR(conf.control_advertise, "tcp://127.0.0.1:7601");
    T_EQ_STR(conf.pools[0].layout, "a:u8:1,b:u8:2");
    begin(ROLE_LANGD);
    T_OK(conf_finish(&conf, "a@Z[`{b/:.example.org", &error));
    T_EQ_STR(conf.name, "a-Z---b---langd");
    T_EQ_STR(conf.socket_path, "/run/mmx/langd.sock");
    begin(ROLE_LANGD);
    set("name", "mine");
    set("socket.path", "run/l.sock");
    finish();
    T_EQ_STR(conf.name, "mine");
    T_EQ_STR(conf.socket_path, "run/l.sock");
    T_EQ_STR(conf.socket_orders, "run-admin/l.sock");
    begin(ROLE_LANGD);
    T_OK(conf_finish(&conf,
        "abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcd",
        &error));
    begin(ROLE_LANGD);
    T_OK(conf_finish(&conf, "", &error));
    T_EQ_STR(conf.name, "host-langd");
}

#define LETTERS "may only have letters, digits and . _ -"

TEST(pools_that_make_no_sense)
{
    conf_init(&conf, ROLE_LANGD);
    set("insecure", "true");
    unfinished("pools: at least one pool is needed");
    set("pools[0].blocks", "4");
    unfinished("pools[0].name: is missing");
    set("pools[0].name", "a");
    unfinished("pools[0].default_blocks: 8 is more than blocks, 4");
    set("pools[0].default_blocks", "4");
    set("pools[0].max_room_blocks", "5");
    unfinished("pools[0].max_room_blocks: 5 is more than blocks, 4");
    set("pools[0].max_room_blocks", "4");
    finish();
    set("pools[1].name", "a");
    unfinished("pools[1].blocks: is missing");
    set("pools[1].blocks", "16");
    unfinished("pools[1].name: `a` is pools[0] already");
    NONE_AT_END("pools[1].name", LETTERS, "b c");
}

TEST(pool_values)
{
    begin(ROLE_ENCODED);
    set("pools[0].memory", "cuda:0");
    finish();
    NONE_AT_END("pools[0].memory", "is not host or cuda:N", "cuda", "cuda:");
    set("pools[0].memory", "cuda:0");
    set("pools[0].layout", "embedding:f32:524289");
    unfinished("pools[0].layout: rows of 2097156 bytes; in memory of a GPU at "
               "most 2097152");
    set("pools[0].layout", "embedding:f32:524288");
    finish();
    set("pools[0].memory", "host");
    set("pools[0].numa", "1");
    finish();
    NONE_AT_END("pools[0].numa", "is not a node's number or any", "one");
    set("pools[0].numa", "any");
    set("pools[0].uids", "0,65534");
    finish();
    set("pools[0].uids[1]", "nobody");
    unfinished("pools[0].uids[1]: `nobody` is not a numeric id");
    set("pools[0].uids", "");
    set("pools[0].gids", "-1");
    unfinished("pools[0].gids[0]: `-1` is not a numeric id");
}

#define EXPECTED "; expected name:dtype:elements with comma between, or engine"

TEST(layouts)
{
    begin(ROLE_ENCODED);
    set("pools[0].layout", "embedding:bf17:8");
    unfinished("pools[0].layout: `bf17` at byte 11 is not a dtype; there are "
               "bf16 f16 f32 f8e4m3 f8e5m2 i8 u8 i16 i32 i64 bool");
    set("pools[0].layout", "a:bf16:8,embedding:bf16");
    unfinished("pools[0].layout: `embedding:bf16` lacks a part; a field is "
               "name:dtype:elements");
    NONE_AT_END("pools[0].layout",
        "lacks a part; a field is name:dtype:elements", "embedding");
    set("pools[0].layout", "embedding:bf16:0");
    unfinished("pools[0].layout: cannot read `0` at byte 16" EXPECTED);
    set("pools[0].layout", "embedding:bf16:8,");
    unfinished("pools[0].layout: cannot read `` at byte 18" EXPECTED);
    set("pools[0].layout", "a:u8:1, B:u8:1");
    unfinished("pools[0].layout: cannot read `B:u8:1` at byte 9" EXPECTED);
    set("pools[0].layout", "embedding:bf16:8");
    set("pools[0].blocks", "16777216");
    set("pools[0].block_rows", "1048576");
    unfinished("pools[0].blocks: 16777216 blocks of 1048576 rows are more "
               "than 4294967294 rows");
}

TEST(fleet_keys)
{
    begin(ROLE_LANGD);
    set("control.keys", "");
    T_FALSE(conf_secure(&conf));
    unfinished(
        "control.keys: is missing; `mmxctl keygen /etc/mmx/fleet.key` writes a "
        "key, which every daemon of the fleet names there; only with "
        "`insecure: true` a daemon runs without one");
    set("control.keys", "a.key,/etc/b.key");
    T_TRUE(conf_secure(&conf));
    finish();
    set("insecure", "true");
    unfinished("insecure: true: control.keys are given, too; leave one of the "
               "two out");
    begin(ROLE_ENCODED);
    set("control.keys", "a,b,c,d,e");
    unfinished("control.keys: 5 files, at most 4");
    begin(ROLE_ENCODED);
    set("control.identities", "who");
    set("control.keys", "a");
    finish();
    set("control.keys", "a,b");
    unfinished("control.identities: control.keys has 2 files, expected one, "
               "with this daemon's own key");
}

TEST(addresses_of_encoded)
{
    static const char *const good[] = {"tcp://127.0.0.1:1",
        "tcp://127.255.0.9:65535", "tcp://localhost:7601", "tcp://[::1]:7601",
        "tcp://127.1:7601", "tcp://host:7601", "tcp://[::ffff:127.0.0.1]:7601"};
    static const char *const bad[] = {"tcp://127.0.0.1", "127.0.0.1:7601",
        "tcp://127.0.0.1:0", "tcp://127.0.0.1:65536", "tcp://:7601",
        "tcp://127.0.0.1:*", "tcp://[::1]", "tcp://[::1]x1", "tcp://[::1:7601",
        "ipc://run/x", "tcp://", "tcp://a b:1", "tcp://::1:7601",
        "tcp://eth0;127.0.0.1:7601", "tcp://127.0.0.1:07601", NULL};
    static const char *const every[] = {
        "tcp://*:7601", "tcp://0.0.0.0:7601", "tcp://[::]:7601"};
    char text[512];

    begin(ROLE_ENCODED);
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        set("control.listen", good[i]);
        set("control.advertise", "");
        finish();
    }
    none_of(true, "control.listen", bad, "is not tcp://host:port");
    set("control.listen", good[0]);
    none_of(true, "control.advertise", bad, "is not tcp://host:port");
    for (size_t i = 0; i < ARRAY_LEN(every); i++) {
        set("control.listen", every[i]);
        set("control.advertise", "tcp://host-7.example.org:7601");
        finish();
        set("control.advertise", "");
        snprintf(text, sizeof(text),
            "control.advertise: must be set when control.listen is `%s`: `%s` "
            "is not an address to connect to",
            every[i], every[i]);
        unfinished(text);
    }
    set("control.listen", "tcp://10.0.0.1:7601");
    set("control.advertise", "");
    finish();
    T_EQ_STR(conf.control_advertise, "tcp://10.0.0.1:7601");
}

TEST(peers)
{
    begin(ROLE_LANGD);
    set("peers[1].name", "encoded-0");
    unfinished("peers[1].address: is missing");
    set("peers[1].address", "tcp://127.0.0.1:7602");
    unfinished("peers[1].name: `encoded-0` is peers[0] already");
    set("peers[1].name", "b");
    finish();
    set("peers[1].address", "tcp://127.0.0.1:7601");
    unfinished("peers[1].address: `tcp://127.0.0.1:7601` is the address of "
               "peers[0] already");
    NONE_AT_END(
        "peers[1].address", "is not an address to connect to", "tcp://*:7601");
    set("peers[1].address", "tcp://10.1.1.1:7601");
    finish();
    set("peers[1].name", "null");
    unfinished("peers[1].name: `null` means no encoder");
    NONE_AT_END("peers[1].name", LETTERS, "b c");
    set("peers[1].name", "b");
    set("limits.peers", "1");
    unfinished("peers: 2 are more than limits.peers, 1");
}

TEST(allowed_encoders)
{
    begin(ROLE_LANGD);
    set("control.allow",
        "tcp://127.0.0.1:*,tcp://10.0.0.0/8:7601,tcp://0.0.0.0/0:1");
    finish();
    set("control.allow", "tcp://10.1.*");
    unfinished("control.allow[0]: `tcp://10.1.*` is not tcp://host:port, "
               "tcp://network/bits:port (a port may be *) or key");
    set("control.allow", "tcp://*:1");
    unfinished("control.allow[0]: `tcp://*:1` is not an address to connect to");
}

TEST(devices)
{
    begin(ROLE_LANGD);
    NONE_AT_END("transfer.devices", "has an empty name", "lo,", "eth0;");
    NONE_AT_END("transfer.devices", "has lo beside others", "e;lo", "lo,e");
    set("transfer.devices", "mlx5_0:1,eth0;mlx5_1:1,eth1");
    finish();
}

TEST(a_pace_is_no_stall)
{
    begin(ROLE_ENCODED);
    set("transfer.pace", "63KiB");
    unfinished("transfer.pace: 64512 bytes a second are taken for a stall; "
               "expected 0B or 64KiB and more");
}

TEST(transports_are_of_ucx)
{
    begin(ROLE_LANGD);
    set("transfer.carrier", "tcp");
    set("transfer.tls", "rc,sm");
    unfinished("transfer.tls: `rc,sm` needs transfer.carrier: auto or ucx");
    set("transfer.trusted_network", "true");
    set("transfer.carrier", "ucx");
    finish();
    set("transfer.carrier", "auto");
    finish();
    NONE_AT_END("transfer.tls",
        "has sysv, whose segments are open to the daemon's group; name posix",
        "tcp,sysv", "tcp,\\sysv");
    set("transfer.tls", "^sysv,ib");
    finish();
}

TEST(ucx_beside_keys_is_for_trusted_networks)
{
    begin(ROLE_LANGD);
    /* Also with transports of the host alone. */
    for (unsigned i = 0; i < 2; i++) {
        set("transfer.carrier", "ucx");
        unfinished("transfer.carrier: `ucx` beside control.keys needs "
                   "transfer.trusted_network: true; UCX neither proves a key "
                   "nor encrypts, and any program that reaches its port can "
                   "end the daemon");
        set("transfer.tls", "posix");
    }
    set("transfer.trusted_network", "true");
    finish();
    set("transfer.trusted_network", "false");
    set("transfer.carrier", "auto");
    finish();
}

TEST(encryption_needs_keys_and_tcp)
{
    static const char *const words[] = {"on", "aes-256"};

    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        begin(ROLE_LANGD);
        set("transfer.encrypt", words[i]);
        finish();
        set("transfer.trusted_network", "true");
        set("transfer.carrier", "ucx");
        unfinished("transfer.encrypt: `on` and `aes-256` cannot go by carrier "
                   "ucx");
        conf.control_keys.count = 0;
        set("insecure", "true");
        unfinished("transfer.encrypt: `on` and `aes-256` need control.keys");
    }
}

TEST(ports_and_cores)
{
    begin(ROLE_LANGD);
    set("transfer.ports", "20000-20001");
    finish();
    set("transfer.shards", "3");
    unfinished("transfer.ports: `20000-20001` are 2 ports, transfer.shards "
               "needs 3");
    NONE_AT_END("transfer.ports", "is not first-last, 1 to 65535",
        "20001-20000", "0-20000", "1-x", "x-1", "20000");
    set("transfer.ports", "");
    set("transfer.cpus", "0,1,2");
    finish();
    set("transfer.cpus", "0,1,x");
    unfinished("transfer.cpus[2]: `x` is not a core's number");
    set("transfer.cpus", "0,1,2,3");
    unfinished("transfer.cpus: 4 cores for 3 shards");
}

TEST(names_and_modes)
{
    begin(ROLE_LANGD);
    NONE_AT_END("name", LETTERS, "a/b");
    set("name", "a");
    NONE_AT_END("socket.mode", "is not an octal mode such as 0660", "0888",
        "4755", "660");
    set("socket.mode", "0777");
    set("socket.orders", "/run/mmx/admin/l.sock");
    unfinished("socket.orders: `/run/mmx/admin/l.sock` lies in the folder of "
               "socket.path, which engines mount: give it another one");
    set("socket.orders", "");
    set("socket.path", "l.sock");
    unfinished("socket.orders: is missing; none can be made of socket.path "
               "`l.sock`");
    set("socket.orders", "admin/l.sock");
    finish();
}

/* printing */

static const char *print(bool comments)
{
    struct writer w = writer_of(printed, sizeof(printed) - 1);

    T_TRUE(conf_print(&conf, comments, &w));
    printed[w.len] = 0;
    return printed;
}

/* What is printed is read back as the same values. */
static void round_trip(bool comments)
{
    static struct conf back;
    char path[512];
    FILE *f;

    snprintf(path, sizeof(path), "%s/c.yaml", t_dir());
    f = fopen(path, "w");
    T_TRUE(f != NULL);
    fputs(print(comments), f);
    fclose(f);
    conf_init(&back, conf.role);
    T_CHECK(
        yaml_load(path, &back, &error) == OK, "%s in\n%s", error.text, printed);
    T_EQ_MEM(&back, &conf, sizeof(conf));
}

TEST(print_and_read)
{
    conf_init(&conf, ROLE_LANGD);
    round_trip(false);
    begin(ROLE_LANGD);
    round_trip(false);
    round_trip(true);
    for (char name[] = " "; name[0] < 0x7f; name[0]++) {
        set("name", name);
        round_trip(false);
    }
    set("socket.group", "null");
    round_trip(false);
    begin(ROLE_LANGD);
    set("name", "two words \"and\" a \\ # : - [x]");
    set("socket.group", "-");
    set("socket.path", "run:");
    set("log", "warn");
    set("insecure", "true");
    set("timeouts.total", "90m");
    set("timeouts.retry", "1001ms");
    set("limits.aux_total", "65537B");
    set("control.allow", "tcp://127.0.0.1:*,tcp://[::]/0:*");
    set("pools[1].name", "second");
    set("pools[1].blocks", "3");
    set("pools[1].uids", "1,2");
    set("pools[1].gids", "3");
    set("pools[1].huge_pages", "true");
    set("peers[1].name", "x");
    set("peers[1].address", "tcp://[::1]:1");
    round_trip(false);
    round_trip(true);
    T_HAS(printed, "total: 90m\n");
    T_HAS(printed, "retry: 1001ms\n");
    T_HAS(printed, "aux_total: 65537B\n");
}

TEST(print_without_room)
{
    char text[100];
    struct writer w = writer_of(text, sizeof(text));

    begin(ROLE_LANGD);
    T_FALSE(conf_print(&conf, true, &w));
}

TEST(lines_are_short)
{
    begin(ROLE_LANGD);
    for (const char *p = print(true); *p;) {
        size_t n = strcspn(p, "\n");

        T_CHECK(n <= 80, "%zu columns: %.*s", n, (int)n, p);
        p += n + (p[n] == '\n');
    }
}

/* the sample files */

static void sample(uint8_t role)
{
    begin(role);
    set("pools[0].layout", "embedding:bf16:2352");
}

static void check_sample(uint8_t role, const char *path)
{
    static char text[65536];
    FILE *f;
    size_t n;

    sample(role);
    print(true);
    f = fopen(path, "r");
    T_CHECK(f != NULL, "cannot open %s: run from the repository's root", path);
    n = fread(text, 1, sizeof(text) - 1, f);
    text[n] = 0;
    fclose(f);
    for (const char *a = text, *b = printed; *a || *b;) {
        size_t x = strcspn(a, "\n"), y = strcspn(b, "\n");

        T_CHECK(x == y && memcmp(a, b, x) == 0,
            "%s has\n  %.*s\nand conf.def says\n  %.*s\n"
            "make samples writes it anew",
            path, (int)x, a, (int)y, b);
        a += x + (a[x] == '\n');
        b += y + (b[y] == '\n');
    }
    conf_init(&conf, role);
    T_CHECK(yaml_load(path, &conf, &error) == OK, "%s", error.text);
    finish();
}

TEST(sample_of_encoded)
{
    check_sample(ROLE_ENCODED, "conf/mmx-encoded.yaml");
}

TEST(sample_of_langd)
{
    check_sample(ROLE_LANGD, "conf/mmx-langd.yaml");
}

/* Checks that the two sides of a pair have the same values where they must. */
static void check_pair(const char *encoded, const char *langd)
{
    static struct conf e;

    conf_init(&e, ROLE_ENCODED);
    T_CHECK(yaml_load(encoded, &e, &error) == OK, "%s", error.text);
    T_CHECK(conf_finish(&e, "host", &error) == OK, "%s", error.text);
    conf_init(&conf, ROLE_LANGD);
    T_CHECK(yaml_load(langd, &conf, &error) == OK, "%s", error.text);
    finish();
    T_EQ_STR(conf.peers[0].address, e.control_advertise);
    T_EQ_STR(conf.pools[0].name, e.pools[0].name);
    T_EQ_STR(conf.pools[0].layout, e.pools[0].layout);
    T_TRUE(strcmp(conf.socket_path, e.socket_path) != 0);
}

TEST(sample_pairs)
{
    check_pair("conf/mmx-encoded.yaml", "conf/mmx-langd.yaml");
    check_pair("conf/dev-encoded.yaml", "conf/dev-langd.yaml");
}
