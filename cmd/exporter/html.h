/* html.h - what the files of the page share. */
#ifndef MMX_CMD_EXPORTER_HTML_H
#define MMX_CMD_EXPORTER_HTML_H

#include "exporter.h"

#define HTML_VALUE 256

extern const char page_style[];

/* html.c: prints */

enum html_unit { TIMES, SIZES, COUNTS }; /* us, bytes */

/* A measure in the unit that fits, with three digits. */
void html_measure(FILE *out, enum html_unit unit, double value);
/* The bounds that it is known to lie between. low 0: none; high 0: none. */
void html_range(FILE *out, enum html_unit unit, double low, double high);
/* Text, escaped. */
void html_text(FILE *out, const char *s);
/* HTML in which {COLUMN} is the text of the row's cell, escaped; {#COLUMN} is a
 * count, {~COLUMN} a time in us, {%COLUMN} a size, {@COLUMN} an age in s, in ms
 * if the name says so, and {!COLUMN} a state in its colour. Of a cell that is
 * not there nothing is printed. */
void html_row(FILE *out, const char *html, struct reader row);

/* Copies the value of a row's column; returns out. */
static inline const char *value_of(
    struct reader row, const char *column, char out[HTML_VALUE])
{
    rows_get(row, column, out, HTML_VALUE);
    return out;
}

/* past.c */

/* A histogram as it is reported: running sums, and the bounds up to which. */
struct buckets {
    struct reader last;                    /* its row, which names it */
    double upto[BUCKETS], bounds[BUCKETS]; /* the last bound is 0: none */
};
/* Takes the next one from the rows of QUERY buckets. False: none. */
bool buckets_next(struct reader *rows, struct buckets *b);
/* Returns the first bucket up to which there are that part of all; BUCKETS:
 * there are none. */
uint32_t buckets_at(const double upto[BUCKETS], double part);
/* Prints the last minute of a daemon. */
void past_print(FILE *out, const struct past *p);

#endif
