/* SPDX-License-Identifier: MIT */
/*
 * Parses any bytes as a cost file.  Accepted costs are within their limits and have the same meaning after they are printed; a
 * rejected file changes nothing, and its error message is printable and fits into the buffer.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/holds.h"
#include "vmm/sim/cost.h"

#define ERROR_BYTES 256

static int print_number(char *out, size_t bytes, const char *key, uint64_t number)
{
    return snprintf(out, bytes, "%s = %" PRIu64 "\n", key, number);
}

static int print_sized(char *out, size_t bytes, const char *key, struct sim_cost_sized cost)
{
    HOLDS(cost.base <= SIM_COST_MAX && cost.per_mib <= SIM_COST_MAX && cost.min <= SIM_COST_MAX);
    return snprintf(out, bytes, "%s = %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", key, cost.base,
                    cost.per_mib, cost.min);
}

/* Prints each member explicitly, independently of the table of the parser. */
static size_t print(const struct sim_costs *costs, char *out, size_t bytes)
{
    size_t length = (size_t)snprintf(out, bytes, "name = %s\n", costs->name);

#define PRINT_NUMBER(member)              \
    HOLDS(costs->member <= SIM_COST_MAX); \
    length += (size_t)print_number(out + length, bytes - length, #member, costs->member)
#define PRINT_SIZED(member) \
    length += (size_t)print_sized(out + length, bytes - length, #member, costs->member)
    PRINT_NUMBER(reserve);
    PRINT_NUMBER(address_free);
    PRINT_SIZED(create);
    PRINT_SIZED(map);
    PRINT_SIZED(release);
    PRINT_NUMBER(unmap);
    PRINT_SIZED(unmap_mapping);
    PRINT_NUMBER(access_call);
    PRINT_SIZED(access);
    PRINT_SIZED(access_wide);
    PRINT_SIZED(alloc);
    PRINT_SIZED(free);
    PRINT_NUMBER(event_create);
    PRINT_NUMBER(event_record);
    PRINT_NUMBER(event_query);
    PRINT_NUMBER(stream_wait);
    PRINT_NUMBER(synchronize);
    HOLDS(length < bytes);
    return length;
}

static void check_accepted(const struct sim_costs *costs)
{
    struct sim_costs reparsed;
    char text[4096], error[ERROR_BYTES];
    const size_t length = print(costs, text, sizeof(text));

    HOLDS(strlen(costs->name) > 0 && strlen(costs->name) < SIM_COSTS_NAME_MAX);
    memset(&reparsed, 0, sizeof(reparsed));
    HOLDS(sim_costs_parse(text, length, &reparsed, error, sizeof(error)));
    HOLDS(strcmp(reparsed.name, costs->name) == 0);
    HOLDS(memcmp((const char *)&reparsed + SIM_COSTS_NAME_MAX,
                 (const char *)costs + SIM_COSTS_NAME_MAX,
                 sizeof(reparsed) - SIM_COSTS_NAME_MAX) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sim_costs costs, before;
    char error[ERROR_BYTES] = "";
    /* The buffer has the exact size, so that AddressSanitizer detects a read past the end. */
    char *text = malloc(size > 0 ? size : 1);

    if (text == NULL)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    memset(&costs, 0x5a, sizeof(costs));
    memcpy(&before, &costs, sizeof(costs));
    if (sim_costs_parse(text, size, &costs, error, sizeof(error))) {
        check_accepted(&costs);
    } else {
        HOLDS(memcmp(&costs, &before, sizeof(costs)) == 0);
        HOLDS(error[0] != '\0' && strlen(error) < sizeof(error) && strchr(error, ';') != NULL);
    }
    free(text);
    return 0;
}
