/* SPDX-License-Identifier: MIT */
#include "vmm/sim/machine.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB           ((uint64_t)1 << 20)
#define MEMORY_MIB    ((uint64_t)80 << 10)
#define ADDRESSES_MIB ((uint64_t)128 << 20)
#define CANNOT_JOIN                                                                              \
    "cannot join the simulated machine, '%s'; use a name of up to 64 letters, digits, - and _, " \
    "and at most 64 processes"

#define HOST_FORM "set at most the memory of the machine, and `integrated`"

static struct sim_config default_config(void)
{
    return (struct sim_config){
        .devices = 1,
        .memory_bytes = MEMORY_MIB * MIB,
        .address_bytes = ADDRESSES_MIB * MIB,
        .costs = *sim_costs_find_preset(NULL),
        .strict = true,
    };
}

/* Get a preset by name, or read a cost file.  Returns false with an error message on failure. */
static bool find_costs(const char *text, struct sim_costs *costs, char *message,
                       size_t message_bytes)
{
    const struct sim_costs *preset = sim_costs_find_preset(text);
    char reason[192];

    if (preset != NULL) {
        *costs = *preset;
        return true;
    }
    if (!sim_cost_is_path(text))
        (void)snprintf(message, message_bytes,
                       "unknown preset, '%s'; use none, a100, a100_cold, consumer, rocm_slow, or a "
                       "path of a cost file that contains / or .",
                       text);
    else if (sim_costs_read(text, costs, reason, sizeof(reason)))
        return true;
    else
        (void)snprintf(message, message_bytes, "%.256s, %s", text, reason);
    return false;
}

/* Get whether the memory of the host fits in that of the machine, which must be integrated. */
static bool is_host_valid(const struct sim_config *config)
{
    const uint64_t limit = config->integrated ? config->memory_bytes : 0;

    return config->host.bytes <= limit &&
           config->host.page_cache_bytes <= limit - config->host.bytes;
}

static xseg_status get_config_from_settings(const struct xseg_sim_settings *settings,
                                            struct sim_config *config)
{
    struct sim_config result = default_config();
    char message[SIM_MESSAGE_MAX];

    if (settings->struct_size != sizeof(*settings))
        return sim_error(XSEG_ERR_ARGUMENT,
                         "xseg_sim_reset: struct_size is unknown, %zu; set it to "
                         "sizeof(struct xseg_sim_settings)",
                         settings->struct_size);
    if (settings->devices != 0)
        result.devices = settings->devices;
    if (settings->memory_bytes != 0)
        result.memory_bytes = settings->memory_bytes;
    if (settings->address_bytes != 0)
        result.address_bytes = settings->address_bytes;
    result.single_mapping_calls = settings->single_mapping_calls;
    result.without_vmm = settings->without_vmm;
    result.strict = !settings->skip_checks;
    result.tail_seed = settings->tail_seed;
    result.without_peers = settings->without_peers;
    result.real_bytes = settings->real_bytes;
    result.reuse_handles = settings->reuse_handles;
    result.fabric = settings->fabric;
    result.rdma = settings->rdma;
    result.without_dma_buf = settings->without_dma_buf;
    result.without_address_range = settings->without_address_range;
    result.address_order = settings->address_order;
    result.integrated = settings->integrated;
    result.host = (struct sim_host){settings->host_bytes, settings->page_cache_bytes};
    if (result.devices > SIM_DEVICES_MAX)
        return sim_error(XSEG_ERR_ARGUMENT, "xseg_sim_reset: too many devices, %u; set at most %u",
                         result.devices, SIM_DEVICES_MAX);
    if ((unsigned)result.rdma > XSEG_SIM_RDMA_ABSENT)
        return sim_error(XSEG_ERR_ARGUMENT,
                         "xseg_sim_reset: unknown rdma, %u; set a value of enum xseg_sim_rdma",
                         (unsigned)result.rdma);
    if ((unsigned)result.address_order > XSEG_SIM_ADDRESSES_SHUFFLED)
        return sim_error(
            XSEG_ERR_ARGUMENT,
            "xseg_sim_reset: unknown address_order, %u; set a value of enum xseg_sim_address_order",
            (unsigned)result.address_order);
    if (result.memory_bytes % SIM_GRANULE != 0)
        return sim_error(XSEG_ERR_ARGUMENT,
                         "xseg_sim_reset: memory_bytes is not a multiple of 2 MiB, %" PRIu64
                         " bytes; round it to whole granules",
                         result.memory_bytes);
    if (!is_host_valid(&result))
        return sim_error(XSEG_ERR_ARGUMENT,
                         "xseg_sim_reset: host_bytes and page_cache_bytes are invalid, %" PRIu64
                         " and %" PRIu64 " bytes; " HOST_FORM,
                         result.host.bytes, result.host.page_cache_bytes);
    if (!find_costs(settings->costs, &result.costs, message, sizeof(message)))
        return sim_error(XSEG_ERR_ARGUMENT, "xseg_sim_reset: costs: %s", message);
    if (settings->shared != NULL && !sim_shared_join(settings->shared, &result))
        return sim_error(XSEG_ERR_ARGUMENT, "xseg_sim_reset: shared: " CANNOT_JOIN,
                         settings->shared);
    *config = result;
    return XSEG_OK;
}

