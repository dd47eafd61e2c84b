/* SPDX-License-Identifier: MIT */
/*
 * The terminal interface of `xseg top`, with ncurses.
 *
 * Locking: none; ncurses has one state per process.
 */
#ifndef TOOLS_TOP_SCREEN_H
#define TOOLS_TOP_SCREEN_H

#include "src/tools/commands/top/top_table.h"

struct top_options {
    enum top_by by;
    unsigned seconds;   /* between updates */
    pid_t pid;          /* 0: all processes */
    const char *budget; /* the budget file of the second table; NULL: none */
};

#define TOP_NO_PROCESS "no process publishes its statistics; set the key publish:True"

/* Show the tables until the user quits.  Returns NULL, or an error message. */
const char *top_screen_run(const struct top_options *options);

#endif
