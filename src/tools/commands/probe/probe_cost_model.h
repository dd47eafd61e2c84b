/* SPDX-License-Identifier: MIT */
/*
 * A cost model for the simulator, as a cost file and as a row of vmm/sim/cost.c.
 *
 * The model is fitted to the medians of the costs of one thread with an idle device:
 *
 *   per call   of cuMemSetAccess and cuMemUnmap: the intercept of a line through time over pages, from runs of pages in one
 *              call
 *   by size    the remaining time of one mapping is a line over MiB.  Its slope is the median of the slopes between any two
 *              sizes (Theil-Sen estimator), and its intercept is the median of the residuals, so an outlier has no effect
 *   minimum    the median of the smallest sizes, if a line through the others, at least three, then halves the total error
 *   constant   the median
 *
 * Intercepts and slopes are never negative.  Times that follow the model are reproduced exactly.
 *
 * Locking: none.
 */
#ifndef TOOLS_PROBE_COST_MODEL_H
#define TOOLS_PROBE_COST_MODEL_H

#include <stdio.h>

#include "src/tools/commands/probe/probe_costs.h"

/* A time that grows with size, in nanoseconds: base + per_mib for each MiB, but at least `min`. */
struct probe_sized {
    uint64_t base, per_mib, min;
};

/* The members of struct sim_costs, which are the keys of a cost file. */
#define PROBE_COST_MODEL_MEMBERS(CONSTANT, SIZED) \
    CONSTANT(reserve)                             \
    CONSTANT(address_free)                        \
    SIZED(create)                                 \
    SIZED(map)                                    \
    SIZED(release)                                \
    CONSTANT(unmap)                               \
    SIZED(unmap_mapping)                          \
    CONSTANT(access_call)                         \
    SIZED(access)                                 \
    SIZED(access_wide)                            \
    SIZED(alloc)                                  \
    SIZED(free)                                   \
    CONSTANT(event_create)                        \
    CONSTANT(event_record)                        \
    CONSTANT(event_query)                         \
    CONSTANT(stream_wait)                         \
    CONSTANT(synchronize)

struct probe_cost_model {
#define CONSTANT(member) uint64_t member;
#define SIZED(member)    struct probe_sized member;
    PROBE_COST_MODEL_MEMBERS(CONSTANT, SIZED)
#undef CONSTANT
#undef SIZED
};

/* Fit a model.  A member that was not measured is 0. */
void probe_cost_model_fit(const struct probe_costs *costs, struct probe_cost_model *out);

/* Get the modeled time of a cost. */
uint64_t probe_cost_model_time(const struct probe_cost_model *model, const struct probe_cost *cost);

/*
 * Print a cost file.
 *
 * @param device  the name of the device
 * @param source  a comment about the origin of the costs
 */
void probe_cost_model_print(FILE *out, const struct probe_cost_model *model,
                            const struct probe_costs *costs, const char *device,
                            const char *source);

#endif
