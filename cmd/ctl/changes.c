/* changes.c - what mmxctl prints of a reload, and of what one would change:
 * the keys that differ, or that none does. */
#include "ctl.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

bool changes_are(const char *what)
{
    return !strcmp(what, "reload") || !strcmp(what, "conf-diff");
}

int changes(const char *what, struct reader rows, bool json)
{
    struct reader rest = rows, row;
    bool any = rows_next(&rest, &row);

    CHECK(changes_are(what), "changes of %s", what);
    if (json)
        rows_json(rows);
    else if (any)
        rows_table(rows, false, false);
    else
        puts("the file says what is in force");
    return any && strcmp(what, "reload") ? CTL_DIFFERS : CTL_SHOWN;
}
