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

int sim_fault_strikes(struct sim_fault *fault, enum sim_call call)
{
    const struct sim_call_info *info = &sim_call_info[call];

    if (fault->left == 0)
        return 0;
    if (fault->name == NULL ? (info->checks & SIM_NEVER_FAILS) != 0
                            : strcmp(fault->name, info->name) != 0)
        return 0;
    if (--fault->left != 0)
        return 0;
    fault->struck = true;
    return fault->error;
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
        sim_machine.fault.left = 0;
    else
        sim_machine.fault = fault;
    sim_unlock();
    return XSEG_OK;
}

bool xseg_sim_failed(void)
{
    bool struck;

    sim_lock();
    struck = sim_machine.fault.struck;
    sim_unlock();
    return struck;
}
