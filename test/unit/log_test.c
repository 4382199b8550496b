/* log_test.c - log lines and their readers: a reader that hangs or is gone
 * loses lines, and stops no one. */
#include "base/log.h"
#include "test/t.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#define LINES 5000 /* more than a pipe or a socket holds */

/* Makes w stderr; returns the reader's end, r. */
static int redirect(int r, int w)
{
    T_TRUE(dup2(w, STDERR_FILENO) >= 0);
    close(w);
    T_EQ_I64(fcntl(r, F_SETFL, O_NONBLOCK), 0);
    return r;
}

static int by_pipe(void)
{
    int fds[2];

    T_EQ_I64(pipe(fds), 0);
    return redirect(fds[0], fds[1]);
}

static int by_socket(void)
{
    int fds[2];

    T_EQ_I64(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    return redirect(fds[0], fds[1]);
}

/* Returns all that can be read now, as text. */
static char *all_of(int fd)
{
    size_t cap = 1u << 22, n = 0;
    char *text = malloc(cap);
    ssize_t r;

    while ((r = read(fd, text + n, cap - n - 1)) > 0)
        n += (size_t)r;
    T_TRUE(r == 0 || errno == EAGAIN);
    text[n] = 0;
    return text;
}

static uint32_t lines_of(const char *text)
{
    uint32_t n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static void nobody_reads(int r)
{
    int flags = fcntl(STDERR_FILENO, F_GETFL);
    char *text, said[100];
    uint64_t lost;

    log_init("test", LOG_INFO);
    for (uint32_t i = 0; i < LINES; i++)
        log_info("line %u of those that are written", i);
    lost = log_unwritten();
    T_CHECK(lost > 0 && lost < LINES, "%lu lines lost", (unsigned long)lost);
    /* The flags are as they were, for other writers. */
    T_EQ_I64(fcntl(STDERR_FILENO, F_GETFL), flags);
    text = all_of(r);
    T_EQ_U64(lines_of(text), LINES - lost);
    free(text);
    log_info("at last");
    text = all_of(r);
    snprintf(said, sizeof(said), "%lu lines were lost", (unsigned long)lost);
    T_HAS(text, said);
    T_HAS(text, "test: at last\n");
    free(text);
    log_info("again");
    text = all_of(r);
    T_EQ_U64(lines_of(text), 1);
    free(text);
}

/* F36 */
TEST_IS(a_pipe_that_is_not_read_stops_nothing, nobody_reads(by_pipe()));
TEST_IS(a_socket_that_is_not_read_stops_nothing, nobody_reads(by_socket()));

/* As a daemon that has given up root: it may write to the pipe, but not open it
 * again. */
TEST(a_pipe_that_cannot_be_opened_again_stops_nothing)
{
    int r = by_pipe();

    T_EQ_I64(fchmod(STDERR_FILENO, 0), 0);
    if (geteuid() == 0)
        T_EQ_I64(seteuid(65534), 0);
    T_TRUE(open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK) < 0);
    nobody_reads(r);
    if (geteuid() != getuid()) /* the leak checker uses ptrace, as root */
        T_EQ_I64(seteuid(getuid()) | prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
}

/* F36 */
TEST(a_reader_that_is_gone_stops_nothing)
{
    int fds[2];

    T_EQ_I64(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    T_TRUE(dup2(fds[1], STDERR_FILENO) >= 0);
    log_init("test", LOG_INFO);
    close(fds[0]);
    log_info("nobody");
    T_EQ_U64(log_unwritten(), 1);
}

/* systemd says the journal's stream by device and inode: the variable may be
 * inherited while stderr is something else now. */
TEST(the_journal_gets_priorities_and_all_others_the_time)
{
    int r = by_pipe();
    char stream[64], *text;
    unsigned year, month, day, hour, minute, second, ms;
    struct stat st;
    time_t now = time(NULL);
    struct tm is;

    T_EQ_I64(fstat(STDERR_FILENO, &st), 0);
    for (unsigned off = 0; off < 2; off++) {
        snprintf(stream, sizeof(stream), "%llu:%llu",
            (unsigned long long)st.st_dev, (unsigned long long)st.st_ino + off);
        T_EQ_I64(setenv("JOURNAL_STREAM", stream, 1), 0);
        log_init("test", LOG_INFO);
        log_info("one");
        log_text("<2>two\n");
        text = all_of(r);
        if (off == 0) {
            T_EQ_STR(text, "<6>test: one\n<2>two\n");
            free(text);
            continue;
        }
        T_EQ_I64(sscanf(text, "%4u-%2u-%2uT%2u:%2u:%2u.%3uZ info test: one\n",
                     &year, &month, &day, &hour, &minute, &second, &ms),
            7);
        T_EQ_STR(strchr(text, '\n'), "\ntwo\n");
        is = (struct tm){.tm_year = (int)year - 1900,
            .tm_mon = (int)month - 1,
            .tm_mday = (int)day,
            .tm_hour = (int)hour,
            .tm_min = (int)minute,
            .tm_sec = (int)second};
        T_CHECK(timegm(&is) >= now && timegm(&is) <= now + 60, "%s", text);
        free(text);
    }
}
