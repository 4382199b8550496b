/* context.h - the trace context that may come with a room: W3C's traceparent,
 * as text and as numbers. Pure; any thread. */
#ifndef MMX_WIRE_CONTEXT_H
#define MMX_WIRE_CONTEXT_H

#include "base/bytes.h"

#define TRACEPARENT_LEN 55

struct traceparent {
    uint64_t trace[2], parent;
    uint8_t version, flags;
};

/* Reads 00-<32 digits>-<16 digits>-<2 digits>, in lower case. False: the text
 * is something else (also if trace or parent are zero, or the version is ff).
 */
MUST_CHECK bool traceparent_read(struct span text, struct traceparent *out);
/* Writes it as text with a final zero byte. */
void traceparent_write(
    const struct traceparent *t, char out[TRACEPARENT_LEN + 1]);

#endif
