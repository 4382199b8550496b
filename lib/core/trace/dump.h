/* dump.h - happenings as text in a crash. It only writes to memory and calls
 * nothing that is unsafe in a signal handler. Pure; any thread. */
#ifndef MMX_CORE_TRACE_DUMP_H
#define MMX_CORE_TRACE_DUMP_H

#include "core/trace/recorder.h"

/* Text of a fixed size; longer text is cut. */
struct line {
    char *p;
    size_t len, cap;
};

void line_text(struct line *l, const char *text);
void line_number(struct line *l, uint64_t number);
void line_hex(struct line *l, uint64_t number);
/* Appends ".." and the last 8 digits of a room's id, as in the log and for
 * `mmxctl trace`. They are too few to request a room with a random id. */
void line_room(struct line *l, uint64_t id);

/* Appends a happening and a line feed. now_ns: end of its age. */
void dump_happening(struct line *l, const struct happening *h, uint64_t now_ns);

#endif
