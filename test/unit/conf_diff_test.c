/* conf_diff_test.c - two configurations compared: what differs, and what a
 * reload makes of it. */
#include "core/conf/conf.h"
#include "test/t.h"

static struct conf conf; /* large; every case has its own process */
static struct conf_error error;

static void set(const char *path, const char *value)
{
    T_CHECK(
        conf_set(&conf, path, span_str(value), &error) == OK, "%s", error.text);
}

static void finish(void)
{
    T_CHECK(conf_finish(&conf, "host", &error) == OK, "%s", error.text);
}

static struct conf other;
static struct {
    char key[80], was[CONF_CHANGE_TEXT], is[CONF_CHANGE_TEXT];
    const char *left;
} changes[64];
static unsigned changes_count;

static void take_change(void *ud, const char *key, const char *was,
    const char *is, const char *left)
{
    T_TRUE(changes_count < ARRAY_LEN(changes));
    snprintf(changes[changes_count].key, sizeof(changes->key), "%s", key);
    snprintf(changes[changes_count].was, sizeof(changes->was), "%s", was);
    snprintf(changes[changes_count].is, sizeof(changes->is), "%s", is);
    changes[changes_count++].left = left;
}

/* Makes two finished configurations of langd that are equal. */
static void two(void)
{
    conf_init(&conf, ROLE_LANGD);
    set("control.keys", "fleet.key");
    set("pools[0].name", "vit");
    set("pools[0].blocks", "64");
    set("pools[0].uids", "1000,1001");
    set("peers[0].name", "a");
    set("peers[0].address", "tcp://10.0.0.1:1");
    set("peers[1].name", "b");
    set("peers[1].address", "tcp://10.0.0.2:1");
    set("control.allow", "tcp://10.0.0.9:1");
    finish();
    other = conf;
}

/* Compares conf, the file as read, with `other`, which is in force. */
static void compare(void)
{
    finish();
    changes_count = 0;
    conf_diff(&other, &conf, take_change, NULL);
}

static void differs(
    unsigned i, const char *key, const char *was, const char *is, bool left)
{
    T_CHECK(i < changes_count, "%u changes", changes_count);
    T_EQ_STR(changes[i].key, key);
    T_EQ_STR(changes[i].was, was);
    T_EQ_STR(changes[i].is, is);
    T_CHECK((changes[i].left != NULL) == left, "%s: %s", key,
        changes[i].left ? changes[i].left : "not left");
}

/* Reloads conf, the file as read, over `other`; afterwards nothing differs. */
static void reload(void)
{
    conf_keep(&conf, &other);
    finish();
    conf_take(&other, &conf);
    changes_count = 0;
    conf_diff(&other, &conf, take_change, NULL);
    T_EQ_U64(changes_count, 0);
}

/* RULES 9.7 */
TEST(a_difference_of_each_kind)
{
    two();
    compare();
    T_EQ_U64(changes_count, 0);
    set("log", "debug");                            /* NAMES */
    set("socket.group", "video");                   /* TEXT */
    set("control.allow[1]", "tcp://10.1.0.0/16:*"); /* LIST */
    set("transfer.shards", "2");                    /* COUNT */
    set("transfer.trusted_network", "true");        /* BOOL */
    set("timeouts.total", "90s");                   /* TIME */
    set("limits.inbox", "2MiB");                    /* SIZE */
    set("pools[0].uids", "1000");                   /* LIST of a pool */
    set("pools[0].blocks", "99");                   /* COUNT of a pool */
    compare();
    T_EQ_U64(changes_count, 9);
    differs(0, "log", "info", "debug", false);
    differs(1, "socket.group", "\"\"", "video", true);
    differs(2, "control.allow", "tcp://10.0.0.9:1",
        "tcp://10.0.0.9:1, tcp://10.1.0.0/16:*", false);
    differs(3, "transfer.shards", "1", "2", true);
    differs(4, "transfer.trusted_network", "false", "true", true);
    differs(5, "timeouts.total", "5m", "90s", false);
    differs(6, "limits.inbox", "16MiB", "2MiB", false);
    differs(7, "pools[0].blocks", "64", "99", true);
    differs(8, "pools[0].uids", "1000, 1001", "1000", false);
    reload();
    T_EQ_U64(other.log_level, 3);
    T_EQ_U64(other.timeout_total, 90 * NS_PER_S);
    T_EQ_U64(other.control_allow.count, 2);
    T_EQ_U64(other.pools[0].uids.count, 1);
    T_EQ_U64(other.pools[0].blocks, 64);
    T_EQ_U64(other.transfer_shards, 1);
    T_EQ_STR(other.socket_group, "");
    T_TRUE(!other.transfer_trusted_network);
}

