/* html.h - what the files of the page share. */
#ifndef MMX_CMD_EXPORTER_HTML_H
#define MMX_CMD_EXPORTER_HTML_H

#include "exporter.h"

#define HTML_VALUE 256

extern const char page_style[];

/* html.c: prints */

/* Text, escaped. */
void html_text(FILE *out, const char *s);
/* A time in the unit that fits. */
void html_time(FILE *out, double us);
/* A long time, in whole seconds, minutes, hours or days. */
void html_age(FILE *out, double seconds);
void html_bytes(FILE *out, double bytes);
/* A count with its thousands apart. */
void html_count(FILE *out, double count);
/* The value of a row's column. */
void html_cell(FILE *out, struct reader row, const char *column);
/* The same, which may be broken behind its commas. */
void html_list(FILE *out, struct reader row, const char *column);
/* Opens a table; a heading that begins with # stands above numbers. NULL at the
 * end.
 */
void html_head(FILE *out, const char *const headings[]);
/* A state. kind: good, warn, bad or plain. */
void html_pill(FILE *out, const char *kind, const char *text);

/* bars.c: prints the last rooms of a daemon with bars of where their time went,
 * and what the colours mean. */
void bars_print(FILE *out, const struct daemon *d);

#endif
