/* unit.h - the daemons' systemd units, from their files: what the host lets a
 * daemon do, and for how long. Only reads files. Any thread. Rejected: asking
 * systemd, which an engine's user in a container cannot. */
#ifndef MMX_IO_UNIT_H
#define MMX_IO_UNIT_H

#include "base/base.h"

/* True if the unit of the role ("langd") is installed. */
bool unit_installed(const char *role);
/* True if the host starts the unit by itself. */
bool unit_enabled(const char *role);

/* Calls line(ud, text) for each line of the unit and then of its drop-ins. */
void unit_lines(
    const char *role, void (*line)(void *ud, const char *text), void *ud);

#endif
