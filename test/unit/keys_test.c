/* keys_test.c - key files: what is accepted, and what is refused with which
 * words. */
#include "io/keys.h"
#include "test/t.h"

#include <sys/stat.h>

/* A pair of keys from libzmq's documentation. */
#define SECRET "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
#define PUBLIC "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
#define OTHER  "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"

static struct keys *keys;
static struct conf_error error;
static uint32_t bad;

static const char *path(const char *name)
{
    static char out[4][512];
    static unsigned next;
    char *p = out[next++ % 4];

    snprintf(p, sizeof(out[0]), "%s/%s", t_dir(), name);
    return p;
}

static const char *file(const char *name, const char *text, mode_t mode)
{
    const char *at = path(name);
    FILE *f = fopen(at, "w");

    T_TRUE(f);
    fputs(text, f);
    fclose(f);
    T_EQ_U64((uint64_t)chmod(at, mode), 0);
    return at;
}

static gid_t engines = 4003; /* the group of the socket */

static enum err load(const char *a, const char *b)
{
    struct conf_list l = {.count = b ? 2 : 1};

    snprintf(l.items[0], sizeof(l.items[0]), "%s", a);
    snprintf(l.items[1], sizeof(l.items[1]), "%s", b ? b : "");
    bad = 77;
    return keys_load(&keys, &l, geteuid(), engines, &bad, &error);
}

static void refused(const char *at, const char *why)
{
    char text[640];

    T_ERR(load(at, NULL), ERR_MALFORMED);
    snprintf(text, sizeof(text), "control.keys[0]: %s: %s", at, why);
    T_EQ_STR(error.text, text);
    T_EQ_U64(bad, 0);
    T_CHECK(!strstr(error.text, "JTKVSB"), "the key is in: %s", error.text);
}

TEST(pair)
{
    T_OK(load(file("a", SECRET "\n", 0640), file("b", OTHER, 0600)));
    T_EQ_U64(keys->count, 2);
    T_EQ_STR(keys->pairs[0].public, PUBLIC);
    T_EQ_STR(keys->pairs[0].secret, SECRET);
    T_EQ_U64(keys_find(keys, keys->pairs[1].public_bytes), 1);
    T_EQ_U64(keys_find(keys, (const uint8_t *)SECRET), NONE);
    keys_free(&keys);
    T_TRUE(!keys);
}

TEST(files_that_are_none)
{
    refused(path("none"), "does not exist; `mmxctl keygen FILE` writes a key");
    refused(
        file("empty", "", 0600), "is empty; `mmxctl keygen FILE` writes a key");
    T_EQ_U64((uint64_t)symlink(file("a", SECRET, 0600), path("link")), 0);
    refused(path("link"), "is a link; expected the file itself");
    refused(path("."), "is not a regular file");
    T_EQ_U64((uint64_t)mkfifo(path("fifo"), 0600), 0);
    refused(path("fifo"), "is not a regular file");
}

TEST(modes)
{
    static const mode_t open_[] = {0644, 0641, 0642, 0777};

    for (size_t i = 0; i < ARRAY_LEN(open_); i++)
        refused(file("a", SECRET, open_[i]),
            "is open to all users; expected mode 0640 or 0600");
    refused(file("a", SECRET, 0660),
        "may be written by its group; expected mode 0640 or 0600");
    T_OK(load(file("a", SECRET, 0440), NULL)); /* as systemd lays credentials */
    keys_free(&keys);
}

TEST(owners)
{
    const char *at = file("a", SECRET, 0640);

    if (geteuid() != 0)
        t_skip("giving a file away needs root");
    T_EQ_U64((uint64_t)chown(at, 4001, 0), 0);
    refused(at, "belongs to another user; expected root or this daemon's own");
}

TEST(what_engines_could_read)
{
    const char *at = file("a", SECRET, 0640);

    if (geteuid() != 0)
        t_skip("giving a file away needs root");
    T_EQ_U64((uint64_t)chown(at, 0, engines), 0);
    refused(at, "may be read by ? (4003), the group of socket.path, which "
                "engines join; expected mode 0600");
    engines = 0;
    T_EQ_U64((uint64_t)chown(at, 0, engines), 0);
    refused(at, "may be read by root (0), the group of socket.path, which "
                "engines join; expected mode 0600");
    T_EQ_U64((uint64_t)chmod(at, 0600), 0);
    T_OK(load(at, NULL));
    keys_free(&keys);
}

#define NO_KEY                                                                 \
    "is not a key; expected one line of 40 characters, as `mmxctl keygen "     \
    "FILE` writes it"

