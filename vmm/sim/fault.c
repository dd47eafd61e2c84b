/* SPDX-License-Identifier: MIT */
#include "vmm/sim/fault.h"

#include <string.h>

#include "vmm/sim/machine.h"

const char *sim_call_name(const char *name)
{
    for (int i = 0; i < SIM_CALL_COUNT; i++)
        if (strcmp(sim_call_info[i].name, name) == 0)
            return sim_call_info[i].name;
    return NULL;
}

static bool fault_matches_address(const struct sim_fault *fault, uint64_t address)
{
    return address != 0 && address >= fault->address && address - fault->address < fault->bytes;
}

static bool fault_matches_call(const struct sim_fault *fault, const struct sim_call_info *info,
                               uint64_t first, uint64_t second)
{
    if (fault->name == NULL ? (info->checks & SIM_NEVER_FAILS) != 0
                            : strcmp(fault->name, info->name) != 0)
        return false;
    return fault->bytes == 0 || fault_matches_address(fault, first) ||
           fault_matches_address(fault, second);
}

int sim_faults_check_call(struct sim_faults *faults, enum sim_call call, uint64_t first,
                          uint64_t second)
{
    int error = 0;

    faults->halfway_error = 0;
    for (unsigned i = 0; i < faults->slot_end; i++) {
        struct sim_fault *fault = &faults->fault[i];

        if (fault->countdown == 0 ||
            !fault_matches_call(fault, &sim_call_info[call], first, second) ||
            --fault->countdown != 0)
            continue;
        fault->count++;
        fault->countdown = fault->every;
        if (fault->halfway == 0) {
            error = error == 0 ? fault->error : error;
        } else if (faults->halfway_error == 0) {
            faults->halfway_error = fault->error;
            faults->halfway_remaining = fault->halfway;
        }
    }
    return error;
}

int sim_faults_check_mapping(struct sim_faults *faults)
{
    if (faults->halfway_error == 0 || faults->halfway_remaining-- != 0)
        return 0;
    return faults->halfway_error;
}

static xseg_status reject_call_name(const char *operation, const char *call)
{
    return sim_error(
        XSEG_ERR_ARGUMENT,
        "%s: unknown driver call, '%s'; use a name without version suffix, such as cuMemCreate",
        operation, call);
}

static void set_fault(unsigned slot, const struct sim_fault *fault)
{
    struct sim_faults *faults = &sim_machine.faults;

    faults->fault[slot] = *fault;
    if (slot >= faults->slot_end)
        faults->slot_end = slot + 1;
    sim_machine.fast_entry = false;
}

xseg_status xseg_sim_fail(const char *call, uint64_t nth, int error)
{
    struct sim_fault fault = {.countdown = nth, .error = error};

    if (nth != 0 && error == CUDA_SUCCESS)
        return sim_error(XSEG_ERR_ARGUMENT,
                         "xseg_sim_fail: error is CUDA_SUCCESS, 0; pass the error that the call "
                         "returns, such as 2 (CUDA_ERROR_OUT_OF_MEMORY)");
    fault.name = call == NULL ? NULL : sim_call_name(call);
    if (call != NULL && fault.name == NULL)
        return reject_call_name("xseg_sim_fail", call);
    sim_lock();
    if (nth == 0)
        sim_machine.faults.fault[0].countdown = 0;
    else
        set_fault(0, &fault);
    sim_unlock();
    return XSEG_OK;
}

bool xseg_sim_failed(void)
{
    return xseg_sim_fault_count(0) != 0;
}

/* These calls process several mappings. */
static bool can_fail_halfway(const char *call)
{
    return call != NULL && (strcmp(call, "cuMemUnmap") == 0 || strcmp(call, "cuMemSetAccess") == 0);
}

static xseg_status check_fault(const struct xseg_sim_fault *settings)
{
    if (settings->struct_size != sizeof(*settings))
        return sim_error(XSEG_ERR_ARGUMENT,
                         "xseg_sim_fault_set: struct_size is unknown, %zu; initialize the fault "
                         "with XSEG_SIM_FAULT_INIT",
                         settings->struct_size);
    if (settings->error == CUDA_SUCCESS)
        return sim_error(XSEG_ERR_ARGUMENT,
                         "xseg_sim_fault_set: error is CUDA_SUCCESS, 0; set the error that the "
                         "call returns, such as 2 (CUDA_ERROR_OUT_OF_MEMORY)");
    if (settings->nth == 0)
        return sim_error(XSEG_ERR_ARGUMENT,
                         "xseg_sim_fault_set: nth is 0; set 1 for the next call");
    if (settings->halfway != 0 && !can_fail_halfway(settings->call))
        return sim_error(XSEG_ERR_ARGUMENT,
                         "xseg_sim_fault_set: halfway does not apply to the call, %s; set it for "
                         "cuMemUnmap or cuMemSetAccess",
                         settings->call != NULL ? settings->call : "any");
    return XSEG_OK;
}

xseg_status xseg_sim_fault_set(unsigned slot, const struct xseg_sim_fault *settings)
{
    struct sim_fault fault = {.countdown = 0};

    if (slot >= XSEG_SIM_FAULTS)
        return sim_error(XSEG_ERR_ARGUMENT,
                         "xseg_sim_fault_set: invalid slot, %u; pass a slot below %u", slot,
                         XSEG_SIM_FAULTS);
    if (settings != NULL) {
        const xseg_status status = check_fault(settings);

        if (status != XSEG_OK)
            return status;
        fault = (struct sim_fault){.address = settings->address,
                                   .bytes = settings->bytes,
                                   .countdown = settings->nth,
                                   .every = settings->every,
                                   .halfway = settings->halfway,
                                   .error = settings->error};
        fault.name = settings->call == NULL ? NULL : sim_call_name(settings->call);
        if (settings->call != NULL && fault.name == NULL)
            return reject_call_name("xseg_sim_fault_set", settings->call);
    }
    sim_lock();
    if (settings == NULL)
        sim_machine.faults.fault[slot].countdown = 0;
    else
        set_fault(slot, &fault);
    sim_unlock();
    return XSEG_OK;
}

uint64_t xseg_sim_fault_count(unsigned slot)
{
    uint64_t count = 0;

    sim_lock();
    if (slot < XSEG_SIM_FAULTS)
        count = sim_machine.faults.fault[slot].count;
    sim_unlock();
    return count;
}
