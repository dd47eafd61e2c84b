/* SPDX-License-Identifier: MIT */
#include "vmm/sim/entry.h"

#include <string.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/context.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/report.h"

const struct sim_call_info sim_call_info[SIM_CALL_COUNT] = {
#define ROW(id, name_, symbol, version_, checks_) \
    [SIM_CALL_##id] = {.name = (name_), .version = (version_), .checks = (checks_)},
    SIM_CALL_MAP(ROW)
#undef ROW
};

CUresult sim_enter_checked(enum sim_call call, uint64_t first, uint64_t second)
{
    const unsigned checks = sim_call_info[call].checks;
    CUresult result;

    sim_machine.fast_entry =
        sim_machine.initialized && !sim_machine.forked && !sim_machine.config.without_vmm &&
        !sim_machine.completions.is_running && sim_machine.faults.slot_end == 0;
    if (sim_machine.faults.slot_end != 0) {
        result = (CUresult)sim_faults_check_call(&sim_machine.faults, call, first, second);
        if (result != CUDA_SUCCESS)
            return result;
    }
    /* Real drivers return this error for every call in a forked child. */
    if (sim_machine.forked && (checks & SIM_NEVER_FAILS) == 0)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (sim_machine.completions.is_running &&
        sim_machine.completions.runner == sim_thread()->number && (checks & SIM_NEVER_FAILS) == 0)
        return CUDA_ERROR_NOT_PERMITTED;
    if ((checks & SIM_NEEDS_INIT) != 0 && !sim_machine.initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if ((checks & SIM_NEEDS_CONTEXT) != 0) {
        unsigned device;

        result = sim_context_current(&device);
        if (result != CUDA_SUCCESS)
            return result;
    }
    if ((checks & SIM_NEEDS_VMM) != 0 && sim_machine.config.without_vmm)
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((checks & SIM_UNSAFE) != 0)
        return sim_capture_check_unsafe_call();
    return CUDA_SUCCESS;
}

uint64_t xseg_sim_calls(const char *call)
{
    uint64_t count = 0;

    if (call != NULL && sim_call_name(call) == NULL)
        sim_warn("xseg_sim_calls: unknown driver call, '%s'; use a name without version suffix, "
                 "such as cuMemCreate",
                 call);
    sim_lock();
    for (int i = 0; i < SIM_CALL_COUNT; i++)
        if (call == NULL || strcmp(call, sim_call_info[i].name) == 0)
            count += sim_machine.calls[i];
    sim_unlock();
    return count;
}

static void (*const symbols[SIM_CALL_COUNT])(void) = {
#define ROW(id, name, symbol, version, checks) [SIM_CALL_##id] = (void (*)(void))symbol,
    SIM_CALL_MAP(ROW)
#undef ROW
};

/* Find the latest signature of a name in a CUDA version.  There are no per-thread variants (_ptsz). */
static CUdriverProcAddressQueryResult find_symbol(const char *name, int version, void **out)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int best = -1;

    for (int i = 0; i < SIM_CALL_COUNT; i++) {
        if (strcmp(sim_call_info[i].name, name) != 0)
            continue;
        if (status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
            status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if (sim_call_info[i].version <= version &&
            (best < 0 || sim_call_info[i].version > sim_call_info[best].version))
            best = i;
    }
    *out = NULL;
    if (best < 0)
        return status;
    /* ISO C has no cast from a function pointer to an object pointer. */
    memcpy(out, &symbols[best], sizeof(*out));
    return CU_GET_PROC_ADDRESS_SUCCESS;
}

/* For an unknown name drivers return CUDA_ERROR_NOT_FOUND, although cuda.h documents success.  *out is NULL and *status is
 * the reason. */
static CUresult get_proc_address(const char *name, void **out, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status)
{
    const cuuint64_t known =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    CUdriverProcAddressQueryResult found;

    if (name == NULL || out == NULL || (flags & ~known) != 0 || flags == known ||
        version > SIM_DRIVER_VERSION)
        return CUDA_ERROR_INVALID_VALUE;
    found = find_symbol(name, version, out);
    if (status != NULL)
        *status = found;
    return found == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SIM_ENTRY(GET_PROC_ADDRESS, cuGetProcAddress_v2,
          (const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
           CUdriverProcAddressQueryResult *symbolStatus),
          get_proc_address(symbol, pfn, cudaVersion, flags, symbolStatus));
SIM_ENTRY(GET_PROC_ADDRESS_V1, cuGetProcAddress,
          (const char *symbol, void **pfn, int version, cuuint64_t flags),
          get_proc_address(symbol, pfn, version, flags, NULL));

/* Names and strings by error number, because older versions of cuda.h lack some of the names. */
/* clang-format off */
static const struct {
    int number;
    const char *name, *string;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {5, "CUDA_ERROR_PROFILER_DISABLED", "profiler disabled while using external profiling tool"},
    {6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "profiler not initialized"},
    {7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "profiler already started"},
    {8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "profiler already stopped"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "API call is not supported in the installed CUDA driver"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "device not licensed"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "context already current"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {206, "CUDA_ERROR_UNMAP_FAILED", "unmapping of buffer object failed"},
    {207, "CUDA_ERROR_ARRAY_IS_MAPPED", "array is mapped"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no binary for gpu"},
    {210, "CUDA_ERROR_ALREADY_ACQUIRED", "already acquired"},
    {211, "CUDA_ERROR_NOT_MAPPED", "resource not mapped"},
    {212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "not mapped as array"},
    {213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "not mapped as pointer"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "unsupported limit"},
    {216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "context already in use"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access unsupported"},
    {218, "CUDA_ERROR_INVALID_PTX", "invalid ptx"},
    {219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "invalid graphics context"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "nvlink uncorrectable"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "jit compiler not found"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "unsupported ptx version"},
    {223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "jit compilation disabled"},
    {224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "unsupported exec affinity"},
    {225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "unsupported devside sync"},
    {226, "CUDA_ERROR_CONTAINED", "contained"},
    {300, "CUDA_ERROR_INVALID_SOURCE", "invalid source"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found"},
    {303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "shared object init failed"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "operating system"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {402, "CUDA_ERROR_LOSSY_QUERY", "attempted introspection would be semantically lossy"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "launch incompatible texturing"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access already enabled"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access not enabled"},
    {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "primary context active"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {710, "CUDA_ERROR_ASSERT", "assert"},
    {711, "CUDA_ERROR_TOO_MANY_PEERS", "too many peers"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "host memory already registered"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "host memory not registered"},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "illegal instruction"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "invalid address space"},
    {718, "CUDA_ERROR_INVALID_PC", "invalid pc"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "cooperative launch too large"},
    {721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory leak"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not ready"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system driver mismatch"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "compat not supported on device"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "mps connection failed"},
    {806, "CUDA_ERROR_MPS_RPC_FAILURE", "mps rpc failure"},
    {807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "mps server not ready"},
    {808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "mps max clients reached"},
    {809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "mps max connections reached"},
    {810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "mps client terminated"},
    {811, "CUDA_ERROR_CDP_NOT_SUPPORTED", "cdp not supported"},
    {812, "CUDA_ERROR_CDP_VERSION_MISMATCH", "cdp version mismatch"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
    {909, "CUDA_ERROR_TIMEOUT", "timeout"},
    {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "graph exec update failure"},
    {911, "CUDA_ERROR_EXTERNAL_DEVICE", "external device"},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "invalid cluster size"},
    {913, "CUDA_ERROR_FUNCTION_NOT_LOADED", "function not loaded"},
    {914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "invalid resource type"},
    {915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "invalid resource configuration"},
    {916, "CUDA_ERROR_KEY_ROTATION", "key rotation"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
/* clang-format on */

static CUresult find_error_string(CUresult error, const char **out, bool is_name)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].number == (int)error)
            *out = is_name ? errors[i].name : errors[i].string;
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_ENTRY(GET_ERROR_NAME, cuGetErrorName, (CUresult error, const char **pStr),
          find_error_string(error, pStr, true));
SIM_ENTRY(GET_ERROR_STRING, cuGetErrorString, (CUresult error, const char **pStr),
          find_error_string(error, pStr, false));
