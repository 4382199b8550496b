/* main.h - the command line of both daemons. */
#ifndef MMX_NODE_MAIN_H
#define MMX_NODE_MAIN_H

#include <stdint.h>

/* Runs the daemon of this role; returns the exit status: 0 done, 1 could not
 * start, 64 bad command line, 78 bad configuration. */
int daemon_main(uint8_t role, int argc, char **argv);

#endif
