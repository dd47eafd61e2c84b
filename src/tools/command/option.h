/* SPDX-License-Identifier: MIT */
/*
 * The options and operands that a command was given.
 *
 * Locking: none; getopt_long() has one state a process.
 */
#ifndef TOOLS_OPTION_H
#define TOOLS_OPTION_H

#include <stdbool.h>
#include <stdint.h>

#include "src/tools/command/command.h"

struct option_value {
    bool given;
    const char *text; /* NULL: none */
    uint64_t number;  /* of a word, a number or a size */
};

/* What a command was given. */
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

/* The device that an option names; -1: it is not given. */
static inline int option_device(const struct option_values *values, enum option_id id)
{
    return values->of[id].given ? (int)values->of[id].number : -1;
}

/*
 * Read the arguments of a command.
 *
 * @param arguments  from the command's own name on; put in order, and kept by `out`
 *
 * Returns: false where one is bad: standard error has the sentence.
 */
bool option_parse(const struct command *command, int count, char **arguments,
                  struct option_values *out);

/* Say on standard error what is wrong with an option.  Returns false. */
bool option_refuse(const char *option, const char *sentence);

#endif
