/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_budget.h"

#include "src/tools/replay/trace_clock.h"

#define SECOND      UINT64_C(1000000000)
#define FEW_SAMPLES 3

void probe_budget_init(struct probe_budget *budget, unsigned seconds, unsigned weight)
{
    *budget = (struct probe_budget){
        .deadline = seconds > 0 ? stopwatch_now() + seconds * SECOND : 0,
        .weight_left = weight,
    };
}

struct probe_share probe_budget_share(struct probe_budget *budget, unsigned weight)
{
    const uint64_t now = stopwatch_now();
    struct probe_share share = {.deadline = budget->deadline};
    uint64_t time;

    if (budget->deadline != 0) {
        time = now < budget->deadline ? budget->deadline - now : 0;
        time = time / budget->weight_left * weight;
        share.half = now + time / 2;
        share.end = now + time;
    }
    budget->weight_left -= weight;
    return share;
}

bool probe_budget_is_over(const struct probe_budget *budget)
{
    return budget->deadline != 0 && stopwatch_now() >= budget->deadline;
}

bool probe_share_has_time(const struct probe_share *share, bool is_second_half, unsigned samples)
{
    uint64_t end = is_second_half ? share->end : share->half;

    if (samples < FEW_SAMPLES)
        end = share->deadline;
    return end == 0 || stopwatch_now() < end;
}
