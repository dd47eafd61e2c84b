/* SPDX-License-Identifier: MIT */
/* Counts of pairs of features that are combined: both are in effect, or used, for one pool, block, stream or device. */
#ifndef XSEG_TESTS_EXERCISE_FEATURE_H
#define XSEG_TESTS_EXERCISE_FEATURE_H

#include <stdbool.h>
#include <stdint.h>

/* clang-format off */
#define FEATURE_MAP(X)                                                                             \
    /* of a pool */                                                                                \
    X(FALLBACK, "use_on_oom") X(NO_SPLIT, "no_split") X(POOL_LIMIT, "pool_limit")                  \
    X(MEMORY_FUNCTIONS, "memory_functions") X(EXPORTABLE, "exportable") X(RELEASED, "released")    \
    X(PAUSE_NOTHING, "keep_nothing") X(PAUSE_HOST, "keep_host") X(PAUSE_FILE, "keep_file")         \
    X(CHECKPOINT, "checkpoint") X(RESTORE, "restore") X(CAPTURE, "capture") X(ROUTE, "route")      \
    /* of a block, or of one operation */                                                          \
    X(PIN, "pin") X(EXPORT, "export") X(IMPORT, "import") X(ZEROED, "zeroed")                      \
    X(ALIGNED, "aligned") X(USE, "use") X(FREE_AFTER, "free_after") X(RETIRED, "stream_retire")    \
    X(PREWARM, "prewarm") X(TRIM, "trim") X(FAULT, "fault")                                        \
    /* of the allocator and its devices */                                                         \
    X(CLASSIC, "classic") X(PAGES_SMALL, "page_size:small") X(PAGES_AUTO, "page_size:auto")        \
    X(DECAY, "idle_ms") X(DEBUG_FILL, "debug_fill") X(GUARD, "guard_page")                         \
    X(UNMAP, "unmap_on_free") X(PAGE_CACHE, "page_cache") X(AGES, "history:state")                 \
    X(HISTORY, "history:all") X(HARD, "hard_limit") X(SOFT, "soft_limit") X(FRACTION, "fraction")  \
    X(MAX_SPLIT, "max_split") X(ROUNDUP, "roundup") X(COLLECT, "collect")                          \
    X(THROW, "throw_on_oom") X(REUSE, "capture_reuse") X(RESERVE, "reserve")                       \
    X(FREE_MIN, "device_free_min") X(WINDOW, "keep_window") X(OBSERVER, "observer")                \
    X(RECONFIGURED, "reconfigured")
/* clang-format on */

enum feature {
#define FEATURE_ENUM_(id, name) FEATURE_##id,
    FEATURE_MAP(FEATURE_ENUM_)
#undef FEATURE_ENUM_
        FEATURE_COUNT
};

#define FEATURE(id) (UINT64_C(1) << FEATURE_##id)

/* The features of a paused pool. */
#define FEATURES_PAUSED (FEATURE(PAUSE_NOTHING) | FEATURE(PAUSE_HOST) | FEATURE(PAUSE_FILE))

/* Count the pairs of a set; served: the call succeeded. */
void feature_combine(uint64_t set, bool served);

void feature_print(void);

/* The number of pairs that can be combined; *combined_pairs: the number of pairs that were. */
unsigned feature_pairs(unsigned *combined_pairs);

/* The first pair of features that can be combined and were not, as "a with b"; NULL: none. */
const char *feature_missing_pair(void);

/* The first pair of exclusive features that were combined, as "a with b"; NULL: none. */
const char *feature_excluded_pair(void);

#endif