/* Parse a decimal number from low to high that ends at the end of the text or at a character of `ends`. */
static bool parse_number(const char *text, uint64_t low, uint64_t high, const char *ends,
                         uint64_t *number, const char **end)
{
    unsigned long long value;
    char *stop;

    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    value = strtoull(text, &stop, 10);
    if (errno != 0 || value < low || value > high || (*stop != '\0' && strchr(ends, *stop) == NULL))
        return false;
    *number = value;
    *end = stop;
    return true;
}

static bool parse_whole_number(const char *text, uint64_t low, uint64_t high, uint64_t *number)
{
    const char *end;

    return parse_number(text, low, high, "", number, &end);
}

/* Parse 0 or 1.  The value `set_by` sets the flag, the other one clears it. */
static bool parse_flag(const char *text, bool *flag, uint64_t set_by)
{
    uint64_t number;

    if (!parse_whole_number(text, 0, 1, &number))
        return false;
    *flag = number == set_by;
    return true;
}

static bool parse_devices(const char *text, struct sim_config *config)
{
    uint64_t number;

    if (!parse_whole_number(text, 1, SIM_DEVICES_MAX, &number))
        return false;
    config->devices = (unsigned)number;
    return true;
}

static bool parse_memory(const char *text, struct sim_config *config)
{
    uint64_t number;

    if (!parse_whole_number(text, 2, UINT64_MAX / MIB, &number) || number % 2 != 0)
        return false;
    config->memory_bytes = number * MIB;
    return true;
}

static bool parse_host(const char *text, struct sim_config *config)
{
    uint64_t number;

    if (!parse_whole_number(text, 0, UINT64_MAX / MIB, &number))
        return false;
    config->host.bytes = number * MIB;
    return true;
}

static bool parse_page_cache(const char *text, struct sim_config *config)
{
    uint64_t number;

    if (!parse_whole_number(text, 0, UINT64_MAX / MIB, &number))
        return false;
    config->host.page_cache_bytes = number * MIB;
    return true;
}

static bool parse_addresses(const char *text, struct sim_config *config)
{
    uint64_t number;

    if (!parse_whole_number(text, 1, UINT64_MAX / MIB, &number))
        return false;
    config->address_bytes = number * MIB;
    return true;
}

static bool parse_tail_seed(const char *text, struct sim_config *config)
{
    return parse_whole_number(text, 0, UINT64_MAX, &config->tail_seed);
}

/* Find the index of a name.  Returns count for an unknown name. */
static unsigned find_name(const char *text, const char *const *names, unsigned count)
{
    unsigned i = 0;

    while (i < count && strcmp(text, names[i]) != 0)
        i++;
    return i;
}

