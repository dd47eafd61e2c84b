/* SPDX-License-Identifier: MIT */
/*
 * A stage: a scenario with an allocator and faults, and what must hold after each of its calls.
 *
 * A scenario makes its calls through the functions below.  Each makes its call again as long as a
 * fault has struck in it.  After each attempt live blocks have to be where they were, with their
 * pages mapped and accessible, and with what was written into them.  The counts have to be those of
 * the blocks, and the audits have to hold.
 */
#ifndef XSEG_TESTS_FAULT_ENV_H
#define XSEG_TESTS_FAULT_ENV_H

#include "tests/support/env.h"

#define FAULT_BLOCKS_MAX 64u

struct fault_block {
    void *ptr;
    size_t bytes;
};

struct fault_env {
    struct xseg_allocator *allocator;
    xseg_stream side; /* a second stream; the program's own, so it is made without faults */
    struct fault_block held[FAULT_BLOCKS_MAX];
    unsigned count;
    unsigned failures; /* calls that returned a status */
    bool bytes;        /* memory keeps what it contains */
    size_t stride;     /* distance of the words that are written and checked; 0: 512 KiB */
    const struct xseg_pool *paused; /* its blocks have no pages; or NULL */
};

/* A call has returned: whether it is to be made again, at most once for each fault. */
bool fault_retry(struct fault_env *env, xseg_status status);

/* As fault_retry(), where calls are refused for a while: the call may have failed as long as any fault has
 * struck, and is not made again.  Returns whether it has failed. */
bool fault_failed(struct fault_env *env, xseg_status status);

/* As fault_retry(), for a driver call of the scenario's own. */
bool fault_retry_driver(struct fault_env *env, int result);

/* Allocate; free; use; trim everything. */
void *fault_alloc(struct fault_env *env, size_t bytes, xseg_stream stream);
void *fault_alloc_in(struct fault_env *env, struct xseg_pool *pool, size_t bytes,
                     xseg_stream stream);
void *fault_alloc_zeroed(struct fault_env *env, struct xseg_pool *pool, size_t bytes,
                         xseg_stream stream);
void fault_free(struct fault_env *env, void *ptr);
void fault_record_stream(struct fault_env *env, void *ptr, xseg_stream stream);
void fault_trim(struct fault_env *env, bool wait);

/* Change the configuration; let time pass, and tick, so that idle memory decays. */
void fault_configure(struct fault_env *env, const char *config);
void fault_advance(struct fault_env *env, uint64_t milliseconds);

/* A block is held, or not any more, by another way than these. */
void fault_track(struct fault_env *env, void *ptr, size_t bytes);
void fault_untrack(struct fault_env *env, const void *ptr);

/* --- Running. --- */

typedef void (*fault_scenario)(struct fault_env *env);

/* For xseg_options: lines go nowhere. */
void fault_no_log(void *context, enum xseg_log_level level, const char *line);

/* A fault; nth 0 is none. */
struct xseg_sim_fault fault_nth_call(uint64_t nth, int error);

/* Run a scenario with faults; whether the second one struck (the first, if there is no second). */
bool fault_run(fault_scenario play, const struct xseg_sim_settings *settings, const char *config,
               struct xseg_sim_fault first, struct xseg_sim_fault second);

/* Every driver call fails once, with several errors; then the host's do. */
void fault_sweep(const char *name, fault_scenario play, const struct xseg_sim_settings *settings,
                 const char *config);

/* Every allocation of host memory, mapping and thread of the library fails, once and from then on until a
 * call returns an error, which is that of host memory. */
void fault_sweep_host(const char *name, fault_scenario play,
                      const struct xseg_sim_settings *settings, const char *config);

/* A second fault right behind each call, up to `distance` calls later; the number of pairs. */
uint64_t fault_pairs(fault_scenario play, const struct xseg_sim_settings *settings,
                     const char *config, uint64_t distance);

#endif
