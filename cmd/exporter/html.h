/* html.h - shared by the files of the page. */
#ifndef MMX_CMD_EXPORTER_HTML_H
#define MMX_CMD_EXPORTER_HTML_H

#include "exporter.h"

#define HTML_VALUE 256

extern const char page_style[];

/* html.c: prints */

enum html_unit { TIMES, SIZES, COUNTS }; /* us, bytes */

/* Prints a number in a suitable unit, with three digits. */
void html_measure(FILE *out, enum html_unit unit, double value);
/* Prints the bounds of a number. low or high 0: no such bound. */
void html_range(FILE *out, enum html_unit unit, double low, double high);
/* Text, escaped. */
void html_text(FILE *out, const char *s);
/* Prints HTML in which {COLUMN} is the text of the row's cell, escaped;
 * {#COLUMN} is a count, {~COLUMN} a time in us, {%COLUMN} a size, {@COLUMN} an
 * age in s, in ms if the name says so, and {!COLUMN} a state in its colour. A
 * missing cell prints nothing. */
void html_row(FILE *out, const char *html, struct reader row);

/* Copies the value of a row's column; returns out. */
static inline const char *value_of(
    struct reader row, const char *column, char out[HTML_VALUE])
{
    rows_get(row, column, out, HTML_VALUE);
    return out;
}

#endif
