/* keygen.c - mmxctl keygen: writes a new key, of the fleet or of one daemon, or
 * prints the public half of one, for control.identities. Any 32 random bytes
 * are a key.
 *
 * Rejected: an option to overwrite an existing file. It may have the only copy
 * of a key that is in use. */
#include "ctl.h"

#include "base/check.h"
#include "io/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CURVE_BYTES = 32, LINE_BYTES = CURVE_BYTES / 4 * 5 + 1 };

/* Writes Z85: five characters for four bytes. */
static void encode(const uint8_t bytes[CURVE_BYTES], char out[LINE_BYTES])
{
    static const char digits[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        ".-:+=^!/*?&<>()[]{}@%$#";

    _Static_assert(sizeof(digits) == 85 + 1, "Z85 has 85 digits");
    for (int i = 0; i < CURVE_BYTES / 4; i++) {
        const uint8_t *b = bytes + 4 * i;
        uint32_t v = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 |
                     (uint32_t)b[2] << 8 | b[3];

        for (int k = 4; k >= 0; k--, v /= 85)
            out[5 * i + k] = digits[v % 85];
    }
    out[LINE_BYTES - 1] = '\n';
}

static bool write_key(int fd)
{
    uint8_t bytes[CURVE_BYTES];
    char line[LINE_BYTES];
    bool ok = getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes);

    if (ok) {
        encode(bytes, line);
        ok = write(fd, line, sizeof(line)) == sizeof(line) && fsync(fd) == 0;
    }
    explicit_bzero(bytes, sizeof(bytes));
    explicit_bzero(line, sizeof(line));
    return ok;
}

/* Syncs the folder of the file, so that its name outlives a loss of power. */
static bool sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX] = ".";
    bool ok;
    int fd;

    if (slash)
        snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path + 1), path);
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ok = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Writes the key to a new file that only its owner may read. False: errno; the
 * file may exist. */
static bool write_file(const char *name)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok;

    if (fd < 0)
        return false;
    ok = fchmod(fd, 0600) == 0 && write_key(fd);
    return close(fd) == 0 && ok;
}

int keygen(const char *path)
{
    char name[PATH_MAX];
    bool ok;
    int n = snprintf(name, sizeof(name), "%s.%d", path, (int)getpid());

    CHECK(n > 0, "a name of %d bytes", n);
    errno = ENAMETOOLONG;
    /* The file gets its name last: a file of this name is a whole key. */
    ok = (size_t)n < sizeof(name) && write_file(name) &&
         link(name, path) == 0 && sync_folder(path);
    if (!ok)
        fprintf(stderr, "mmxctl: %s: %s\n", path, strerror(errno));
    if ((size_t)n < sizeof(name))
        unlink(name);
    if (!ok)
        return CTL_REFUSED;
    printf("%s: a new key, readable by its owner alone, for control.keys: of "
           "every daemon of the fleet, or of one, whose public key is a line "
           "of control.identities then\n",
        path);
    return CTL_SHOWN;
}

int keygen_public(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct key_pair k;
    const char *why = fd < 0 ? strerror(errno) : keys_read_pair(fd, &k);

    CHECK(path[0], "a key of no file");
    if (fd >= 0)
        close(fd);
    if (why)
        fprintf(stderr, "mmxctl: %s: %s\n", path, why);
    else
        puts(k.public);
    explicit_bzero(&k, sizeof(k));
    return why ? CTL_REFUSED : CTL_SHOWN;
}
