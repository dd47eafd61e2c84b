/* SPDX-License-Identifier: MIT */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/sim/cost_file.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/refusal.h"

#define MIB           ((uint64_t)1 << 20)
#define MEMORY_MIB    ((uint64_t)80 << 10)
#define ADDRESSES_MIB ((uint64_t)128 << 20)
#define MESSAGE_BYTES 512
#define CANNOT_JOIN                                                                              \
    "cannot join the simulated machine, '%s'; use a name of up to 64 letters, digits, - and _, " \
    "and at most 64 processes"

static struct sim_scene default_config(void)
{
    return (struct sim_scene){
        .devices = 1,
        .memory_bytes = MEMORY_MIB * MIB,
        .address_bytes = ADDRESSES_MIB * MIB,
        .costs = *sim_costs_find(NULL),
    };
}

/* Get a preset by its name, or read a cost file.  Returns: false with a message in `why` on failure. */
static bool find_costs(const char *text, struct sim_costs *costs, char *why, size_t why_bytes)
{
    const struct sim_costs *preset = sim_costs_find(text);
    char problem[192];

    if (preset != NULL) {
        *costs = *preset;
        return true;
    }
    if (!sim_cost_file_is(text))
        (void)snprintf(why, why_bytes,
                       "unknown preset, '%s'; use none, a100, a100_cold, consumer, rocm_slow, or a "
                       "path of a cost file that contains / or .",
                       text);
    else if (sim_cost_file_read(text, costs, problem, sizeof(problem)))
        return true;
    else
        (void)snprintf(why, why_bytes, "%.256s, %s", text, problem);
    return false;
}

xseg_status sim_scene_of(const struct xseg_sim_settings *settings, struct sim_scene *scene)
{
    struct sim_scene wanted = default_config();
    char why[MESSAGE_BYTES];

    if (settings->struct_size != sizeof(*settings))
        return sim_refuse(XSEG_ERR_ARGUMENT,
                          "xseg_sim_reset: struct_size is unknown, %zu; set it to "
                          "sizeof(struct xseg_sim_settings)",
                          settings->struct_size);
    if (settings->devices != 0)
        wanted.devices = settings->devices;
    if (settings->memory_bytes != 0)
        wanted.memory_bytes = settings->memory_bytes;
    if (settings->address_bytes != 0)
        wanted.address_bytes = settings->address_bytes;
    wanted.one_by_one = settings->single_mapping_calls;
    wanted.without_vmm = settings->without_vmm;
    wanted.fast = settings->skip_checks;
    wanted.tail_seed = settings->tail_seed;
    wanted.without_peers = settings->without_peers;
    wanted.real_bytes = settings->real_bytes;
    wanted.recycles = settings->reuse_handles;
    wanted.fabric = settings->fabric;
    wanted.rdma = settings->rdma;
    wanted.without_dma_buf = settings->without_dma_buf;
    wanted.no_address_range = settings->without_address_range;
    wanted.address_order = settings->address_order;
    if (wanted.devices > SIM_DEVICES_MAX)
        return sim_refuse(XSEG_ERR_ARGUMENT, "xseg_sim_reset: too many devices, %u; set at most %u",
                          wanted.devices, SIM_DEVICES_MAX);
    if ((unsigned)wanted.rdma > XSEG_SIM_RDMA_ABSENT)
        return sim_refuse(XSEG_ERR_ARGUMENT,
                          "xseg_sim_reset: unknown rdma, %u; set a value of enum xseg_sim_rdma",
                          (unsigned)wanted.rdma);
    if ((unsigned)wanted.address_order > XSEG_SIM_ADDRESSES_SHUFFLED)
        return sim_refuse(
            XSEG_ERR_ARGUMENT,
            "xseg_sim_reset: unknown address_order, %u; set a value of enum xseg_sim_address_order",
            (unsigned)wanted.address_order);
    if (wanted.memory_bytes % SIM_GRANULE != 0)
        return sim_refuse(XSEG_ERR_ARGUMENT,
                          "xseg_sim_reset: memory_bytes is not a multiple of 2 MiB, %" PRIu64
                          " bytes",
                          wanted.memory_bytes);
    if (!find_costs(settings->costs, &wanted.costs, why, sizeof(why)))
        return sim_refuse(XSEG_ERR_ARGUMENT, "xseg_sim_reset: costs: %s", why);
    if (settings->shared != NULL && !sim_shared_join(settings->shared, &wanted))
        return sim_refuse(XSEG_ERR_ARGUMENT, "xseg_sim_reset: shared: " CANNOT_JOIN,
                          settings->shared);
    *scene = wanted;
    return XSEG_OK;
}

