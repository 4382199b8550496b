/* node_brain.c - the two brains behind one table of functions, so that the
 * rest of the body has no `if` about roles. Stateless; the loop's thread.
 * Rejected: more functions in struct brain_ops, which the simulator would
 * have to carry along without a use for them. */
#include "node/node_impl.h"

#define BRAIN(name)                                                            \
    static void *name##_make(struct slab *s, const struct brain_conf *c)       \
    {                                                                          \
        return name##_init(s, c);                                              \
    }                                                                          \
    static const struct layout *name##_layout_of(const void *b, uint32_t i)    \
    {                                                                          \
        return name##_layout(b, i);                                            \
    }                                                                          \
    static void name##_ready(                                                  \
        void *b, uint32_t i, bool ok, const uint64_t *offsets, uint64_t bytes) \
    {                                                                          \
        name##_pool_ready(b, i, ok, offsets, bytes);                           \
    }                                                                          \
    static void name##_share(                                                  \
        void *b, uint32_t i, const char *share, struct span handle)            \
    {                                                                          \
        name##_pool_share(b, i, share, handle);                                \
    }                                                                          \
    static const struct ended *name##_row(const void *b, uint64_t n)           \
    {                                                                          \
        return name##_ended(b, n);                                             \
    }                                                                          \
    static bool name##_known(const void *b, uint32_t link)                     \
    {                                                                          \
        return name##_link_known(b, link);                                     \
    }                                                                          \
    static const struct brain_kind name##_kind = {&name##_ops, name##_make,    \
        name##_layout_of, name##_ready, name##_share, name##_row,              \
        name##_known};

BRAIN(encoded)
BRAIN(langd)

const struct brain_kind *brain_kind(uint8_t role)
{
    return role == ROLE_ENCODED ? &encoded_kind : &langd_kind;
}
