/* yaml_test.c - reading files: their shapes, and the exact place of everything
 * that is refused. */
#include "wire/wire.h"
#include "io/yaml.h"
#include "test/t.h"

#include <sys/stat.h>

static struct conf conf, defaults; /* large; each case is a process */
static struct conf_error error;
static char path[512];

static enum err load_bytes(uint8_t role, const void *text, size_t len)
{
    FILE *f;

    snprintf(path, sizeof(path), "%s/f.yaml", t_dir());
    f = fopen(path, "w");
    T_TRUE(f && fwrite(text, 1, len, f) == len && fclose(f) == 0);
    conf_init(&conf, role);
    return yaml_load(path, &conf, &error);
}

static void good(const char *text)
{
    T_CHECK(load_bytes(ROLE_LANGD, text, strlen(text)) == OK, "%s in\n%s",
        error.text, text);
}

/* Checks that the file is refused at line:column with this text. */
static void bad_bytes(const void *bytes, size_t len, unsigned line,
    unsigned column, const char *text)
{
    char wanted[1024];

    T_CHECK(load_bytes(ROLE_LANGD, bytes, len) == ERR_MALFORMED,
        "accepted:\n%.*s", (int)len, (const char *)bytes);
    snprintf(wanted, sizeof(wanted), "%s:%u:%u: %s", path, line, column, text);
    T_EQ_STR(error.text, wanted);
    T_EQ_U64(error.line, line);
    T_EQ_U64(error.column, column);
}

static void bad(
    const char *yaml, unsigned line, unsigned column, const char *text)
{
    bad_bytes(yaml, strlen(yaml), line, column, text);
}

TEST(nothing_is_all_defaults)
{
    static const char *const empty[] = {
        "", "\n", "# words\n", "---\n", "---\n...\n", "{}\n"};

    conf_init(&defaults, ROLE_LANGD);
    for (size_t i = 0; i < ARRAY_LEN(empty); i++) {
        good(empty[i]);
        T_EQ_MEM(&conf, &defaults, sizeof(conf));
    }
}

TEST(every_shape)
{
    good("name: a\n"
         "transfer:\n"
         "  shards: 3\n"
         "  cpus: [ 1, \"2\", '3' ]\n"
         "pools:\n"
         "  - name: p\n"
         "    blocks: 4\n"
         "    uids:\n"
         "      - 1000\n"
         "      - 1001\n"
         "  - {name: q, blocks: 5}\n"
         "peers:\n"
         "- name: e\n"
         "  address: tcp://127.0.0.1:1\n");
    T_EQ_STR(conf.name, "a");
    T_EQ_U64(conf.transfer_shards, 3);
    T_EQ_U64(conf.transfer_cpus.count, 3);
    T_EQ_STR(conf.transfer_cpus.items[1], "2");
    T_EQ_U64(conf.pools_count, 2);
    T_EQ_STR(conf.pools[0].uids.items[1], "1001");
    T_EQ_U64(conf.pools[1].blocks, 5);
    T_EQ_U64(conf.peers_count, 1);
    T_EQ_STR(conf.peers[0].address, "tcp://127.0.0.1:1");
}

TEST(json_is_yaml)
{
    good("{\"name\": \"a\", \"transfer\": {\"cpus\": [\"1\"]}, \"insecure\": "
         "true}");
    T_EQ_STR(conf.name, "a");
    T_TRUE(conf.insecure);
}

TEST(place_of_a_key)
{
    char wanted[640];

    good("control:\n  keys:\n  - a\n  - b\n");
    snprintf(error.text, sizeof(error.text), "control.keys[1]: is none");
    yaml_place(path, &conf, "control.keys[1]", &error);
    snprintf(wanted, sizeof(wanted), "%s:4:5: control.keys[1]: is none", path);
    T_EQ_STR(error.text, wanted);
    T_EQ_U64(error.line, 4);
    snprintf(error.text, sizeof(error.text), "control.keys[2]: is none");
    yaml_place(path, &conf, "control.keys[2]", &error); /* given by --set */
    T_EQ_STR(error.text, "control.keys[2]: is none");
}

/* Returns the line and column of an error about the key. */
static const char *placed(const char *key)
{
    static char text[64];

    snprintf(error.text, sizeof(error.text), "is none");
    error.line = error.column = 0;
    yaml_place(path, &conf, key, &error);
    snprintf(text, sizeof(text), "%u:%u", error.line, error.column);
    return text;
}

