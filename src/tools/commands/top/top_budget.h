/* SPDX-License-Identifier: MIT */
/*
 * The second table of `xseg top`: processes that share devices by a ledger, whether they publish or not.
 *
 * Locking: none.
 */
#ifndef TOOLS_TOP_BUDGET_H
#define TOOLS_TOP_BUDGET_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tools/commands/top/top_table.h"
#include "xseg/status.h"

/* A process and one of its devices. */
struct top_share {
    unsigned slot;
    int pid;
    bool is_readable;
    char program[16], uuid[40]; /* empty: none */
    uint64_t taken, idle, wanted, share, floor, returned;
};

struct top_budget {
    struct top_share *rows;
    size_t count;
    bool is_full; /* all slots are taken */
    xseg_status status;
    char problem[512]; /* why there are none; empty: nothing is wrong */
};

/*
 * Look at a ledger.
 *
 * name: as of --budget
 */
void top_budget_look(struct top_budget *budget, const char *name);
void top_budget_fini(struct top_budget *budget);

/* How many lines there are: a heading, and one for each row, or one that says what is wrong; and one if no slot is
 * left for another process. */
size_t top_budget_lines(const struct top_budget *budget);
void top_budget_line(const struct top_budget *budget, size_t number, char line[TOP_LINE]);

/* All of it as JSON; NULL without host memory. */
json_t *top_budget_json(const struct top_budget *budget);

#endif
