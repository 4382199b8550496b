/* keys.c - reads key files and checks them: a secret is refused if others can
 * read or replace it. A file that systemd passes as a credential is not
 * checked. Stateless except for its result; any thread.
 *
 * Invariants: the contents of a file are wiped from memory before the return,
 * valid or not; no text of a file is ever in a message. The file is opened
 * once, so that the checked file is the one that is read.
 *
 * Rejected: certificate files of CZMQ (a public key that can differ from its
 * secret, and a format of its own), and a folder of keys (order must say which
 * one listeners use). */
#include "io/keys.h"

#include "base/check.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

/* Names without a slash are in this folder, unless systemd provides one. */
#define KEYS_FOLDER "/etc/mmx"

void keys_path(const char *file, char *out, size_t size)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY");

    if (strchr(file, '/'))
        snprintf(out, size, "%s", file);
    else
        snprintf(
            out, size, "%s/%s", folder && *folder ? folder : KEYS_FOLDER, file);
}

static const char *open_to(gid_t engines)
{
    static __thread char text[160];
    char bytes[1024];
    struct group g, *known = NULL;

    (void)getgrgid_r(engines, &g, bytes, sizeof(bytes), &known);
    snprintf(text, sizeof(text),
        "may be read by %.32s (%u), the group of socket.path, which engines "
        "join; expected mode 0600",
        known ? known->gr_name : "?", (unsigned)engines);
    return text;
}

/* Returns why the open file is not trusted; NULL: it is. */
static const char *judge(const struct stat *s, uid_t own, gid_t engines)
{
    if (!S_ISREG(s->st_mode))
        return "is not a regular file";
    if (s->st_uid != 0 && s->st_uid != own && own != (uid_t)-1)
        return "belongs to another user; expected root or this daemon's own";
    if (s->st_mode & S_IRWXO)
        return "is open to all users; expected mode 0640 or 0600";
    if (s->st_mode & (S_IWGRP | S_IXGRP))
        return "may be written by its group; expected mode 0640 or 0600";
    if ((s->st_mode & S_IRGRP) && s->st_gid == engines)
        return open_to(engines);
    if (s->st_size == 0)
        return "is empty; `mmxctl keygen FILE` writes a key";
    return NULL;
}

#define NO_KEY                                                                 \
    "is not a key; expected one line of 40 characters, as `mmxctl keygen "     \
    "FILE` writes it"

const char *keys_read_pair(int fd, struct key_pair *k)
{
    char text[KEY_TEXT + 2] = "";
    const char *why = NO_KEY;
    uint8_t bytes[32];
    ssize_t n = read(fd, text, sizeof(text));

    if (n < 0)
        why = strerror(errno);
    if (n == KEY_TEXT || (n == KEY_TEXT + 1 && text[KEY_TEXT] == '\n')) {
        text[KEY_TEXT] = 0;
        memcpy(k->secret, text, sizeof(k->secret));
        if (strlen(text) == KEY_TEXT && zmq_z85_decode(bytes, text) &&
            zmq_curve_public(k->public, k->secret) == 0 &&
            zmq_z85_decode(k->public_bytes, k->public))
            why = NULL;
    }
    explicit_bzero(text, sizeof(text));
    explicit_bzero(bytes, sizeof(bytes));
    return why;
}

static const char *load_one(
    const char *path, uid_t own, gid_t engines, struct key_pair *k)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const char *why;
    struct stat s;

    if (fd < 0 && errno == ELOOP)
        return "is a link; expected the file itself";
    if (fd < 0 && errno == ENOENT)
        return "does not exist; `mmxctl keygen FILE` writes a key";
    if (fd < 0)
        return strerror(errno);
    why = fstat(fd, &s) == 0 ? judge(&s, own, engines) : strerror(errno);
    if (!why)
        why = keys_read_pair(fd, k);
    close(fd);
    return why;
}

static struct keys *take_memory(void)
{
    struct keys *k = mmap(NULL, sizeof(*k), PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (k == MAP_FAILED)
        return NULL;
    (void)madvise(k, sizeof(*k), MADV_DONTDUMP);
    (void)mlock(k, sizeof(*k)); /* as far as RLIMIT_MEMLOCK allows */
    return k;
}

static const char *load_next(
    struct keys *k, const char *path, uid_t own, gid_t engines)
{
    struct key_pair *pair = &k->pairs[k->count];
    const char *why = load_one(path, own, engines, pair);

    if (why)
        return why;
    if (k->count > 0 && keys_find(k, pair->public_bytes) != NONE)
        return "holds a key that is listed before";
    k->count++;
    return NULL;
}

enum err keys_load(struct keys **out, const struct conf_list *files, uid_t own,
    gid_t engines, uint32_t *bad, struct conf_error *e)
{
    struct keys *k = take_memory();
    char path[4096 + 128];
    enum err r;

    CHECK(files->count > 0 && files->count <= CONF_KEYS_MAX, "%u key files",
        files->count);
    *bad = NONE;
    if (!k || !zmq_has("curve")) {
        snprintf(e->text, sizeof(e->text), "control.keys: %s",
            k ? "this libzmq was built without CURVE" : "no memory");
        r = k ? ERR_VERSION : ERR_NO_BLOCKS;
        keys_free(&k);
        return r;
    }
    for (uint32_t i = 0; i < files->count; i++) {
        const char *why;

        keys_path(files->items[i], path, sizeof(path));
        why = load_next(k, path, own, engines);
        if (!why)
            continue;
        *bad = i;
        snprintf(e->text, sizeof(e->text), "control.keys[%u]: %.200s: %.200s",
            i, path, why);
        keys_free(&k);
        return ERR_MALFORMED;
    }
    *out = k;
    return OK;
}

void keys_free(struct keys **out)
{
    struct keys *k = *out;

    *out = NULL;
    if (!k)
        return;
    free(k->lines);
    explicit_bzero(k, sizeof(*k));
    munmap(k, sizeof(*k));
}
