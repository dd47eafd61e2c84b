/* SPDX-License-Identifier: MIT */
/*
 * The live screen of `xseg top`, by ncurses.
 *
 * Locking: none; ncurses has one state a process.
 */
#ifndef TOOLS_TOP_SCREEN_H
#define TOOLS_TOP_SCREEN_H

#include "src/tools/commands/top/top_budget.h"
#include "src/tools/commands/top/top_table.h"

struct top_wish {
    enum top_by by;
    unsigned seconds;   /* between two looks */
    pid_t pid;          /* 0: all processes */
    const char *budget; /* ledger of the second table; NULL: none */
};

/*
 * Show the table until the user quits.
 *
 * Returns: NULL, or a sentence: there is no screen, or it could not be gone on with
 */
const char *top_screen_run(const struct top_wish *wish);

#endif
