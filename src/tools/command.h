/* SPDX-License-Identifier: MIT */
/* The subcommands of the `xseg` tool.  Each takes its own name as the first argument. */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

/* Exit statuses, for every subcommand. */
enum command_exit {
    COMMAND_FINE,
    COMMAND_MISMATCH,     /* a check found a difference, or something was left over */
    COMMAND_BAD,          /* a bad file or argument */
    COMMAND_OUT_OF_MEMORY /* that was not in the file */
};

/* `xseg probe`. */
int command_probe(int count, char **arguments);

/* `xseg replay`. */
int command_replay(int count, char **arguments);

#endif