TEST(place_of_lists_and_items)
{
    good("transfer:\n  cpus: [1, 2]\n  tls: rc\npools:\n- name: a\n"
         "- name: b\n  blocks: 4\n");
    T_EQ_STR(placed("transfer.tls"), "3:8");
    T_EQ_STR(placed("transfer.cpus"), "2:9");
    T_EQ_STR(placed("pools"), "5:1");
    T_EQ_STR(placed("pools[1].blocks"), "7:11");
    /* of the pool without that key */
    T_EQ_STR(placed("pools[0].blocks"), "5:3");
    T_EQ_STR(placed("transfer.ports"), "0:0");
    T_EQ_STR(placed("pools[2].blocks"), "0:0");
    T_EQ_STR(placed("peers[0].name"), "0:0");
}

TEST(commented_out_lists_are_empty)
{
    good("name:\npools:\n#  - name: a\npeers: []\ntransfer:\n  cpus:\nlog: warn"
         "\n");
    T_EQ_U64(conf.pools_count, 0);
    T_EQ_U64(conf.transfer_cpus.count, 0);
    T_EQ_U64(conf.log_level, 1);
    good("transfer:\nlog: warn\n");
    T_EQ_U64(conf.log_level, 1);
}

TEST(lists_replace)
{
    static const char text[] = "pools:\n- name: b\n  blocks: 9\n";
    FILE *f;

    good("pools:\n- name: a\n  blocks: 1\n- name: c\n  blocks: 1\n"
         "transfer:\n  cpus: [1, 2]\n");
    f = fopen(path, "w");
    T_TRUE(f != NULL);
    fputs(text, f);
    fclose(f);
    T_OK(yaml_load(path, &conf, &error));
    T_EQ_U64(conf.pools_count, 1);
    T_EQ_STR(conf.pools[0].name, "b");
    T_EQ_U64(conf.transfer_cpus.count, 2);
}

TEST(values_are_text_to_us)
{
    good("name: 0123\nsocket:\n  mode: 0600\n  group: true\n");
    T_EQ_STR(conf.name, "0123");
    T_EQ_STR(conf.socket_mode, "0600");
    T_EQ_STR(conf.socket_group, "true");
    good("name: \"\\u00e9\"\n");
    T_EQ_STR(conf.name, "\xc3\xa9");
    good("name: >-\n  folded\n");
    T_EQ_STR(conf.name, "folded");
}

TEST(unknown_keys)
{
    bad("pool:\n  - name: a\n", 1, 1,
        "unknown key `pool`; there are name log insecure socket control "
        "transfer "
        "timeouts limits pools peers");
    bad("name: a\ntransfer:\n  shards: 1\n  shrads: 1\n", 4, 3,
        "unknown key `transfer.shrads`; there are shards carrier tls devices "
        "ports streams stall encrypt trusted_network same_host "
        "cpus");
    bad("pools:\n  - name: a\n    block: 3\n", 3, 5,
        "unknown key `pools[0].block`; there are name memory blocks block_rows "
        "default_blocks max_room_blocks layout engine_access uids gids "
        "huge_pages numa");
    bad("control:\n  listen: tcp://127.0.0.1:1\n", 2, 3,
        "`control.listen` is a key of mmx-encoded, not of mmx-langd");
    bad("<<: {}\n", 1, 1, "`<<` is not a key: keys are lower-case words");
    bad("transfer.shards: 1\n", 1, 1,
        "`transfer.shards` is not a key: keys are lower-case words");
    bad("\"\": 1\n", 1, 1, "`` is not a key: keys are lower-case words");
    bad("Name: 1\n", 1, 1, "`Name` is not a key: keys are lower-case words");
    bad("[a]: 1\n", 1, 1, "expected a key");
    bad("name: a\n? {b: c}\n: 1\n", 2, 3, "expected a key");
}

