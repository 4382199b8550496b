/* ucx_probe_test.c - what UCX has to pass before it is chosen, above all that
 * it notices when memory is unmapped. * UCX reads UCX_MEM_EVENTS when it is
 * loaded, so each case is a process of its own: this program again, which
 * prints the answer. */
#include "io/data/ucx.h"
#include "test/t.h"

#include <sys/prctl.h>

/* The hooks of UCX and of the thread sanitizer together end the process. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define HOOKS false
#else
#define HOOKS true
#endif

#define ASK "MMX_TEST_PROBE" /* variable: the transports to ask for */

#ifndef PR_SET_MDWE
#define PR_SET_MDWE              65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

static __attribute__((constructor)) void answer(void)
{
    const char *tls = getenv(ASK);
    struct ucx_offer offer;
    bool cache, offered;

    if (!tls)
        return;
    cache = ucx_cache_works();
    offered = ucx_probe(&offer, tls);
    printf("cache %d, offer %d: %s\n", cache, offered, offer.why_not);
    fflush(stdout);
    _exit(0);
}

/* Returns the program's answer with this value of UCX_MEM_EVENTS. */
static const char *ask(const char *events, const char *tls)
{
    static char text[512];
    char program[256] = "", command[512];
    FILE *f;

    T_TRUE(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0);
    snprintf(command, sizeof(command), "UCX_MEM_EVENTS=%s " ASK "=%s exec '%s'",
        events, tls, program);
    f = popen(command, "r");
    T_TRUE(f != NULL);
    do /* UCX prints lines of its own first */
        T_TRUE(fgets(text, sizeof(text), f) != NULL);
    while (strncmp(text, "cache", 5) != 0);
    T_EQ_I64(pclose(f), 0);
    return text;
}

static bool too_old(void)
{
    unsigned major, minor, release;

    ucp_get_version(&major, &minor, &release);
    return major == 1 && minor < 14;
}

TEST(a_cache_that_works)
{
    const char *said;

    if (!HOOKS)
        t_skip("UCX has no registration cache under this sanitizer");
    said = ask("y", "posix,cma");
    T_HAS(said, "cache 1");
    T_HAS(said, too_old() ? "ends the process" : "offer 1");
}

/* As the units of hosts set it. Transports that copy need no cache. */
TEST(without_a_cache_ucx_is_not_offered)
{
    const char *said = ask("n", "posix,cma");

    T_HAS(said, "cache 0, offer 0");
    T_HAS(said, too_old() ? "ends the process" : "registration cache");
    said = ask("n", "posix,tcp");
    T_HAS(said, too_old() ? "offer 0" : "offer 1");
}

/* With MemoryDenyWriteExecute UCX's hooks cannot patch code. */
TEST(where_code_cannot_be_changed_there_is_no_cache)
{
    if (!HOOKS)
        t_skip("UCX has no registration cache under this sanitizer");
    if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0)
        t_skip("a kernel without PR_SET_MDWE");
    T_HAS(ask("y", "posix,cma"), "cache 0, offer 0");
}

/* UCX lists lo for its TCP transport. */
TEST(devices_are_those_that_ucx_lists)
{
    static const char *const none[] = {"", "l", "lo:1", "nosuch_0:1"};

    T_TRUE(data_ucx_device(span_str("lo")));
    T_TRUE(data_ucx_device(span_str("mlx5_*:1")));
    for (size_t i = 0; i < ARRAY_LEN(none); i++)
        T_CHECK(!data_ucx_device(span_str(none[i])), "`%s`", none[i]);
}

TEST(an_offer_names_release_transports_and_devices)
{
    struct ucx_offer o = {.version = "1.22",
        .transports = "rc_mlx5,dc_mlx5",
        .devices = "mlx5_0:1,mlx5_1:1"};
    char text[128];

    ucx_offer_text(&o, text, sizeof(text));
    T_EQ_STR(text, "1.22 rc_mlx5,dc_mlx5 on mlx5_0:1,mlx5_1:1");
    o.devices[0] = 0; /* shared memory by name */
    ucx_offer_text(&o, text, sizeof(text));
    T_EQ_STR(text, "1.22 rc_mlx5,dc_mlx5");
    o.transports[0] = 0;
    ucx_offer_text(&o, text, sizeof(text));
    T_EQ_STR(text, "1.22");
}

/* The probe on any host: its answer must be consistent. */
TEST(what_ucx_is_worth)
{
    struct ucx_offer any, named, none;

    if (!ucx_probe(&any, "tcp"))
        T_TRUE(any.why_not[0] != 0);
    T_TRUE(any.version[0] == '1' && any.version[1] == '.');
    T_FALSE(ucx_probe(&none, "no-such-transport"));
    T_TRUE(none.why_not[0] != 0);
    if (ucx_probe(&named, "posix,tcp"))
        T_EQ_STR(named.transports, "posix");
    else
        T_TRUE(strstr(named.why_not, "ends the process") != NULL);
}
