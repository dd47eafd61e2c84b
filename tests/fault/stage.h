/* SPDX-License-Identifier: MIT */
/*
 * A stage: a scenario with an allocator and faults, and what must hold after each of its calls.
 *
 * A scenario makes its calls through the functions below.  Each makes its call again as long as a
 * fault has struck in it.  After each attempt live blocks have to be where they were, with their
 * pages mapped and accessible, and with what was written into them.  The counts have to be those of
 * the blocks, and the audits have to hold.
 */
#ifndef XSEG_TESTS_STAGE_H
#define XSEG_TESTS_STAGE_H

#include "tests/support/scene.h"

#define STAGE_HELD_MAX 64u

struct stage_held {
    void *ptr;
    size_t bytes;
};

struct stage {
    struct xseg_allocator *allocator;
    xseg_stream side; /* a second stream; the program's own, so it is made without faults */
    struct stage_held held[STAGE_HELD_MAX];
    unsigned count;
    unsigned failures; /* calls that returned a status */
    bool bytes;        /* memory keeps what it contains */
    size_t stride;     /* between the words that are written and looked at; 0: 512 KiB */
    const struct xseg_pool *paused; /* its blocks have no pages; or NULL */
};

/* A call has returned: whether it is to be made again, at most once for each fault. */
bool stage_again(struct stage *stage, xseg_status status);

/* As stage_again(), where calls are refused for a while: the call may have failed as long as any fault has
 * struck, and is not made again.  Returns whether it has failed. */
bool stage_tried(struct stage *stage, xseg_status status);

/* As stage_again(), for a driver call of the scenario's own. */
bool stage_again_own(struct stage *stage, int result);

/* Allocate; free; use; trim everything. */
void *stage_take(struct stage *stage, size_t bytes, xseg_stream stream);
void *stage_take_from(struct stage *stage, struct xseg_pool *pool, size_t bytes,
                      xseg_stream stream);
void *stage_take_zeroed(struct stage *stage, struct xseg_pool *pool, size_t bytes,
                        xseg_stream stream);
void stage_give(struct stage *stage, void *ptr);
void stage_use(struct stage *stage, void *ptr, xseg_stream stream);
void stage_trim(struct stage *stage, bool wait);

/* Change the configuration; let time pass, and tick, so that idle memory decays. */
void stage_configure(struct stage *stage, const char *config);
void stage_pass(struct stage *stage, uint64_t milliseconds);

/* A block is held, or not any more, by another way than these. */
void stage_hold(struct stage *stage, void *ptr, size_t bytes);
void stage_drop(struct stage *stage, const void *ptr);

/* --- Running. --- */

typedef void (*stage_scenario)(struct stage *stage);

/* For xseg_options: lines go nowhere. */
void stage_no_log(void *context, enum xseg_log_level level, const char *line);

/* A fault; nth 0 is none. */
struct xseg_sim_fault stage_nth_call(uint64_t nth, int error);

/* Run a scenario with faults; whether the second one struck (the first, if there is no second). */
bool stage_run(stage_scenario play, const struct xseg_sim_settings *settings, const char *config,
               struct xseg_sim_fault first, struct xseg_sim_fault second);

/* Every driver call fails once, with several errors; then the host's do. */
void stage_sweep(const char *name, stage_scenario play, const struct xseg_sim_settings *settings,
                 const char *config);

/* Every allocation of host memory, mapping and thread of the library fails, once and from then on until a
 * call returns an error, which is that of host memory. */
void stage_sweep_host(const char *name, stage_scenario play,
                      const struct xseg_sim_settings *settings, const char *config);

/* A second fault right behind each call, up to `distance` calls later; the number of pairs. */
uint64_t stage_pairs(stage_scenario play, const struct xseg_sim_settings *settings,
                     const char *config, uint64_t distance);

#endif