TEST(values_out_of_range)
{
    bad("transfer:\n  shards: 0\n", 2, 11,
        "transfer.shards: `0` is not a number from 1 to 64");
    bad("transfer:\n  shards:\n", 2, 10,
        "transfer.shards: `` is not a number from 1 to 64");
    bad("transfer: {cpus: [1, '']}\n", 1, 22,
        "transfer.cpus[1]: must not be empty");
    bad("insecure: yes\n", 1, 11, "insecure: `yes` is not true or false");
    bad("pools:\n- name: a\n- name: b\n  blocks: many\n", 4, 11,
        "pools[1].blocks: `many` is not a number from 1 to 16777216");
    bad("name: \"a\\0b\"\n", 1, 7, "name: `a?b` has control characters");
    bad("name: |\n  a\n  b\n", 1, 7, "name: `a?b?` has control characters");
    bad("name: null\n", 1, 7,
        "name: null is not a value; leave the key out for its default");
    bad("name: ~\n", 1, 7,
        "name: null is not a value; leave the key out for its default");
}

TEST(twice)
{
    bad("name: a\nlog: info\nname: b\n", 3, 1, "name: is given twice");
    bad("transfer:\n  tls: tcp\n  tls: tcp\n", 3, 3,
        "transfer.tls: is given twice");
    bad("pools: []\npools: []\n", 2, 1, "pools: is given twice");
    bad("pools:\n- name: a\n  name: b\n", 3, 3,
        "pools[0].name: is given twice");
    bad("transfer:\n  tls: tcp\ntransfer:\n  tls: tcp\n", 3, 1,
        "transfer: is given twice");
}

TEST(wrong_shapes)
{
    bad("- name\n", 1, 1, "expected keys at the top");
    bad("words\n", 1, 1, "expected keys at the top");
    bad("name: [a]\n", 1, 7, "name: expected a single value");
    bad("name: {a: b}\n", 1, 7, "name: expected a single value");
    bad("transfer: 3\n", 1, 11, "transfer: expected a map of keys");
    bad("transfer: [3]\n", 1, 11, "transfer: expected a map of keys");
    bad("pools: a\n", 1, 8, "pools: expected a list");
    bad("pools: {name: a}\n", 1, 8, "pools: expected a list");
    bad("pools:\n- a\n", 2, 3, "pools[0]: expected a map of keys");
    bad("pools:\n-\n", 2, 2, "pools[0]: expected a map of keys");
    bad("pools:\n- []\n", 2, 3, "pools[0]: expected a map of keys");
    bad("pools:\n- {}\n", 2, 3, "pools[0]: has no keys");
    bad("transfer:\n  cpus: 3\n", 2, 9, "transfer.cpus: expected a list");
    bad("transfer:\n  cpus: [[1]]\n", 2, 10,
        "transfer.cpus[0]: expected a single value");
    bad("transfer:\n  cpus: [{}]\n", 2, 10,
        "transfer.cpus[0]: expected a single value");
}

TEST(what_of_yaml_is_not_taken)
{
    bad("name: &x a\n", 1, 7, "anchors are not supported");
    bad("name: *x\n", 1, 7, "aliases are not supported");
    bad("name: !!str a\n", 1, 7, "tags are not supported");
    bad("name: !x a\n", 1, 7, "tags are not supported");
    bad("&a\nname: b\n", 1, 1, "anchors are not supported");
    bad("pools: &p\n- name: a\n", 1, 8, "anchors are not supported");
    bad("pools:\n- &p\n  name: a\n", 2, 3, "anchors are not supported");
    bad("name: a\n---\nname: b\n", 2, 1, "one document only");
    bad("name: a\n...\n---\n", 3, 1, "one document only");
}

/* The words are libyaml's and change with its version; only the place is
 * checked. */
static void broken(const char *yaml, unsigned line, unsigned column)
{
    char place[32];

    T_ERR(load_bytes(ROLE_LANGD, yaml, strlen(yaml)), ERR_MALFORMED);
    snprintf(place, sizeof(place), "f.yaml:%u:%u: ", line, column);
    T_HAS(error.text, place);
}

TEST(broken_yaml)
{
    broken("name: a\n\tlog: info\n", 2, 1);
    T_HAS(error.text, ":2:1: a tab: only spaces stand before a key");
    broken("# \xc3\xa4\npools:\n\t- name: a\n", 3, 1);
    T_HAS(error.text, ": a tab: ");
    broken("name: \"a\n", 2, 1);
    broken("name: a: b\n", 1, 8);
    broken("transfer: {shards: 1\n", 2, 1);
    broken("name: @a\n", 1, 7);
}