static bool parse_rdma(const char *text, struct sim_config *config)
{
    static const char *const names[] = {
        [XSEG_SIM_RDMA_WORKS] = "works",
        [XSEG_SIM_RDMA_CREATE_FAILS] = "create_fails",
        [XSEG_SIM_RDMA_ACCESS_FAILS] = "access_fails",
        [XSEG_SIM_RDMA_IGNORED] = "ignored",
        [XSEG_SIM_RDMA_ABSENT] = "absent",
    };
    const unsigned found = find_name(text, names, XSEG_SIM_RDMA_ABSENT + 1);

    if (found > XSEG_SIM_RDMA_ABSENT)
        return false;
    config->rdma = (enum xseg_sim_rdma)found;
    return true;
}

static bool parse_address_order(const char *text, struct sim_config *config)
{
    static const char *const names[] = {
        [XSEG_SIM_ADDRESSES_RISING] = "rising",
        [XSEG_SIM_ADDRESSES_FALLING] = "falling",
        [XSEG_SIM_ADDRESSES_SHUFFLED] = "shuffled",
    };
    const unsigned found = find_name(text, names, XSEG_SIM_ADDRESSES_SHUFFLED + 1);

    if (found > XSEG_SIM_ADDRESSES_SHUFFLED)
        return false;
    config->address_order = (enum xseg_sim_address_order)found;
    return true;
}

/* Parse CALL:N[+EVERY][:ERROR] with an optional CALL. */
static bool parse_fault(const char *text, struct sim_faults *faults, const char **end)
{
    const char *colon = strchr(text, ':');
    struct sim_fault fault = {.error = CUDA_ERROR_OUT_OF_MEMORY};
    uint64_t error;
    char name[64];

    if (faults->slot_end == XSEG_SIM_FAULTS || colon == NULL ||
        (size_t)(colon - text) >= sizeof(name) ||
        !parse_number(colon + 1, 1, UINT64_MAX, "+:,", &fault.countdown, end))
        return false;
    if (**end == '+' && !parse_number(*end + 1, 1, UINT64_MAX, ":,", &fault.every, end))
        return false;
    if (**end == ':') {
        if (!parse_number(*end + 1, 1, INT_MAX, ",", &error, end))
            return false;
        fault.error = (int)error;
    }
    if (colon != text) {
        memcpy(name, text, (size_t)(colon - text));
        name[colon - text] = '\0';
        fault.name = sim_call_name(name);
        if (fault.name == NULL)
            return false;
    }
    faults->fault[faults->slot_end++] = fault;
    return true;
}

/* Parse faults that are separated by commas. */
static bool parse_faults(const char *text, struct sim_config *config)
{
    struct sim_faults faults = {.slot_end = 0};
    const char *end;

    for (;; text = end + 1) {
        if (!parse_fault(text, &faults, &end))
            return false;
        if (*end == '\0')
            break;
    }
    config->faults = faults;
    return true;
}

/* Variables of the environment.  `parse` is NULL for a variable that sets or clears a flag. */
static const struct {
    const char *name;
    bool (*parse)(const char *text, struct sim_config *config);
    const char *form;
    size_t flag;     /* offset in struct sim_config */
    uint64_t set_by; /* value that sets the flag */
} variables[] = {
#define FLAG(name, member, set_by)                                            \
    {                                                                         \
        (name), NULL, "0 or 1", offsetof(struct sim_config, member), (set_by) \
    }
    {"XSEG_SIM_DEVICES", parse_devices, "a number from 1 to 64", 0, 0},
    {"XSEG_SIM_MEMORY_MB", parse_memory, "an even number of MiB, at least 2", 0, 0},
    {"XSEG_SIM_ADDRESSES_MB", parse_addresses, "a number of MiB, at least 1", 0, 0},
    FLAG("XSEG_SIM_BATCH", single_mapping_calls, 0),
    FLAG("XSEG_SIM_VMM", without_vmm, 0),
    FLAG("XSEG_SIM_STRICT", strict, 1),
    {"XSEG_SIM_TAILS", parse_tail_seed, "a number", 0, 0},
    FLAG("XSEG_SIM_PEERS", without_peers, 0),
    FLAG("XSEG_SIM_BYTES", real_bytes, 1),
    FLAG("XSEG_SIM_FABRIC", fabric, 1),
    FLAG("XSEG_SIM_REUSE_HANDLES", reuse_handles, 1),
    {"XSEG_SIM_RDMA", parse_rdma, "works, create_fails, access_fails, ignored or absent", 0, 0},
    FLAG("XSEG_SIM_DMA_BUF", without_dma_buf, 0),
    FLAG("XSEG_SIM_ADDRESS_RANGE", without_address_range, 0),
    {"XSEG_SIM_ADDRESS_ORDER", parse_address_order, "rising, falling or shuffled", 0, 0},
    FLAG("XSEG_SIM_INTEGRATED", integrated, 1),
    {"XSEG_SIM_HOST_MB", parse_host, "a number of MiB", 0, 0},
    {"XSEG_SIM_PAGE_CACHE_MB", parse_page_cache, "a number of MiB", 0, 0},
    {"XSEG_SIM_FAIL", parse_faults,
     "CALL:N[+EVERY][:ERROR] with an empty CALL or a name such as cuMemCreate; separate up to 16 "
     "by commas",
     0, 0},
#undef FLAG
};

