/* screen.c - draws on a terminal: its size, keys at each press, and the
 * terminal's alternate screen, so that its text is not lost. The terminal is
 * restored at every exit but SIGKILL. One thread; signals set flags.
 *
 * Rejected: ncurses. A dozen lines of text need four escape sequences, which
 * all terminals of the last decades know. */
#include "ctl.h"

#include "base/check.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define WIDTH_MAX   512
#define PLAIN_WIDTH 80
/* If a key has further bytes, they come within this time. */
#define REST_MS 50

static volatile sig_atomic_t ended, resized;
static struct termios before;

static void on_signal(int number)
{
    if (number == SIGWINCH)
        resized = 1;
    else
        ended = 1;
}

int screen_width(void)
{
    struct winsize w;

    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) != 0 ||
        w.ws_col == 0)
        return 0;
    return w.ws_col < WIDTH_MAX ? w.ws_col : WIDTH_MAX;
}

void screen_again(const struct asked *a, const char *what)
{
    if (a->watch_s && screen_width())
        printf("\033[H\033[2Jevery %llu s: %s\n\n",
            (unsigned long long)a->watch_s, what);
}

static void measure(struct screen *s)
{
    struct winsize w = {0};
    int width = screen_width();

    s->width = width ? width : PLAIN_WIDTH;
    s->height = 0x7fff;
    if (s->live && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_row > 0)
        s->height = w.ws_row;
    resized = 0;
}

void screen_open(struct screen *s, bool live)
{
    static const int signals[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGWINCH};
    struct sigaction act = {.sa_handler = on_signal};
    struct termios raw;

    *s = (struct screen){.live = live && tcgetattr(STDIN_FILENO, &before) == 0};
    if (live)
        for (size_t i = 0; i < ARRAY_LEN(signals); i++)
            sigaction(signals[i], &act, NULL);
    measure(s);
    if (!s->live)
        return;
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    raw.c_cc[VSUSP] = _POSIX_VDISABLE;
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
    fputs("\033[?1049h\033[?25l", stdout);
}

void screen_close(struct screen *s)
{
    if (!s->live)
        return;
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
    s->live = false;
}

void screen_begin(struct screen *s)
{
    if (resized)
        measure(s);
    s->line = 0;
    if (s->live) /* shown at once, if the terminal supports it */
        fputs("\033[?2026h\033[H", stdout);
}

void screen_line(struct screen *s, const char *format, ...)
{
    char text[WIDTH_MAX + 1];
    va_list args;
    int len;

    CHECK(s->width > 0 && s->width <= WIDTH_MAX, "%d columns", s->width);
    if (s->line >= s->height)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    len = (int)strnlen(text, (size_t)s->width);
    while (len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80)
        len--; /* not inside a character */
    while (!s->live && len > 0 && text[len - 1] == ' ')
        len--;
    /* A line feed after the last line would scroll. Each line is cleared before
     * it is written, since clearing after a full line would erase its last
     * character. */
    if (s->live)
        printf("%s\033[K%.*s", s->line ? "\r\n" : "", len, text);
    else
        printf("%.*s\n", len, text);
    s->line++;
}

void screen_end(struct screen *s)
{
    if (s->live && s->line < s->height)
        fputs("\r\n\033[J", stdout);
    if (s->live)
        fputs("\033[?2026l", stdout);
    fflush(stdout);
}

/* Reads a further byte of a key. False: none in time. */
static bool rest_of(unsigned char *byte)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};

    return poll(&in, 1, REST_MS) == 1 && read(STDIN_FILENO, byte, 1) == 1;
}

/* Reads the rest after an ESC: nothing, or for instance the rest of an arrow,
 * which is ignored. */
static int escape(void)
{
    unsigned char byte;

    if (!rest_of(&byte))
        return SCREEN_ESC;
    if (byte == '[' || byte == 'O')
        while (rest_of(&byte) && (byte < '@' || byte > '~'))
            ;
    return 0;
}

int screen_key(struct screen *s, int ms)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    unsigned char key;
    int n;

    if (ended)
        return -1;
    n = poll(&in, s->live ? 1 : 0, ms);
    if (ended || (n < 0 && errno != EINTR))
        return -1;
    if (n <= 0)
        return 0;
    if (read(STDIN_FILENO, &key, 1) != 1)
        return -1;
    return key == SCREEN_ESC ? escape() : key;
}
