/* SPDX-License-Identifier: MIT */
/* Pairs of features that are combined: both are in effect, or used, on one pool, block, stream or device. */
#ifndef XSEG_TESTS_EXERCISE_FEATURE_H
#define XSEG_TESTS_EXERCISE_FEATURE_H

#include <stdbool.h>
#include <stdint.h>

/* clang-format off */
#define FEATURE_MAP(X)                                                                              \
    /* of a pool */                                                                                 \
    X(LEND, "lend") X(NO_SPLIT, "no_split") X(POOL_LIMIT, "pool_limit") X(OWN, "own_memory")        \
    X(EXPORTABLE, "exportable") X(RELEASED, "released") X(AWAY_NOTHING, "keep_nothing")             \
    X(AWAY_HOST, "keep_host") X(AWAY_FILE, "keep_file") X(CHECKPOINT, "checkpoint")                 \
    X(RESTORE, "restore") X(CAPTURE, "capture") X(ROUTE, "route")                                   \
    /* of a block, or of one operation */                                                           \
    X(PIN, "pin") X(EXPORT, "export") X(IMPORT, "import") X(ZEROED, "zeroed") X(ALIGNED, "aligned") \
    X(USE, "use") X(FREE_AFTER, "free_after") X(RETIRED, "stream_retire") X(PREWARM, "prewarm")          \
    X(TRIM, "trim") X(FAULT, "fault")                                                               \
    /* of the allocator and its devices */                                                          \
    X(CLASSIC, "classic") X(PAGES_SMALL, "page_size:small") X(PAGES_AUTO, "page_size:auto")             \
    X(DECAY, "idle_ms") X(DEBUG_FILL, "debug_fill")                 \
    X(GUARD, "guard_page") X(UNMAP, "unmap_on_free") X(PAGE_CACHE, "page_cache")                    \
    X(AGES, "history:state") X(HISTORY, "history:all") X(HARD, "hard_limit")        \
    X(SOFT, "soft_limit") X(FRACTION, "fraction") X(MAX_SPLIT, "max_split") X(ROUNDUP, "roundup")   \
    X(COLLECT, "collect") X(THROW, "throw_on_oom") X(REUSE, "capture_reuse")                        \
    X(RESERVE, "reserve") X(FREE_MIN, "device_free_min") X(WINDOW, "keep_window")                   \
    X(OBSERVER, "observer") X(RECONFIGURED, "reconfigured")
/* clang-format on */

enum feature {
#define FEATURE_ENUM_(id, name) FEATURE_##id,
    FEATURE_MAP(FEATURE_ENUM_)
#undef FEATURE_ENUM_
        FEATURE_COUNT
};

#define FEATURE(id) (UINT64_C(1) << FEATURE_##id)

/* The features of a paused pool. */
#define FEATURES_AWAY (FEATURE(AWAY_NOTHING) | FEATURE(AWAY_HOST) | FEATURE(AWAY_FILE))

/* Count the pairs of a set; `served`: in a call that succeeded. */
void feature_combine(uint64_t set, bool served);

void feature_print(void);

/* The number of pairs that can be combined; `reached`: that were combined. */
unsigned feature_pairs(unsigned *reached);

/* The first pair that was not combined and does not exclude each other, as "a with b"; NULL: none. */
const char *feature_missing_pair(void);

/* The first combined pair that excludes each other, as "a with b"; NULL: none. */
const char *feature_excluded_pair(void);

#endif
