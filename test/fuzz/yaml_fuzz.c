/* yaml_fuzz.c - configuration files with any content.
 *
 * The first byte chooses the role, the rest is the file. Holds: a refusal says
 * what is wrong; a configuration that is accepted can be printed, and the
 * printed text is accepted and prints the same. The file is a memfd, as the
 * loader takes a path. One thread. */
#include "base/check.h"
#include "io/yaml.h"

#include "wire/wire.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static struct conf first, second;
static char printed[YAML_FILE_MAX], again[YAML_FILE_MAX];
static char path[32];
static int fd = -1;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_file(const void *p, size_t n)
{
    if (fd < 0) {
        fd = memfd_create("mmx.yaml", MFD_CLOEXEC);
        CHECK(fd >= 0, "memfd");
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    }
    CHECK(ftruncate(fd, 0) == 0, "ftruncate");
    CHECK(pwrite(fd, p, n, 0) == (ssize_t)n, "%zu bytes", n);
}

static enum err load(struct conf *c, uint8_t role)
{
    struct conf_error e = {0, 0, ""};
    enum err rc;

    conf_init(c, role);
    rc = yaml_load(path, c, &e);
    if (rc == OK)
        rc = conf_finish(c, "host", &e);
    CHECK(rc == OK || e.text[0], "%s without a word", err_name(rc));
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct writer a = writer_of(printed, sizeof(printed));
    struct writer b = writer_of(again, sizeof(again));
    uint8_t role;

    if (size == 0)
        return 0;
    role = ROLE_LANGD - (data[0] & 1);
    write_file(data + 1, size - 1);
    if (load(&first, role) != OK)
        return 0;
    if (!conf_print(&first, false, &a))
        return 0;
    write_file(printed, a.len);
    CHECK(load(&second, role) == OK, "what was printed: %.*s", (int)a.len,
        printed);
    CHECK(conf_print(&second, false, &b), "%zu bytes before", a.len);
    CHECK(a.len == b.len && memcmp(printed, again, a.len) == 0, "%.*s",
        (int)b.len, again);
    return 0;
}