static bool parse_variable(size_t i, const char *text, struct sim_config *config)
{
    return variables[i].parse != NULL
               ? variables[i].parse(text, config)
               : parse_flag(text, (bool *)((char *)config + variables[i].flag),
                            variables[i].set_by);
}

/* Write the last error message to standard error if `report` is set.  Returns the status. */
static xseg_status report_invalid(bool report, xseg_status status)
{
    char text[SIM_MESSAGE_MAX];

    (void)xseg_sim_error_message(text, sizeof(text));
    if (report)
        sim_warn("ignoring %s", text);
    return status;
}

static xseg_status get_environment_costs(struct sim_config *config, bool report)
{
    const char *text = secure_getenv("XSEG_SIM_COSTS");
    char message[SIM_MESSAGE_MAX];

    if (text == NULL || *text == '\0' || find_costs(text, &config->costs, message, sizeof(message)))
        return XSEG_OK;
    return report_invalid(report, sim_error(XSEG_ERR_ARGUMENT, "XSEG_SIM_COSTS: %s", message));
}

xseg_status sim_config_from_environment(struct sim_config *config, bool report)
{
    const char *shared = secure_getenv("XSEG_SIM_SHARED");
    xseg_status status;

    *config = default_config();
    status = get_environment_costs(config, report);
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        const char *text = secure_getenv(variables[i].name);

        if (text == NULL || *text == '\0' || parse_variable(i, text, config))
            continue;
        status =
            report_invalid(report, sim_error(XSEG_ERR_ARGUMENT, "%s: invalid value, '%s'; set %s",
                                             variables[i].name, text, variables[i].form));
    }
    if (!is_host_valid(config)) {
        status = report_invalid(
            report,
            sim_error(XSEG_ERR_ARGUMENT,
                      "XSEG_SIM_HOST_MB and XSEG_SIM_PAGE_CACHE_MB: invalid values, %" PRIu64
                      " and %" PRIu64 " MiB; " HOST_FORM,
                      config->host.bytes / MIB, config->host.page_cache_bytes / MIB));
        config->host = (struct sim_host){0, 0};
    }
    /* Last, because the shared machine overrides the number of devices and their memory. */
    if (shared == NULL || *shared == '\0' || (status != XSEG_OK && !report) ||
        sim_shared_join(shared, config))
        return status;
    return report_invalid(report,
                          sim_error(XSEG_ERR_ARGUMENT, "XSEG_SIM_SHARED: " CANNOT_JOIN, shared));
}

xseg_status xseg_sim_reset(const struct xseg_sim_settings *settings)
{
    struct sim_config config;
    xseg_status status = settings == NULL ? sim_config_from_environment(&config, false)
                                          : get_config_from_settings(settings, &config);

    if (status != XSEG_OK)
        return status;
    sim_lock();
    sim_machine_start(&config);
    sim_unlock();
    return XSEG_OK;
}
