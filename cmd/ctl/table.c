/* table.c - a report as a table, at most as wide as the terminal. The widths of
 * columns are known only after the last row, so a table takes two passes.
 * Without a terminal nothing is cut, and only as many columns are dropped as
 * lines of 80 columns require. One thread. */
#include "ctl.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* A table cuts longer values; JSON has all of it. */
#define CELL_MAX    104
#define COLUMNS_MAX 64
#define PLAIN_WIDTH 80 /* without a terminal */
#define WIDTH_MAX   512
#define TEXT_MIN    8 /* narrowest column of text */
/* Width that a column of text may have before other columns are dropped. */
#define TEXT_WISH 24
/* Width of a value beside its name. */
#define UPRIGHT(width) ((width) > 30 ? (width)-22 : 8)

struct column {
    struct span name;
    int width;
    bool number, filled, left_out;
    char cell[CELL_MAX]; /* in the row being printed */
};

struct table {
    bool upright;
    bool sized;           /* the row is about a counter of bytes */
    int width;            /* of the terminal; 0: no terminal */
    uint32_t count, last; /* last: index of the last cell's column, + 1 */
    bool fitted;          /* widths are final */
    struct column columns[COLUMNS_MAX];
};

/* Less important columns, in the order in which narrow terminals drop them. */
static const char *const details[] = {"epoch", "software", "layout", "mapped",
    "carriers", "data_addresses", "row_bytes", "block_rows", "memory", "number",
    "says", "same_host", "shares", "secret", "owes", "asked", "required",
    "attempt", "attempts", "resumes", "served", "failed", "released", "init_us",
    "length_us", "granted_us", "resumed_us", "committed_us", "ended", "granted",
    "kept", "waiting", "rooms_moved", "bytes_moved", "head_wait_max_us",
    "stands", "not_by", "first_us", "opened", "bytes"};

/* Returns the cell's column, a new one if needed; NULL: too many columns. The
 * search begins behind the last cell's column, where most rows continue. */
static struct column *column_of(struct table *t, const struct cell *c)
{
    uint32_t k = t->last, i = 0;

    while (i < t->count && !span_eq(t->columns[k % t->count].name, c->name))
        k++, i++;
    if (i == t->count && t->count == COLUMNS_MAX)
        return NULL;
    if (i == t->count) {
        k = t->count++;
        t->columns[k].name = c->name;
        t->columns[k].number = c->kind == CELL_NUMBER;
        t->columns[k].width = (int)c->name.len;
    }
    k %= t->count;
    CHECK(span_eq(t->columns[k].name, c->name), "column %u of %u", k, t->count);
    t->last = k + 1;
    return &t->columns[k];
}

/* True if the cell is a number of bytes. row_bytes is not: it is part of a
 * layout, and stays exact. */
static bool is_size(const struct table *t, const struct cell *c)
{
    size_t len = c->name.len;

    return c->kind == CELL_NUMBER &&
           (span_eq(c->name, span_str("bytes")) ||
               span_eq(c->name, span_str("bytes_moved")) ||
               (len > 6 && !memcmp(c->name.p + len - 6, "_bytes", 6) &&
                   !span_eq(c->name, span_str("row_bytes"))) ||
               (t->sized && span_eq(c->name, span_str("value"))));
}

/* Translates numbers for people: users and moments as names, and times with a
 * unit in the value instead of the column's name. `text` gets the value; "":
 * unchanged. */
static struct cell for_people(const struct cell *c, char text[NAMED_TEXT])
{
    static const struct {
        const char *ending;
        uint64_t ns;
    } times[] = {{"_ms", NS_PER_MS}, {"_s", NS_PER_S}};
    struct cell is = *c;
    const char *name;

    text[0] = 0;
    if (c->kind != CELL_NUMBER)
        return is;
    if (cell_named(c, &name, text)) {
        is.kind = CELL_TEXT;
        is.name = span_str(name);
        if (!strcmp(name, "opened"))
            clock_text(c->number, false, text);
        is.text = span_str(text);
    }
    for (size_t i = 0; i < ARRAY_LEN(times); i++) {
        size_t len = strlen(times[i].ending);

        if (c->name.len > len &&
            !memcmp(c->name.p + c->name.len - len, times[i].ending, len)) {
            is.name.len -= (uint32_t)len;
            age_text(c->number < UINT64_MAX / times[i].ns
                         ? c->number * times[i].ns
                         : UINT64_MAX,
                text);
            break;
        }
    }
    return is;
}

/* Fills in the cell's column, and widens it if needed. */
static void take_cell(struct table *t, const struct cell *given)
{
    char named[NAMED_TEXT];
    const struct cell is = for_people(given, named), *c = &is;
    bool cut = c->text.len >= CELL_MAX;
    struct column *column = column_of(t, c);
    char size[SIZE_TEXT];

    if (!column)
        return;
    if (c->kind == CELL_TEXT && span_eq(c->name, span_str("name")))
        t->sized = c->text.len > 6 && !memcmp(c->text.p, "bytes_", 6);
    if (is_size(t, c)) {
        size_text(c->number, size);
        snprintf(column->cell, CELL_MAX, "%s", size);
    } else if (named[0]) {
        text_copy(span_str(named), column->cell, CELL_MAX);
    } else {
        rows_text(c, column->cell, CELL_MAX - (cut ? 3 : 0));
    }
    if (cut)
        strcat(column->cell, "...");
    column->filled |= column->cell[0] != 0;
    if (!t->fitted && column->width < (int)strlen(column->cell))
        column->width = (int)strlen(column->cell);
}

