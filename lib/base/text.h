/* text.h - makes texts of other programs safe to pass on: to engines that
 * decode strictly, to reports, terminals and logs. Pure; any thread. */
#ifndef MMX_BASE_TEXT_H
#define MMX_BASE_TEXT_H

#include "base/bytes.h"

/* Returns the length of the first character of n > 0 bytes if it is valid
 * UTF-8 and no control character, else 0. */
size_t text_char(const char *p, size_t n);
/* True if s has only such characters. */
bool text_is_clean(struct span s);
/* Replaces each byte that is not part of such a character with '?'. */
void text_clean(char *p, size_t n);
/* Copies s, cleaned, and ends it with 0. Text beyond size bytes is cut off
 * before a character. */
void text_copy(struct span s, char *out, size_t size);

/* True if `word` is one of the comma-separated words of list. */
bool text_lists(const char *list, const char *word);

/* Cuts the part before the first c off *s, and the c. False: there is no c. */
bool text_cut(struct span *s, char c, struct span *head);

/* True if all of s is a decimal number up to max, in its only spelling. */
MUST_CHECK bool text_number(struct span s, uint64_t max, uint64_t *out);

#endif
