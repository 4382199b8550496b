/* mem_room.c - see mem_room.h. Reads files of the kernel, keeps no state.
 * Rejected: sysinfo(), which shows neither reclaimable memory nor control
 * groups. */
#include "io/mem/mem_room.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads the number behind `key` and `sep` at a line's start in the file. */
static bool number_in(
    const char *path, const char *key, const char *sep, uint64_t *out)
{
    FILE *f = fopen(path, "re");
    char line[256];
    size_t n = strlen(key), m = strlen(sep);
    bool found = false;
    char *end = NULL;
    uint64_t v = 0;

    if (!f)
        return false;
    while (!found && fgets(line, sizeof(line), f)) {
        if (strncmp(line, key, n) != 0 || strncmp(line + n, sep, m) != 0)
            continue;
        v = strtoull(line + n + m, &end, 10);
        found = end != line + n + m;
    }
    fclose(f);
    if (found)
        *out = v;
    return found;
}

bool mem_room_info(const char *key, uint64_t *out)
{
    return number_in("/proc/meminfo", key, ":", out);
}

/* Returns the bytes that one control group leaves. */
static uint64_t group_room(const char *root, const char *group, bool now)
{
    char path[PATH_MAX];
    uint64_t max, used, cache = 0;

    snprintf(path, sizeof(path), "%s%s/memory.max", root, group);
    if (!number_in(path, "", "", &max))
        return UINT64_MAX; /* "max", or the controller is off */
    if (!now)
        return max;
    snprintf(path, sizeof(path), "%s%s/memory.current", root, group);
    if (!number_in(path, "", "", &used))
        return UINT64_MAX;
    snprintf(path, sizeof(path), "%s%s/memory.stat", root, group);
    (void)number_in(path, "inactive_file", " ", &cache);
    used -= min_u64(used, cache);
    return max > used ? max - used : 0;
}

/* Reads the control group's name, "/system.slice/x.service". False: no group of
 * version 2. */
static bool group_of(const char *self, char *out, size_t size)
{
    FILE *f = fopen(self, "re");
    char line[PATH_MAX];
    bool found = false;

    if (!f)
        return false;
    while (!found && fgets(line, sizeof(line), f)) {
        found = strncmp(line, "0::/", 4) == 0 && strlen(line + 3) < size;
        if (found)
            memcpy(out, line + 3, strlen(line + 3) + 1);
    }
    fclose(f);
    if (found)
        out[strcspn(out, "\n")] = 0;
    return found;
}

uint64_t mem_room_cgroup(const char *self, const char *root, bool now)
{
    char group[PATH_MAX / 2];
    uint64_t room = UINT64_MAX;
    char *end;

    if (!group_of(self, group, sizeof(group)))
        return room;
    while ((end = strrchr(group, '/')) != NULL) {
        room = min_u64(room, group_room(root, group, now));
        *end = 0;
    }
    /* In a namespace, its own root counts too. */
    return min_u64(room, group_room(root, "", now));
}
