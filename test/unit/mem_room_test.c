/* mem_room_test.c - memory that control groups leave, out of files that look
 * like the kernel's. */
#include "io/mem/mem_room.h"
#include "test/t.h"

#include <sys/stat.h>

static void put(const char *name, const char *text)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", t_dir(), name);
    f = fopen(path, "w");
    T_TRUE(f != NULL);
    fputs(text, f);
    fclose(f);
}

static void group(const char *name)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", t_dir(), name);
    T_EQ_I64(mkdir(path, 0700), 0);
}

static void begin(void)
{
    group("a.slice");
    group("a.slice/mmx.service");
    put("self", "1:name=systemd:/x\n0::/a.slice/mmx.service\n");
}

static uint64_t room(void)
{
    char self[512];

    snprintf(self, sizeof(self), "%s/self", t_dir());
    return mem_room_cgroup(self, t_dir(), true);
}

TEST(no_limit_is_known)
{
    begin();
    T_TRUE(room() == UINT64_MAX);
    put("a.slice/mmx.service/memory.max", "max\n");
    put("a.slice/mmx.service/memory.current", "5000\n");
    T_TRUE(room() == UINT64_MAX);
    put("self", "5:memory:/old\n");
    T_TRUE(room() == UINT64_MAX);
    T_TRUE(mem_room_cgroup("/nowhere", t_dir(), true) == UINT64_MAX);
}

/* F39 */
TEST(the_narrowest_group_counts)
{
    char self[512];

    begin();
    put("a.slice/mmx.service/memory.max", "10000\n");
    put("a.slice/mmx.service/memory.current", "4000\n");
    T_EQ_U64(room(), 6000);
    put("a.slice/mmx.service/memory.stat", "anon 1\ninactive_file 500\n");
    T_EQ_U64(room(), 6500);
    put("a.slice/memory.max", "9000\n");
    put("a.slice/memory.current", "8000\n");
    T_EQ_U64(room(), 1000);
    snprintf(self, sizeof(self), "%s/self", t_dir());
    T_EQ_U64(mem_room_cgroup(self, t_dir(), false), 9000);
    put("memory.max", "700\n");
    put("memory.current", "800\n");
    T_EQ_U64(room(), 0);
}

TEST(meminfo)
{
    uint64_t n = 0;

    T_TRUE(mem_room_info("MemTotal", &n) && n > 0);
    T_FALSE(mem_room_info("MemTota", &n));
}
