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

static bool is_about_address(const struct sim_fault *fault, uint64_t address)
{
    return address != 0 && address >= fault->address && address - fault->address < fault->bytes;
}

static bool is_about(const struct sim_fault *fault, const struct sim_call_info *info,
                     uint64_t first, uint64_t second)
{
    if (fault->name == NULL ? (info->checks & SIM_NEVER_FAILS) != 0
                            : strcmp(fault->name, info->name) != 0)
        return false;
    return fault->bytes == 0 || is_about_address(fault, first) || is_about_address(fault, second);
}

int sim_faults_strike(struct sim_faults *faults, enum sim_call call, uint64_t first,
                      uint64_t second)
{
    int error = 0;

    faults->halfway_error = 0;
    for (unsigned i = 0; i < faults->top; i++) {
        struct sim_fault *fault = &faults->fault[i];

        if (fault->left == 0 || !is_about(fault, &sim_call_info[call], first, second) ||
            --fault->left != 0)
            continue;
        fault->struck++;
        fault->left = fault->every;
        if (fault->halfway == 0) {
            error = error == 0 ? fault->error : error;
        } else if (faults->halfway_error == 0) {
            faults->halfway_error = fault->error;
            faults->halfway_left = fault->halfway;
        }
    }
    return error;
}

int sim_faults_stop(struct sim_faults *faults)
{
    if (faults->halfway_error == 0 || faults->halfway_left-- != 0)
        return 0;
    return faults->halfway_error;
}

static void set(unsigned slot, const struct sim_fault *fault)
{
    struct sim_faults *faults = &sim_machine.faults;

    faults->fault[slot] = *fault;
    if (slot >= faults->top)
        faults->top = slot + 1;
}

xseg_status xseg_sim_fail(const char *call, uint64_t nth, int error)
{
    struct sim_fault fault = {.left = nth, .error = error};

    if (nth != 0 && error == CUDA_SUCCESS)
        return XSEG_ERR_ARGUMENT;
    if (call != NULL) {
        fault.name = sim_call_name(call);
        if (fault.name == NULL)
            return XSEG_ERR_ARGUMENT;
    }
    sim_lock();
    if (nth == 0)
        sim_machine.faults.fault[0].left = 0;
    else
        set(0, &fault);
    sim_unlock();
    return XSEG_OK;
}

bool xseg_sim_failed(void)
{
    return xseg_sim_fault_struck(0) != 0;
}

/* Only these work through several mappings, so only these can stop half-way. */
static bool can_stop(const char *call)
{
    return call != NULL && (strcmp(call, "cuMemUnmap") == 0 || strcmp(call, "cuMemSetAccess") == 0);
}

xseg_status xseg_sim_fault_set(unsigned slot, const struct xseg_sim_fault *wanted)
{
    struct sim_fault fault = {.left = 0};

    if (slot >= XSEG_SIM_FAULTS)
        return XSEG_ERR_ARGUMENT;
    if (wanted != NULL) {
        if (wanted->struct_bytes != sizeof(*wanted) || wanted->error == CUDA_SUCCESS ||
            wanted->nth == 0 || (wanted->halfway != 0 && !can_stop(wanted->call)))
            return XSEG_ERR_ARGUMENT;
        fault = (struct sim_fault){.address = wanted->address,
                                   .bytes = wanted->bytes,
                                   .left = wanted->nth,
                                   .every = wanted->every,
                                   .halfway = wanted->halfway,
                                   .error = wanted->error};
        if (wanted->call != NULL) {
            fault.name = sim_call_name(wanted->call);
            if (fault.name == NULL)
                return XSEG_ERR_ARGUMENT;
        }
    }
    sim_lock();
    if (wanted == NULL)
        sim_machine.faults.fault[slot].left = 0;
    else
        set(slot, &fault);
    sim_unlock();
    return XSEG_OK;
}

uint64_t xseg_sim_fault_struck(unsigned slot)
{
    uint64_t struck = 0;

    sim_lock();
    if (slot < XSEG_SIM_FAULTS)
        struck = sim_machine.faults.fault[slot].struck;
    sim_unlock();
    return struck;
}
