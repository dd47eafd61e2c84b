/* SPDX-License-Identifier: MIT */
/*
 * The option parser: options and operands of a command line.
 *
 * Locking: none; getopt_long() has one state per process.
 */
#ifndef TOOLS_OPTION_H
#define TOOLS_OPTION_H

#include <stdbool.h>
#include <stdint.h>

#include "src/tools/command/command.h"

struct option_value {
    bool given;
    const char *text; /* the argument; NULL: none */
    /* Of an argument that is a word, a number or a size; the default if the option is not given. */
    uint64_t number;
};

/* The command line of a command. */
struct option_values {
    struct option_value of[OPTION_COUNT];
    char **operands;
    int operand_count;
};

static inline bool option_given(const struct option_values *values, enum option_id id)
{
    return values->of[id].given;
}

static inline const char *option_text(const struct option_values *values, enum option_id id)
{
    return values->of[id].text;
}

static inline uint64_t option_number(const struct option_values *values, enum option_id id)
{
    return values->of[id].number;
}

/* Get the device ordinal of an option; -1: the option is not given. */
static inline int option_device(const struct option_values *values, enum option_id id)
{
    return values->of[id].given ? (int)values->of[id].number : -1;
}

/*
 * Parse the arguments of a command.
 *
 * @param arguments  begins with the name of the command; is permuted and must outlive `out`
 * @return false if an argument is invalid; the error message is on standard error
 */
bool option_parse(const struct command *command, int count, char **arguments,
                  struct option_values *out);

/* Print an error message about an option.  Returns false. */
bool option_error(const char *option, const char *error);

#endif
