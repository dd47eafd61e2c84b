/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a cost file.  Accepted costs are within their limits and have the same meaning after they are printed; a
 * rejected file changes nothing, and its error message is printable and fits into the buffer.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/holds.h"
#include "vmm/sim/cost.h"

#define WHY_BYTES 256

static int print_one(char *out, size_t room, const char *key, uint64_t number)
{
    return snprintf(out, room, "%s = %" PRIu64 "\n", key, number);
}

static int print_sized(char *out, size_t room, const char *key, struct sim_cost_sized cost)
{
    HOLDS(cost.base <= SIM_COST_MAX && cost.per_mib <= SIM_COST_MAX && cost.min <= SIM_COST_MAX);
    return snprintf(out, room, "%s = %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", key, cost.base,
                    cost.per_mib, cost.min);
}

/* Without knowing the reader's table: each member by hand. */
static size_t print(const struct sim_costs *costs, char *out, size_t room)
{
    size_t at = (size_t)snprintf(out, room, "name = %s\n", costs->name);

#define ONE(member)                       \
    HOLDS(costs->member <= SIM_COST_MAX); \
    at += (size_t)print_one(out + at, room - at, #member, costs->member)
#define SIZED(member) at += (size_t)print_sized(out + at, room - at, #member, costs->member)
    ONE(reserve);
    ONE(address_free);
    SIZED(create);
    SIZED(map);
    SIZED(release);
    ONE(unmap);
    SIZED(unmap_mapping);
    ONE(access_call);
    SIZED(access);
    SIZED(access_wide);
    SIZED(alloc);
    SIZED(free);
    ONE(event_create);
    ONE(event_record);
    ONE(event_query);
    ONE(stream_wait);
    ONE(synchronize);
    HOLDS(at < room);
    return at;
}

static void check_accepted(const struct sim_costs *costs)
{
    struct sim_costs again;
    char text[4096], why[WHY_BYTES];
    const size_t length = print(costs, text, sizeof(text));

    HOLDS(strlen(costs->name) > 0 && strlen(costs->name) < SIM_COSTS_NAME_MAX);
    memset(&again, 0, sizeof(again));
    HOLDS(sim_costs_parse(text, length, &again, why, sizeof(why)));
    HOLDS(strcmp(again.name, costs->name) == 0);
    HOLDS(memcmp((const char *)&again + SIM_COSTS_NAME_MAX,
                 (const char *)costs + SIM_COSTS_NAME_MAX,
                 sizeof(again) - SIM_COSTS_NAME_MAX) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sim_costs costs, before;
    char why[WHY_BYTES] = "";
    char *text = malloc(size > 0 ? size : 1); /* no byte more, so that one read too many is seen */

    if (text == NULL)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    memset(&costs, 0x5a, sizeof(costs));
    memcpy(&before, &costs, sizeof(costs));
    if (sim_costs_parse(text, size, &costs, why, sizeof(why))) {
        check_accepted(&costs);
    } else {
        HOLDS(memcmp(&costs, &before, sizeof(costs)) == 0);
        HOLDS(why[0] != '\0' && strlen(why) < sizeof(why) && strchr(why, ';') != NULL);
    }
    free(text);
    return 0;
}
