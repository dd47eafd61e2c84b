/* SPDX-License-Identifier: MIT */
#include "vmm/sim/entry.h"

#include <string.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/context.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/refusal.h"

const struct sim_call_info sim_call_info[SIM_CALL_COUNT] = {
#define ROW(id, name_, symbol, version_, checks_) \
    [SIM_CALL_##id] = {.name = (name_), .version = (version_), .checks = (checks_)},
    SIM_CALL_MAP(ROW)
#undef ROW
};

CUresult sim_enter_asking(enum sim_call call, uint64_t first, uint64_t second)
{
    const unsigned checks = sim_call_info[call].checks;
    CUresult result;

    sim_machine.is_plain = sim_machine.initialised && !sim_machine.forked &&
                           !sim_machine.without_vmm && !sim_machine.actions.is_running &&
                           sim_machine.faults.top == 0;
    if (sim_machine.faults.top != 0) {
        result = (CUresult)sim_faults_strike(&sim_machine.faults, call, first, second);
        if (result != CUDA_SUCCESS)
            return result;
    }
    /* A driver does not survive a fork: real drivers answer the child so, whatever it asks for. */
    if (sim_machine.forked && (checks & SIM_NEVER_FAILS) == 0)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (sim_machine.actions.is_running && sim_machine.actions.runner == sim_thread()->number &&
        (checks & SIM_NEVER_FAILS) == 0)
        return CUDA_ERROR_NOT_PERMITTED;
    if ((checks & SIM_NEEDS_INIT) != 0 && !sim_machine.initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if ((checks & SIM_NEEDS_CONTEXT) != 0) {
        unsigned device;

        result = sim_context_current(&device);
        if (result != CUDA_SUCCESS)
            return result;
    }
    if ((checks & SIM_NEEDS_VMM) != 0 && sim_machine.without_vmm)
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((checks & SIM_UNSAFE) != 0)
        return sim_capture_refuse_unsafe();
    return CUDA_SUCCESS;
}

uint64_t xseg_sim_calls(const char *call)
{
    uint64_t count = 0;

    if (call != NULL && sim_call_name(call) == NULL)
        sim_say("xseg_sim_calls: unknown driver call, '%s'; use a name without version suffix, "
                "such as cuMemCreate",
                call);
    sim_lock();
    for (int i = 0; i < SIM_CALL_COUNT; i++)
        if (call == NULL || strcmp(call, sim_call_info[i].name) == 0)
            count += sim_machine.calls[i];
    sim_unlock();
    return count;
}