/* A decimal number from low to high, ended by one of the characters in `ends`. */
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

static bool take_devices(const char *text, struct sim_scene *scene)
{
    uint64_t number;

    if (!parse_whole_number(text, 1, SIM_DEVICES_MAX, &number))
        return false;
    scene->devices = (unsigned)number;
    return true;
}

static bool take_memory(const char *text, struct sim_scene *scene)
{
    uint64_t number;

    if (!parse_whole_number(text, 2, UINT64_MAX / MIB, &number) || number % 2 != 0)
        return false;
    scene->memory_bytes = number * MIB;
    return true;
}

static bool take_addresses(const char *text, struct sim_scene *scene)
{
    uint64_t number;

    if (!parse_whole_number(text, 1, UINT64_MAX / MIB, &number))
        return false;
    scene->address_bytes = number * MIB;
    return true;
}

static bool take_batch(const char *text, struct sim_scene *scene)
{
    uint64_t number;

    if (!parse_whole_number(text, 0, 1, &number))
        return false;
    scene->one_by_one = number == 0;
    return true;
}

static bool take_vmm(const char *text, struct sim_scene *scene)
{
    uint64_t number;

    if (!parse_whole_number(text, 0, 1, &number))
        return false;
    scene->without_vmm = number == 0;
    return true;
}

static bool take_strict(const char *text, struct sim_scene *scene)
{
    uint64_t number;

    if (!parse_whole_number(text, 0, 1, &number))
        return false;
    scene->fast = number == 0;
    return true;
}

static bool take_bytes(const char *text, struct sim_scene *scene)
{
    uint64_t number;

    if (!parse_whole_number(text, 0, 1, &number))
        return false;
    scene->real_bytes = number == 1;
    return true;
}

static bool take_tails(const char *text, struct sim_scene *scene)
{
    return parse_whole_number(text, 0, UINT64_MAX, &scene->tail_seed);
}

static bool take_peers(const char *text, struct sim_scene *scene)
{
    uint64_t number;

    if (!parse_whole_number(text, 0, 1, &number))
        return false;
    scene->without_peers = number == 0;
    return true;
}

static bool take_recycle(const char *text, struct sim_scene *scene)
{
    uint64_t number;

    if (!parse_whole_number(text, 0, 1, &number))
        return false;
    scene->recycles = number == 1;
    return true;
}

static bool take_fabric(const char *text, struct sim_scene *scene)
{
    uint64_t number;

    if (!parse_whole_number(text, 0, 1, &number))
        return false;
    scene->fabric = number == 1;
    return true;
}

static bool take_rdma(const char *text, struct sim_scene *scene)
{
    static const char *const names[] = {
        [XSEG_SIM_RDMA_WORKS] = "works",         [XSEG_SIM_RDMA_CREATE_FAILS] = "refused",
        [XSEG_SIM_RDMA_ACCESS_FAILS] = "denied", [XSEG_SIM_RDMA_IGNORED] = "ignored",
        [XSEG_SIM_RDMA_ABSENT] = "absent",
    };

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(text, names[i]) == 0) {
            scene->rdma = (enum xseg_sim_rdma)i;
            return true;
        }
    return false;
}

static bool take_dma_buf(const char *text, struct sim_scene *scene)
{
    uint64_t number;

    if (!parse_whole_number(text, 0, 1, &number))
        return false;
    scene->without_dma_buf = number == 0;
    return true;
}

static bool take_address_range(const char *text, struct sim_scene *scene)
{
    uint64_t number;

    if (!parse_whole_number(text, 0, 1, &number))
        return false;
    scene->no_address_range = number == 0;
    return true;
}

static bool take_address_order(const char *text, struct sim_scene *scene)
{
    static const char *const names[] = {
        [XSEG_SIM_ADDRESSES_RISING] = "rising",
        [XSEG_SIM_ADDRESSES_FALLING] = "falling",
        [XSEG_SIM_ADDRESSES_SHUFFLED] = "shuffled",
    };

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(text, names[i]) == 0) {
            scene->address_order = (enum xseg_sim_address_order)i;
            return true;
        }
    return false;
}

/* CALL:N[+EVERY][:ERROR], where CALL may be empty. */
static bool parse_fault(const char *text, struct sim_faults *faults, const char **end)
{
    const char *colon = strchr(text, ':');
    struct sim_fault fault = {.error = CUDA_ERROR_OUT_OF_MEMORY};
    uint64_t error;
    char name[64];

    if (faults->top == XSEG_SIM_FAULTS || colon == NULL || (size_t)(colon - text) >= sizeof(name) ||
        !parse_number(colon + 1, 1, UINT64_MAX, "+:,", &fault.left, end))
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
    faults->fault[faults->top++] = fault;
    return true;
}