/* Returns the width of a row if columns of text have text_max at most. */
static int width_of(const struct table *t, int text_max)
{
    int sum = -2;

    for (uint32_t i = 0; i < t->count; i++) {
        const struct column *c = &t->columns[i];

        if (!c->left_out)
            sum += 2 + (c->number || c->width < text_max ? c->width : text_max);
    }
    return sum;
}

static bool is_tight(const struct table *t)
{
    return width_of(t, TEXT_WISH) > (t->width ? t->width : PLAIN_WIDTH);
}

/* Drops empty columns, then details, until the row fits. */
static void leave_out(struct table *t)
{
    for (uint32_t i = 1; i < t->count && is_tight(t); i++)
        t->columns[i].left_out = !t->columns[i].filled;
    for (size_t k = 0; k < ARRAY_LEN(details) && is_tight(t); k++)
        for (uint32_t i = 0; i < t->count; i++)
            if (span_eq(t->columns[i].name, span_str(details[k])))
                t->columns[i].left_out = true;
}

/* Drops columns, then narrows columns of text, the widest first, then drops the
 * last columns, until a row fits the terminal. */
static void fit(struct table *t)
{
    t->fitted = true;
    leave_out(t);
    while (t->width && width_of(t, CELL_MAX) > t->width) {
        struct column *widest = NULL, *last = NULL;

        for (uint32_t i = 0; i < t->count; i++) {
            struct column *c = &t->columns[i];

            if (c->left_out)
                continue;
            last = c;
            if (!c->number && c->width > TEXT_MIN &&
                (!widest || c->width > widest->width))
                widest = c;
        }
        CHECK(last, "no column of %u is shown", t->count);
        if (widest)
            widest->width--;
        else if (last != t->columns)
            last->left_out = true;
        else
            return;
    }
}

/* Cuts the text to the width, and marks the cut. */
static void cut_to(char *cell, int width)
{
    int at = width - 1;

    CHECK(width > 0, "no column for %s", cell);
    if ((int)strlen(cell) <= width)
        return;
    while (at > 0 && ((unsigned char)cell[at] & 0xc0) == 0x80)
        at--;
    cell[at] = '~';
    cell[at + 1] = 0;
}

/* Prints the cells of one row and clears them. */
static void print_row(struct table *t)
{
    int pending = 0; /* spaces to print before the next text */

    for (uint32_t i = 0; i < t->count; i++) {
        struct column *c = &t->columns[i];
        int len, pad;

        if (c->left_out)
            continue;
        if (t->width)
            cut_to(c->cell, t->upright ? UPRIGHT(t->width) : c->width);
        len = (int)strlen(c->cell);
        pad = c->width - len;
        CHECK(pad >= 0, "%d columns for %s", c->width, c->cell);
        if (t->upright) {
            printf("%-20.*s  %s\n", (int)c->name.len, (const char *)c->name.p,
                c->cell);
        } else if (len == 0) {
            pending += c->width;
        } else {
            printf("%*s%s", pending + (c->number ? pad : 0), "", c->cell);
            pending = c->number ? 0 : pad;
        }
        pending += 2;
    }
    for (uint32_t i = 0; i < t->count; i++)
        t->columns[i].cell[0] = 0;
    if (!t->upright)
        putchar('\n');
}

static void print_head(struct table *t)
{
    for (uint32_t i = 0; i < t->count; i++)
        span_copy_str(t->columns[i].name, t->columns[i].cell, CELL_MAX);
    if (!t->upright && t->count)
        print_row(t);
}

/* Returns the size of the terminal at stdout; 0: it is not a terminal. */
static struct winsize screen(void)
{
    struct winsize w = {0};

    if (isatty(STDOUT_FILENO))
        (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
    return w;
}

static int screen_width(void)
{
    return (int)min_u32(screen().ws_col, WIDTH_MAX);
}

uint32_t screen_lines(void)
{
    return screen().ws_row;
}

void rows_again(const struct asked *a, const char *what)
{
    if (a->watch_s && screen_width())
        printf("\033[H\033[2Jevery %llu s: %s\n\n",
            (unsigned long long)a->watch_s, what);
}

void rows_table(struct reader rows, bool upright)
{
    struct table t = {.upright = upright, .width = screen_width()};
    struct reader rest = rows, row;
    uint32_t left_out = 0;
    struct cell c;

    while (cell_get(&rest, &c))
        if (c.kind != CELL_ROW)
            take_cell(&t, &c);
    if (!upright)
        fit(&t);
    print_head(&t);
    if (!t.count)
        puts("none");
    while (rows_next(&rows, &row)) {
        while (cell_get(&row, &c))
            take_cell(&t, &c);
        print_row(&t);
    }
    for (uint32_t i = 0; i < t.count; i++)
        left_out += t.columns[i].left_out && t.columns[i].filled;
    if (left_out)
        printf(
            "(%u more column%s: --json)\n", left_out, left_out == 1 ? "" : "s");
}