TEST(who_has_a_key_is_let_in_where_there_are_keys)
{
    two();
    set("control.allow[1]", "key");
    compare();
    differs(
        0, "control.allow", "tcp://10.0.0.9:1", "tcp://10.0.0.9:1, key", false);
    set("control.keys", "");
    set("insecure", "true");
    T_EQ_U64(conf_finish(&conf, "host", &error), ERR_MALFORMED);
    T_EQ_STR(error.text,
        "control.allow[1]: `key` needs control.keys, there are none");
}

TEST(a_long_value_is_cut)
{
    char path[32], item[64];

    two();
    for (int i = 0; i < 9; i++) {
        snprintf(path, sizeof(path), "control.allow[%d]", i);
        snprintf(item, sizeof(item), "tcp://encoder-number-%d.example:7601", i);
        set(path, item);
    }
    compare();
    T_EQ_U64(changes_count, 1);
    T_EQ_U64(strlen(changes[0].is), CONF_CHANGE_TEXT - 1);
    T_HAS(changes[0].is, "...");
}

/* RULES 9.7 */
TEST(peers_are_by_name)
{
    struct conf_peer swap;

    two();
    swap = conf.peers[0];
    conf.peers[0] = conf.peers[1];
    conf.peers[1] = swap;
    compare();
    T_EQ_U64(changes_count, 0);
    conf.peers_count = 1; /* a has left, b has moved, c is new */
    set("peers[0].address", "tcp://10.0.0.3:1");
    set("peers[1].name", "c");
    set("peers[1].address", "tcp://10.0.0.4:1");
    compare();
    T_EQ_U64(changes_count, 3);
    differs(0, "peers: a", "tcp://10.0.0.1:1", "", false);
    differs(1, "peers: b", "tcp://10.0.0.2:1", "tcp://10.0.0.3:1", false);
    differs(2, "peers: c", "", "tcp://10.0.0.4:1", false);
    reload();
    T_EQ_U64(other.peers_count, 2);
    T_EQ_STR(other.peers[1].name, "c");
}

/* RULES 9.7 */
TEST(other_pools_need_a_restart)
{
    two();
    set("pools[0].name", "another");
    set("pools[0].uids", "");
    set("log", "warn");
    compare();
    T_EQ_U64(changes_count, 2);
    differs(1, "pools", "1 pools", "1 pools", true);
    reload();
    T_EQ_U64(other.pools[0].uids.count, 2);
    T_EQ_U64(other.log_level, 1);
}

TEST(with_keys_or_without_is_for_the_whole_run)
{
    two();
    set("insecure", "true");
    set("control.keys", "");
    compare();
    T_EQ_U64(changes_count, 2);
    differs(0, "insecure", "false", "true", true);
    differs(1, "control.keys", "fleet.key", "", true);
    reload();
    T_TRUE(!other.insecure && conf_secure(&other));
}

/* A new value must fit the values that stay until a restart. */
/* RULES 9.7 */
TEST(a_limit_that_stays_is_held_against_what_comes)
{
    two();
    other.limit_peers = 2;
    set("peers[2].name", "c");
    set("peers[2].address", "tcp://10.0.0.3:1");
    compare();
    conf_keep(&conf, &other);
    T_EQ_U64(conf_finish(&conf, "host", &error), ERR_MALFORMED);
    T_EQ_STR(error.text, "peers: 3 are more than limits.peers, 2");
}