TEST(texts)
{
    refused(file("a", "JTKVSB", 0600), NO_KEY);
    refused(file("a", SECRET "\n\n", 0600), NO_KEY);
    refused(file("a", SECRET "x", 0600), NO_KEY);
    refused(
        file("a", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh\xc3", 0600), NO_KEY);
    refused(file("a", "metadata\ncurve\n    secret-key = \"JTKVSB\"\n", 0600),
        NO_KEY);
}

TEST(twice)
{
    char text[640];
    const char *b = file("b", SECRET "\n", 0600);

    T_ERR(load(file("a", SECRET, 0600), b), ERR_MALFORMED);
    snprintf(text, sizeof(text),
        "control.keys[1]: %s: holds a key that is listed before", b);
    T_EQ_STR(error.text, text);
    T_EQ_U64(bad, 1);
}

TEST(credentials)
{
    (void)file("fleet.key", SECRET, 0440);
    setenv("CREDENTIALS_DIRECTORY", t_dir(), 1);
    T_OK(load("fleet.key", NULL));
    keys_free(&keys);
    setenv("CREDENTIALS_DIRECTORY", "", 1);
    T_ERR(load("no-such.key", NULL), ERR_MALFORMED);
    T_EQ_STR(error.text, "control.keys[0]: /etc/mmx/no-such.key: does not "
                         "exist; `mmxctl keygen FILE` writes a key");
}

/* control.identities */

#define THIRD "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"

/* Loads control.identities with this text, for langd-0, whose key is PUBLIC. */
static enum err identify(const char *text, mode_t mode)
{
    static struct conf c;

    conf_init(&c, ROLE_LANGD);
    snprintf(c.name, sizeof(c.name), "langd-0");
    snprintf(c.control_identities, sizeof(c.control_identities), "%s",
        file("who", text, mode));
    keys_free(&keys);
    T_OK(load(file("own", SECRET, 0600), NULL));
    return keys_load_lines(keys, &c, geteuid(), &error);
}

#define OWN "langd-0 langd " PUBLIC "\n"

TEST(identities)
{
    T_OK(identify("# the fleet\n\n" OWN "enc0\t encoded " THIRD "\r\n"
                  "enc1 encoded " OTHER,
        0644));
    T_EQ_U64(keys_count(keys), 3);
    T_EQ_STR(keys_public(keys, 1), THIRD);
    T_EQ_U64(keys_find(keys, keys->lines[2].public_bytes), 2);
    T_EQ_U64(keys_find(keys, (const uint8_t *)SECRET), NONE);
    T_EQ_STR(keys_owner(keys, 1)->name, "enc0");
    T_EQ_U64(keys_owner(keys, 1)->role, ROLE_ENCODED);
    T_EQ_U64(keys_owner(keys, 0)->role, ROLE_LANGD);
    T_EQ_U64(keys_owner(keys, NONE)->role, ROLE_ANY);
    /* a langd's key is not accepted as an encoder's */
    T_EQ_U64(keys_next(keys, 0, ""), 1);
    T_EQ_U64(keys_next(keys, 3, ""), 1);
    T_EQ_U64(keys_next(keys, 0, "enc1"), 2);
    T_EQ_U64(keys_next(keys, 0, "langd-0"), NONE);
    T_EQ_U64(keys_fitting(keys, ""), 2);
    keys_free(&keys);
}

TEST(files_of_identities_that_are_none)
{
    static const struct {
        const char *text, *why;
    } of[] = {
        {"", "has no line of this daemon; expected `langd-0 langd " PUBLIC "`"},
        {"langd-1 langd " PUBLIC, "has no line of this daemon; expected"},
        {"langd-0 encoded " PUBLIC, "has no line of this daemon; expected"},
        {OWN "enc0 encoder " THIRD,
            "line 2: expected `NAME encoded|langd KEY`"},
        {OWN "enc0 encoded", "line 2: expected `NAME"},
        {OWN "\nenc0 encoded " THIRD " x", "line 3: expected `NAME"},
        {OWN "enc0 encoded " THIRD "a", "line 2: that is no key; expected"},
        {OWN "enc0 encoded Yne@$w", "line 2: that is no key; expected"},
        {OWN "enc0 encoded " PUBLIC, "line 2: a key that is listed before"},
        {"\xff langd " PUBLIC, "line 1: a name has 1 to 63 bytes"},
    };

    for (size_t i = 0; i < ARRAY_LEN(of); i++) {
        T_ERR(identify(of[i].text, 0644), ERR_MALFORMED);
        T_CHECK(strstr(error.text, of[i].why), "%s", error.text);
        T_CHECK(!strstr(error.text, SECRET), "the key is in: %s", error.text);
    }
    T_ERR(identify(OWN, 0664), ERR_MALFORMED);
    T_TRUE(strstr(error.text, "may be written by others than its owner"));
    keys_free(&keys);
}
