/* mem.c - the kinds of memory in this build, by the names that a pool's
 * `memory` key uses. Constant data, any thread. A registry filled at run time
 * was rejected: there are few kinds, and a list that can be read is better. */
#include "io/mem.h"

#include <string.h>

const struct mem_ops *mem_kind(const char *name)
{
    static const struct mem_ops *const kinds[] = {&mem_host};

    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (strcmp(kinds[i]->name, name) == 0)
            return kinds[i];
    return NULL;
}
