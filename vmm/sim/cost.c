/* SPDX-License-Identifier: MIT */
#include "vmm/sim/cost.h"

#include <math.h>
#include <string.h>

#include "vmm/sim/machine.h"

#define MIB ((uint64_t)1 << 20)

/* clang-format off */
#define EVENTS .event_create = 1000, .event_record = 300, .event_query = 200, .stream_wait = 300, .synchronize = 5000
#define CLASSIC .alloc = {40000, 180, 60000}, .free = {20000, 0, 0}
#define ACCESS .access = {36000, 1300, 0}, .access_wide = {200000, 0, 0}

static const struct sim_costs preset[] = {
    {.name = "a100", .reserve = 2000, .address_free = 1000, .create = {7000, 150, 0}, .map = {2000, 0, 0}, .release = {23000, 0, 0},
     .unmap_mapping = {34000, 0, 0}, ACCESS, CLASSIC, EVENTS},
    {.name = "a100_cold", .reserve = 19000, .address_free = 1000, .create = {193000, 0, 0}, .map = {1500, 0, 0}, .release = {23000, 0, 0},
     .unmap_mapping = {25600, 0, 0}, ACCESS, CLASSIC, EVENTS},
    {.name = "consumer", .reserve = 9000, .address_free = 1000, .create = {7600, 150, 0}, .map = {1000, 0, 0}, .release = {10000, 0, 0},
     .unmap_mapping = {11500, 0, 0}, ACCESS, CLASSIC, EVENTS},
    {.name = "rocm_slow", .reserve = 10000, .address_free = 5000, .create = {60000, 1000, 0}, .map = {20000, 0, 0}, .release = {30000, 0, 0},
     .unmap = 1000000, .unmap_mapping = {50000, 0, 0}, ACCESS, CLASSIC, EVENTS},
    {.name = "none"},
};
/* clang-format on */

const struct sim_costs *sim_costs_find(const char *name)
{
    if (name == NULL)
        return &preset[0];
    for (size_t i = 0; i < sizeof(preset) / sizeof(preset[0]); i++)
        if (strcmp(preset[i].name, name) == 0)
            return &preset[i];
    return NULL;
}

uint64_t sim_cost_of(struct sim_cost_sized cost, uint64_t bytes)
{
    uint64_t time;

    /* A refused size may be anything, and tails multiply what comes out. */
    if (__builtin_mul_overflow(bytes / MIB, cost.per_mib, &time) ||
        time > SIM_COST_MOST_SIZE - cost.base)
        return SIM_COST_MOST_SIZE;
    time += cost.base;
    return time < cost.least ? cost.least : time;
}

uint64_t sim_cost_access(const struct sim_costs *costs, uint64_t bytes)
{
    return sim_cost_of(bytes > 128 * MIB ? costs->access_wide : costs->access, bytes);
}

/* From 0 up to 1, without either. */
static double draw_uniform(void)
{
    uint64_t bits = sim_machine.tail_state += 0x9e3779b97f4a7c15u;

    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return ((double)((bits ^ bits >> 31) >> 11) + 0.5) / 9007199254740992.0;
}

uint64_t sim_cost_spread(uint64_t nanoseconds)
{
    /* 2.326 of these are 1.4 times the median: the 99th percentile that driver calls show. */
    const double sigma = log(1.4) / 2.326;
    const double angle = 2 * acos(-1.0) * draw_uniform(), radius = sqrt(-2 * log(draw_uniform()));
    double factor = exp(sigma * radius * cos(angle));

    /* A spike of 5 to 80 times, each magnitude as likely. */
    if (draw_uniform() < 0.001)
        factor = 5 * pow(16, draw_uniform());
    return (uint64_t)((double)nanoseconds * factor);
}
