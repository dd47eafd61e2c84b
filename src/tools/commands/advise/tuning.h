/* SPDX-License-Identifier: MIT */
/*
 * Variations of a configuration in the keys that determine how much memory a program needs (docs/replay.md has the values).
 *
 * Terms:
 *   base    the current configuration, and the features of a trace on which keys can have an effect
 *   tuning  for each key: the value of the base (KEPT), the default (DROPPED), or another value
 *
 * A value is a number, or the index of a word in the row of the key.
 *
 * Locking: none; a base is immutable.
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

#define TUNING_UNCHANGED UINT64_MAX
#define TUNING_REMOVED   (UINT64_MAX - 1)
#define TUNING_VALUES    16 /* maximum number of values of a step */

struct tuning {
    uint64_t value[TUNING_KEYS];
};

struct tuning_base {
    const char *config;
    /* Items of the current string that are not in `config`; "" or NULL: none. */
    const char *omitted;
    struct {
        char value[64]; /* as in a configuration string */
        bool is_set;
    } key[TUNING_KEYS];
    bool has_clock, has_captures; /* of the trace */
    bool only_pytorch;            /* only keys that PyTorch's allocator also has */
};

/*
 * @param config  must outlive the base
 * @return false if the configuration is invalid; xseg_error_message() has the reason
 */
bool tuning_base_init(struct tuning_base *base, const char *config, const struct xtrace *trace,
                      bool only_pytorch);

/* The tuning that is equal to the base. */
struct tuning tuning_unchanged(void);

/* The number of keys that differ from the base. */
unsigned tuning_changes(const struct tuning *tuning);

/* Get whether a tuning has expandable segments, and the tuning with the opposite value. */
bool tuning_is_expandable(const struct tuning_base *base, const struct tuning *tuning);
struct tuning tuning_flip_expandable(const struct tuning_base *base, const struct tuning *tuning);

/*
 * Get other values of a key: all far values, or values close to the current one.
 *
 * @param round  of close values, from 1; each round halves the distance
 * @return the number of values
 */
size_t tuning_far(const struct tuning_base *base, const struct tuning *tuning, enum tuning_key key,
                  uint64_t values[TUNING_VALUES]);
size_t tuning_close(const struct tuning *tuning, enum tuning_key key, unsigned round,
                    uint64_t values[TUNING_VALUES]);

/* The configuration string, owned by the caller; NULL on host allocation failure. */
char *tuning_string(const struct tuning_base *base, const struct tuning *tuning);

/*
 * Get the items of the base that PyTorch's own allocator also has, and the other items ("" if there are none).  The first
 * function always adds expandable_segments, because PyTorch has another default.  The caller owns the strings; NULL on host
 * allocation failure.
 */
char *tuning_of_pytorch(const struct tuning_base *base);
char *tuning_not_of_pytorch(const struct tuning_base *base);

/* Whether a configuration string is valid. */
bool tuning_is_valid(const char *config);

/*
 * Get the reason why a key lowers the peak; completes "since ...".
 *
 * @param key  must not be KEPT
 */
const char *tuning_cause(const struct tuning_base *base, const struct tuning *tuning,
                         enum tuning_key key);

const char *tuning_name(enum tuning_key key);

#endif
