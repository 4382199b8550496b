/* crash_test.c - what is written in a crash: whole lines, from fixed memory,
 * the last events of the recorder and no others. */
#include "core/trace/dump.h"
#include "core/trace/trace.h"
#include "node/crash.h"
#include "test/t.h"

#include <signal.h>
#include <sys/mman.h>

static struct recorder recorder;

static void add(uint64_t ns, uint64_t room, unsigned kind, unsigned of,
    uint32_t peer, uint32_t a, uint32_t b)
{
    *recorder_next(&recorder) =
        (struct happening){ns, room, a, b, 7, happening_tag(kind, of, peer)};
}

static const char *line_of(const struct happening *h, uint64_t now_ns)
{
    static char text[256];
    struct line l = {text, 0, sizeof(text) - 1};

    dump_happening(&l, h, now_ns);
    text[l.len] = 0;
    return text;
}

TEST(a_happening_is_a_line)
{
    add(5000000, 0xab, HAPPENED_SENT, PEER_LENGTH, 3, 12, 300);
    T_EQ_STR(line_of(&recorder.at[0], 6234567),
        "-1.234 ms room ..000000ab sent length peer 3 seq 12 rows 300\n");
    add(6000000, 1, HAPPENED_ENDED, 0, NONE, ERR_TIMEOUT, ROWS_UNKNOWN);
    T_EQ_STR(line_of(&recorder.at[1], 6000000),
        "-0.000 ms room ..00000001 ended reason timeout\n");
    /* an entry that is half written */
    add(1, UINT64_MAX, 255, 255, NONE, 0, 0);
    T_EQ_STR(line_of(&recorder.at[2], 0),
        "-0.000 ms room ..ffffffff unknown unknown\n");
}

TEST(a_line_ends_where_its_memory_does)
{
    char text[8];
    struct line l = {text, 0, sizeof(text)};

    line_text(&l, "sixteen bytes is");
    line_number(&l, 12345);
    line_hex(&l, 1);
    T_EQ_U64(l.len, sizeof(text));
    T_TRUE(memcmp(text, "sixteen ", 8) == 0);
}

/* Returns the report of this number of happenings. */
static const char *report(uint32_t happenings, const struct event *ev)
{
    static char text[1u << 20];
    const struct event *now = ev;
    struct crash_view view = {&recorder, &now};
    int fd = memfd_create("crash", MFD_CLOEXEC);
    ssize_t n;

    T_TRUE(fd >= 0);
    for (uint32_t i = 0; i < happenings; i++)
        add(i, i, HAPPENED_LANDED, 0, 1, i, i);
    crash_report(fd, SIGSEGV, &view);
    n = pread(fd, text, sizeof(text) - 1, 0);
    T_TRUE(n > 0);
    text[n] = 0;
    close(fd);
    return text;
}

static uint32_t lines(const char *text)
{
    uint32_t n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

TEST(few_happenings_are_all_there)
{
    const char *text = report(2, NULL);

    T_EQ_U64(lines(text), 3 + 2);
    T_TRUE(strstr(text, "SIGSEGV in thread ") != NULL);
    T_TRUE(strstr(text, "in no event") != NULL);
    T_TRUE(strstr(text, "the last 2 happenings") != NULL);
    T_TRUE(lines(report(0, NULL)) == 3 + 2);
}

TEST(of_many_the_last_are)
{
    struct peer_msg m = {.type = PEER_ACK, .room = 0x77, .generation = 9};
    struct event ev = {.type = EV_PEER, .link = 4, .peer = &m};
    const char *text = report(RECORDER_SIZE + 10, &ev);

    T_EQ_U64(lines(text), 3 + CRASH_HAPPENINGS);
    T_TRUE(strstr(text, "event `peer's message`, link 4, message ack, room "
                        "..00000077") != NULL);
    T_TRUE(strstr(text, "rows 65545 total 65545\n") != NULL);
    T_TRUE(strstr(text, "rows 65290 total 65290\n") != NULL);
    T_TRUE(strstr(text, "rows 65289 ") == NULL);
}
