/* SPDX-License-Identifier: MIT */
/*
 * Configurations that differ from the one in force in the keys that decide how much memory a programme takes
 * (docs/advise.md says why these).
 *
 * Words:
 *   base    the configuration in force, and what of the keys can matter to a trace
 *   tuning  for each of these keys: what the base says (KEPT), its default (DROPPED), or a value
 *
 * A value is a number, or the place of a word in the row of the key.
 *
 * Locking: none; a base does not change once it is made.
 */
#ifndef TOOLS_TUNING_H
#define TOOLS_TUNING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tools/trace/xtrace.h"

enum tuning_key {
    TUNING_EXPANDABLE,
    TUNING_PAGE,
    TUNING_SEGMENT,
    TUNING_SPLIT,
    TUNING_ROUNDING,
    TUNING_IDLE,
    TUNING_REUSE,
    TUNING_KEYS
};

#define TUNING_KEPT    UINT64_MAX
#define TUNING_DROPPED (UINT64_MAX - 1)
#define TUNING_VALUES  16 /* at most, that a key is tried with at a time */

struct tuning {
    uint64_t value[TUNING_KEYS];
};

struct tuning_base {
    const char *config;
    const char *
        left_out; /* items of the string in force that are not in `config`: "" or NULL if there are none */
    struct {
        char value[64]; /* as a string spells it */
        bool is_named;
    } key[TUNING_KEYS];
    bool has_clock, has_captures; /* the trace has */
    bool only_pytorch;            /* use no key that PyTorch's allocator does not know */
};

/*
 * @param config  must live as long as the base
 *
 * Returns: false where the configuration has an error, which xseg_error_message() then tells.
 */
bool tuning_base_init(struct tuning_base *base, const char *config, const struct xtrace *trace,
                      bool only_pytorch);

/* The base itself. */
struct tuning tuning_of_base(void);

/* How many keys differ from the base. */
unsigned tuning_changes(const struct tuning *tuning);

/* Whether it has expandable segments; and the tuning that differs in that. */
bool tuning_is_expandable(const struct tuning_base *base, const struct tuning *tuning);
struct tuning tuning_turned(const struct tuning_base *base, const struct tuning *tuning);

/*
 * The values that a key may have instead of its present one: far apart, or close to it.
 *
 * @param round  of close ones, from 1: each is half as far away as the one before
 *
 * Returns: how many.
 */
size_t tuning_far(const struct tuning_base *base, const struct tuning *tuning, enum tuning_key key,
                  uint64_t values[TUNING_VALUES]);
size_t tuning_close(const struct tuning *tuning, enum tuning_key key, unsigned round,
                    uint64_t values[TUNING_VALUES]);

/* The configuration string.  Allocated; NULL without host memory. */
char *tuning_string(const struct tuning_base *base, const struct tuning *tuning);

/*
 * The items of the base that PyTorch's own allocator knows; and the other ones, "" if there are none.  The
 * first always says which kind of segments it has, since that is not what it is by default in PyTorch.  Allocated; NULL
 * without host memory.
 */
char *tuning_of_pytorch(const struct tuning_base *base);
char *tuning_not_of_pytorch(const struct tuning_base *base);

/* Whether an allocator would take it. */
bool tuning_is_valid(const char *config);

/*
 * Why a key lowers the peak, as what follows "since".
 *
 * @param key  has a value that is not KEPT
 */
const char *tuning_cause(const struct tuning_base *base, const struct tuning *tuning,
                         enum tuning_key key);

/* What the key is called. */
const char *tuning_name(enum tuning_key key);

#endif