TEST(bytes_that_are_no_text)
{
    bad_bytes("name: a\nlog: \xff\n", 15, 2, 6, "invalid leading UTF-8 octet");
    bad_bytes(
        "name: a\nlog: \x01\n", 15, 2, 6, "control characters are not allowed");
    bad_bytes(
        "name: a\nlo\0g: a\n", 16, 2, 3, "control characters are not allowed");
}

TEST(deep_nesting_is_refused_at_the_first_level)
{
    static char text[100000];

    memset(text, '[', sizeof(text) - 1);
    bad(text, 1, 1, "expected keys at the top");
    memcpy(text, "pools: ", 7);
    bad(text, 1, 9, "pools[0]: expected a map of keys");
    memcpy(text, "nosuchkey: ", 11);
    T_ERR(load_bytes(ROLE_LANGD, text, sizeof(text) - 1), ERR_MALFORMED);
    for (size_t i = 0; i + 1 < sizeof(text); i++)
        text[i] = "{a: "[i % 4];
    bad(text, 1, 2,
        "unknown key `a`; there are name log insecure socket control transfer "
        "timeouts limits pools peers");
}

TEST(too_many)
{
    static char text[100000];
    size_t n = 0;

    n += (size_t)snprintf(text, sizeof(text), "pools:\n");
    for (unsigned i = 0; i <= CONF_POOLS_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "- name: p%u\n", i);
    bad(text, 2 + CONF_POOLS_MAX, 9, "pools[16].name: 16 pools at most");
    n = (size_t)snprintf(text, sizeof(text), "peers:\n");
    for (unsigned i = 0; i <= CONF_PEERS_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "- name: p%u\n", i);
    bad(text, 2 + CONF_PEERS_MAX, 9, "peers[256].name: 256 peers at most");
    n = (size_t)snprintf(text, sizeof(text), "control:\n  allow:\n");
    for (unsigned i = 0; i <= CONF_LIST_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "  - p%u\n", i);
    bad(text, 3 + CONF_LIST_MAX, 5, "control.allow[64]: 64 items at most");
}

TEST(large_files)
{
    static char text[YAML_FILE_MAX + 1];
    char wanted[600];

    memset(text, '\n', sizeof(text));
    T_OK(load_bytes(ROLE_LANGD, text, YAML_FILE_MAX));
    T_ERR(load_bytes(ROLE_LANGD, text, YAML_FILE_MAX + 1), ERR_MALFORMED);
    snprintf(wanted, sizeof(wanted), "%s: larger than 256 KiB", path);
    T_EQ_STR(error.text, wanted);
}

TEST(files_that_cannot_be_read)
{
    char wanted[600];

    snprintf(path, sizeof(path), "%s/none.yaml", t_dir());
    conf_init(&conf, ROLE_LANGD);
    T_ERR(yaml_load(path, &conf, &error), ERR_INTERNAL);
    snprintf(wanted, sizeof(wanted), "%s: No such file or directory", path);
    T_EQ_STR(error.text, wanted);
    T_EQ_U64(error.line, 0);
    T_ERR(yaml_load(t_dir(), &conf, &error), ERR_INTERNAL);
    snprintf(wanted, sizeof(wanted), "%s: Is a directory", t_dir());
    T_EQ_STR(error.text, wanted);
}

/* However a good file is cut or changed, the reader returns, with a place
 * whenever it refuses. */
TEST(damaged_files)
{
    static const char text[] = "name: a\ntransfer:\n  cpus: [1, 2]\npools:\n"
                               "  - name: p\n    blocks: 4\n    uids: []\n";
    char copy[sizeof(text)];
    uint64_t seed = 7;

    for (size_t n = 0; n < sizeof(text); n++)
        (void)!load_bytes(ROLE_LANGD, text, n);
    for (unsigned i = 0; i < 3000; i++) {
        memcpy(copy, text, sizeof(text));
        copy[t_rand_below(&seed, sizeof(text) - 1)] =
            "\0\t\n \"'&*!|>%@`#{}[],:-?x\x80\xff"[t_rand_below(&seed, 27)];
        if (load_bytes(ROLE_LANGD, copy, sizeof(text) - 1) != OK)
            T_CHECK(
                error.line > 0 && error.column > 0, "no place: %s", error.text);
    }
}
