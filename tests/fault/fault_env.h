/* SPDX-License-Identifier: MIT */
/*
 * The environment of a fault sweep: a scenario with an allocator and injected faults, and the checks after each call.
 *
 * A scenario makes its calls through the functions below, which repeat a call as long as a fault is injected into it.
 * After each attempt allocated blocks must have their addresses, mapped and accessible pages, and their contents; the
 * statistics must match the blocks; and the audits must pass.
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
    xseg_stream side; /* a second stream, created without faults */
    struct fault_block blocks[FAULT_BLOCKS_MAX];
    unsigned block_count;
    unsigned failures; /* calls that returned a status */
    bool has_contents; /* the memory has contents, which are checked */
    size_t stride;     /* distance of the words that are written and checked; 0: 512 KiB */
    const struct xseg_pool *paused_pool;  /* its blocks have no pages; or NULL */
    void (*check)(struct fault_env *env); /* runs after each attempt as well; or NULL */
};

/* Check the state after a call; returns whether to repeat the call, at most once for each fault. */
bool fault_retry(struct fault_env *env, xseg_status status);

/* Make a call, and repeat it after each fault. */
#define FAULT_RETRY(env, call) \
    do {                       \
    } while (fault_retry((env), (call)))

/* As fault_retry(), for repeated failures: the call may fail after any fault, and is not repeated.  Returns whether
 * it has failed. */
bool fault_failed(struct fault_env *env, xseg_status status);

/* As fault_retry(), for a driver call of the scenario. */
bool fault_retry_driver(struct fault_env *env, int result);

void *fault_alloc(struct fault_env *env, size_t bytes, xseg_stream stream);
void *fault_alloc_in(struct fault_env *env, struct xseg_pool *pool, size_t bytes,
                     xseg_stream stream);
void *fault_alloc_zeroed(struct fault_env *env, struct xseg_pool *pool, size_t bytes,
                         xseg_stream stream);
/* fault_free(env, block...) */
#define fault_free(env, ...) \
    fault_free_all((env), (void *const[]){__VA_ARGS__}, sizeof((void *const[]){__VA_ARGS__}))

/* Free blocks, then trim with a wait. */
#define fault_free_and_trim(env, ...) (fault_free((env), __VA_ARGS__), fault_trim((env), true))

void fault_free_all(struct fault_env *env, void *const *blocks, size_t bytes);
struct xseg_pool *fault_pool(struct fault_env *env, const struct xseg_pool_options *options);

/* fault_pool_of(env, .exportable = true, ...): a pool with these members of struct xseg_pool_options. */
#define fault_pool_of(env, ...) \
    fault_pool(env, &(struct xseg_pool_options){sizeof(struct xseg_pool_options), __VA_ARGS__})

/* Release a pool, then trim with a wait. */
void fault_pool_end(struct fault_env *env, struct xseg_pool *pool);

void fault_record_stream(struct fault_env *env, void *ptr, xseg_stream stream);
void fault_trim(struct fault_env *env, bool wait);

/* Change the configuration; advance the clock and run a decay pass. */
void fault_configure(struct fault_env *env, const char *config);
void fault_advance(struct fault_env *env, uint64_t milliseconds);

/* The access rights of a device for an address that must be mapped, as of env_access_at(). */
unsigned long long fault_access(int device, const void *address);

/* Whether the message of a failed pause reports that the pool is paused, because the rollback failed. */
bool fault_rollback_failed(void);

/* Add or remove a block that another function allocates or frees. */
void fault_track(struct fault_env *env, void *ptr, size_t bytes);
void fault_untrack(struct fault_env *env, const void *ptr);

/* For a restore, with the environment as context: track and untrack its blocks. */
void fault_log_restored(void *env, void *ptr, bool freed);

/* --- Running. --- */

typedef void (*fault_scenario)(struct fault_env *env);

/* A fault in the nth call; 0: no fault. */
struct xseg_sim_fault fault_nth_call(uint64_t nth, int error);

/* Run a scenario with faults.  Returns whether the last fault was injected. */
bool fault_run(fault_scenario scenario, const struct xseg_sim_settings *settings,
               const char *config, struct xseg_sim_fault first, struct xseg_sim_fault second);

/* Fail every driver call once, with several errors; then every host call. */
void fault_sweep(const char *name, fault_scenario scenario,
                 const struct xseg_sim_settings *settings, const char *config);

/* Fail every host allocation, mapping and thread creation of the library: once, and then onwards until a call returns
 * XSEG_ERR_HOST_MEMORY.  Returns the number of these calls. */
uint64_t fault_sweep_host(const char *name, fault_scenario scenario,
                          const struct xseg_sim_settings *settings, const char *config);

/* Inject a second fault 1 to `distance` calls after each one.  Returns the number of pairs. */
uint64_t fault_pairs(fault_scenario scenario, const struct xseg_sim_settings *settings,
                     const char *config, uint64_t distance);

/* A batched unmap or set-access processes 1 to 3 of its mappings and then fails.  Returns the number of runs. */
uint64_t fault_partial_batches(fault_scenario scenario, const struct xseg_sim_settings *settings,
                               const char *config);

/* --- Suites: the scenario begins the injection of faults after its setup. --- */

struct fault_suite_scenario {
    const char *name;
    fault_scenario run; /* calls faults_begin() */
    unsigned rounds;    /* rounds of single faults, up to 4: errors, and a driver without batches */
    unsigned distance;  /* of the second fault of a pair */
};

/* The sweeps of a test program. */
struct fault_suite {
    const char *name;
    const struct fault_suite_scenario *scenarios;
    size_t count;
    const char *config;
    fault_scenario batch_scenario; /* scenario for fault_partial_batches() */
    uint64_t min_pairs;            /* minimum number of pairs of faults */
};

/* Begin and end the injection of faults. */
void faults_begin(void);
void faults_end(void);

/* Run all sweeps, for main(): driver and host calls, pairs of faults, and partial batches.  No run may leave an open file
 * descriptor. */
int fault_suite_run(const struct fault_suite *suite);

#endif