/* Several, with commas between. */
static bool take_fault(const char *text, struct sim_scene *scene)
{
    struct sim_faults faults = {.top = 0};
    const char *end;

    for (;; text = end + 1) {
        if (!parse_fault(text, &faults, &end))
            return false;
        if (*end == '\0')
            break;
    }
    scene->faults = faults;
    return true;
}

static const struct {
    const char *name;
    bool (*take)(const char *text, struct sim_scene *scene);
    const char *form;
} variables[] = {
    {"XSEG_SIM_DEVICES", take_devices, "a number from 1 to 64"},
    {"XSEG_SIM_MEMORY_MB", take_memory, "an even number of MiB, at least 2"},
    {"XSEG_SIM_ADDRESSES_MB", take_addresses, "a number of MiB, at least 1"},
    {"XSEG_SIM_BATCH", take_batch, "0 or 1"},
    {"XSEG_SIM_VMM", take_vmm, "0 or 1"},
    {"XSEG_SIM_STRICT", take_strict, "0 or 1"},
    {"XSEG_SIM_TAILS", take_tails, "a number"},
    {"XSEG_SIM_PEERS", take_peers, "0 or 1"},
    {"XSEG_SIM_BYTES", take_bytes, "0 or 1"},
    {"XSEG_SIM_FABRIC", take_fabric, "0 or 1"},
    {"XSEG_SIM_REUSE_HANDLES", take_recycle, "0 or 1"},
    {"XSEG_SIM_RDMA", take_rdma, "works, refused, denied, ignored or absent"},
    {"XSEG_SIM_DMA_BUF", take_dma_buf, "0 or 1"},
    {"XSEG_SIM_ADDRESS_RANGE", take_address_range, "0 or 1"},
    {"XSEG_SIM_ADDRESS_ORDER", take_address_order, "rising, falling or shuffled"},
    {"XSEG_SIM_FAIL", take_fault,
     "CALL:N[+EVERY][:ERROR] with an empty CALL or a name such as cuMemCreate; separate up to 16 "
     "by commas"},
};

/* Write the message of the failure to standard error if the environment is read without a caller who gets the status. */
static xseg_status report_invalid(bool report, xseg_status status)
{
    char text[MESSAGE_BYTES];

    (void)xseg_sim_error_message(text, sizeof(text));
    if (report)
        sim_say("ignoring %s", text);
    return status;
}

static xseg_status get_environment_costs(struct sim_scene *scene, bool report)
{
    const char *text = secure_getenv("XSEG_SIM_COSTS");
    char why[MESSAGE_BYTES];

    if (text == NULL || *text == '\0' || find_costs(text, &scene->costs, why, sizeof(why)))
        return XSEG_OK;
    return report_invalid(report, sim_refuse(XSEG_ERR_ARGUMENT, "XSEG_SIM_COSTS: %s", why));
}

xseg_status sim_scene_of_environment(struct sim_scene *scene, bool report)
{
    const char *shared = secure_getenv("XSEG_SIM_SHARED");
    xseg_status status;

    *scene = default_config();
    status = get_environment_costs(scene, report);
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        const char *text = secure_getenv(variables[i].name);

        if (text == NULL || *text == '\0' || variables[i].take(text, scene))
            continue;
        status =
            report_invalid(report, sim_refuse(XSEG_ERR_ARGUMENT, "%s: invalid value, '%s'; set %s",
                                              variables[i].name, text, variables[i].form));
    }
    /* Last, since the machine that is joined may have more or less of everything. */
    if (shared == NULL || *shared == '\0' || (status != XSEG_OK && !report) ||
        sim_shared_join(shared, scene))
        return status;
    return report_invalid(report,
                          sim_refuse(XSEG_ERR_ARGUMENT, "XSEG_SIM_SHARED: " CANNOT_JOIN, shared));
}

xseg_status xseg_sim_reset(const struct xseg_sim_settings *settings)
{
    struct sim_scene scene;
    xseg_status status =
        settings == NULL ? sim_scene_of_environment(&scene, false) : sim_scene_of(settings, &scene);

    if (status != XSEG_OK)
        return status;
    sim_lock();
    sim_machine_start(&scene);
    sim_unlock();
    return XSEG_OK;
}
