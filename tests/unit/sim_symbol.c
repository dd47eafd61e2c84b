/* SPDX-License-Identifier: MIT */
/* Entry points by name and version. */
#include <dlfcn.h>

#include "tests/unit/sim_setup.h"

#undef cuGetProcAddress
CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags);

/* The version in force when each signature came, and the exported symbol that has it. */
static const struct {
    const char *name, *symbol;
    int version;
} row[] = {
    {"cuInit", "cuInit", 2000},
    {"cuDriverGetVersion", "cuDriverGetVersion", 2020},
    {"cuGetErrorName", "cuGetErrorName", 6000},
    {"cuGetErrorString", "cuGetErrorString", 6000},
    {"cuGetProcAddress", "cuGetProcAddress", 11030},
    {"cuGetProcAddress", "cuGetProcAddress_v2", 12000},
    {"cuDeviceGetCount", "cuDeviceGetCount", 2000},
    {"cuDeviceGet", "cuDeviceGet", 2000},
    {"cuDeviceGetName", "cuDeviceGetName", 2000},
    {"cuDeviceGetUuid", "cuDeviceGetUuid", 9020},
    {"cuDeviceGetUuid", "cuDeviceGetUuid_v2", 11040},
    {"cuDeviceTotalMem", "cuDeviceTotalMem_v2", 3020},
    {"cuDeviceGetAttribute", "cuDeviceGetAttribute", 2000},
    {"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000},
    {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 11000},
    {"cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState", 7000},
    {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", 11000},
    {"cuCtxPushCurrent", "cuCtxPushCurrent_v2", 4000},
    {"cuCtxPopCurrent", "cuCtxPopCurrent_v2", 4000},
    {"cuCtxGetCurrent", "cuCtxGetCurrent", 4000},
    {"cuCtxSetCurrent", "cuCtxSetCurrent", 4000},
    {"cuCtxGetDevice", "cuCtxGetDevice", 2000},
    {"cuCtxGetDevice", "cuCtxGetDevice_v2", 13000},
    {"cuCtxGetId", "cuCtxGetId", 12000},
    {"cuCtxGetFlags", "cuCtxGetFlags", 7000},
    {"cuCtxSetFlags", "cuCtxSetFlags", 12010},
    {"cuCtxSynchronize", "cuCtxSynchronize", 2000},
    {"cuCtxSynchronize", "cuCtxSynchronize_v2", 13000},
    {"cuCtxGetStreamPriorityRange", "cuCtxGetStreamPriorityRange", 5050},
    {"cuMemGetInfo", "cuMemGetInfo_v2", 3020},
    {"cuMemAlloc", "cuMemAlloc_v2", 3020},
    {"cuMemFree", "cuMemFree_v2", 3020},
    {"cuMemGetAllocationGranularity", "cuMemGetAllocationGranularity", 10020},
    {"cuMemAddressReserve", "cuMemAddressReserve", 10020},
    {"cuMemAddressFree", "cuMemAddressFree", 10020},
    {"cuMemCreate", "cuMemCreate", 10020},
    {"cuMemRelease", "cuMemRelease", 10020},
    {"cuMemMap", "cuMemMap", 10020},
    {"cuMemUnmap", "cuMemUnmap", 10020},
    {"cuMemSetAccess", "cuMemSetAccess", 10020},
    {"cuMemGetAccess", "cuMemGetAccess", 10020},
    {"cuMemRetainAllocationHandle", "cuMemRetainAllocationHandle", 11000},
    {"cuMemcpy", "cuMemcpy", 4000},
    {"cuMemcpyAsync", "cuMemcpyAsync", 4000},
    {"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 3020},
    {"cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2", 3020},
    {"cuMemcpyDtoH", "cuMemcpyDtoH_v2", 3020},
    {"cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2", 3020},
    {"cuMemcpyDtoD", "cuMemcpyDtoD_v2", 3020},
    {"cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2", 3020},
    {"cuMemsetD8", "cuMemsetD8_v2", 3020},
    {"cuMemsetD16", "cuMemsetD16_v2", 3020},
    {"cuMemsetD32", "cuMemsetD32_v2", 3020},
    {"cuMemsetD8Async", "cuMemsetD8Async", 3020},
    {"cuMemsetD16Async", "cuMemsetD16Async", 3020},
    {"cuMemsetD32Async", "cuMemsetD32Async", 3020},
    {"cuLaunchHostFunc", "cuLaunchHostFunc", 10000},
    {"cuStreamCreate", "cuStreamCreate", 2000},
    {"cuStreamCreateWithPriority", "cuStreamCreateWithPriority", 5050},
    {"cuStreamDestroy", "cuStreamDestroy_v2", 4000},
    {"cuStreamQuery", "cuStreamQuery", 2000},
    {"cuStreamSynchronize", "cuStreamSynchronize", 2000},
    {"cuStreamWaitEvent", "cuStreamWaitEvent", 3020},
    {"cuStreamGetId", "cuStreamGetId", 12000},
    {"cuStreamGetFlags", "cuStreamGetFlags", 5050},
    {"cuStreamGetPriority", "cuStreamGetPriority", 5050},
    {"cuStreamGetCtx", "cuStreamGetCtx", 9020},
    {"cuStreamGetCtx", "cuStreamGetCtx_v2", 12050},
    {"cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010},
    {"cuStreamEndCapture", "cuStreamEndCapture", 10000},
    {"cuStreamIsCapturing", "cuStreamIsCapturing", 10000},
    {"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v2", 11030},
    {"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v3", 12030},
    {"cuThreadExchangeStreamCaptureMode", "cuThreadExchangeStreamCaptureMode", 10010},
    {"cuStreamUpdateCaptureDependencies", "cuStreamUpdateCaptureDependencies", 11030},
    {"cuStreamUpdateCaptureDependencies", "cuStreamUpdateCaptureDependencies_v2", 12030},
    {"cuGraphGetNodes", "cuGraphGetNodes", 10000},
    {"cuGraphGetRootNodes", "cuGraphGetRootNodes", 10000},
    {"cuGraphGetEdges", "cuGraphGetEdges", 10000},
    {"cuGraphGetEdges", "cuGraphGetEdges_v2", 12030},
    {"cuGraphNodeGetDependencies", "cuGraphNodeGetDependencies", 10000},
    {"cuGraphNodeGetDependencies", "cuGraphNodeGetDependencies_v2", 12030},
    {"cuGraphNodeGetType", "cuGraphNodeGetType", 10000},
    {"cuDeviceCanAccessPeer", "cuDeviceCanAccessPeer", 4000},
    {"cuCtxEnablePeerAccess", "cuCtxEnablePeerAccess", 4000},
    {"cuCtxDisablePeerAccess", "cuCtxDisablePeerAccess", 4000},
    {"cuPointerGetAttribute", "cuPointerGetAttribute", 4000},
    {"cuPointerGetAttributes", "cuPointerGetAttributes", 7000},
    {"cuPointerSetAttribute", "cuPointerSetAttribute", 6000},
    {"cuMemGetAddressRange", "cuMemGetAddressRange_v2", 3020},
    {"cuMemGetAllocationPropertiesFromHandle", "cuMemGetAllocationPropertiesFromHandle", 10020},
    {"cuMemExportToShareableHandle", "cuMemExportToShareableHandle", 10020},
    {"cuMemImportFromShareableHandle", "cuMemImportFromShareableHandle", 10020},
    {"cuGraphDestroy", "cuGraphDestroy", 10000},
    {"cuEventCreate", "cuEventCreate", 2000},
    {"cuEventDestroy", "cuEventDestroy_v2", 4000},
    {"cuEventRecord", "cuEventRecord", 2000},
    {"cuEventQuery", "cuEventQuery", 2000},
    {"cuEventSynchronize", "cuEventSynchronize", 2000},
    {"cuEventElapsedTime", "cuEventElapsedTime", 2000},
    {"cuEventElapsedTime", "cuEventElapsedTime_v2", 12080},
    {"cuDeviceGetPCIBusId", "cuDeviceGetPCIBusId", 4010},
    {"cuMemHostRegister", "cuMemHostRegister_v2", 6050},
    {"cuMemHostUnregister", "cuMemHostUnregister", 4000},
    {"cuMemcpyPeerAsync", "cuMemcpyPeerAsync", 4000},
    {"cuStreamWriteValue32", "cuStreamWriteValue32_v2", 11070},
    {"cuStreamBeginCaptureToGraph", "cuStreamBeginCaptureToGraph", 12030},
    {"cuGraphCreate", "cuGraphCreate", 10000},
    {"cuGraphInstantiate", "cuGraphInstantiateWithFlags", 12000},
    {"cuGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags", 11040},
    {"cuGraphLaunch", "cuGraphLaunch", 10000},
    {"cuGraphExecDestroy", "cuGraphExecDestroy", 10000},
    {"cuUserObjectCreate", "cuUserObjectCreate", 11030},
    {"cuUserObjectRetain", "cuUserObjectRetain", 11030},
    {"cuUserObjectRelease", "cuUserObjectRelease", 11030},
    {"cuGraphRetainUserObject", "cuGraphRetainUserObject", 11030},
#if CUDA_VERSION >= 12040
    {"cuGraphConditionalHandleCreate", "cuGraphConditionalHandleCreate", 12030},
    {"cuGraphAddNode", "cuGraphAddNode_v2", 12030},
#endif
    {"cuIpcGetMemHandle", "cuIpcGetMemHandle", 4010},
    {"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", 11000},
    {"cuIpcCloseMemHandle", "cuIpcCloseMemHandle", 4010},
    {"cuIpcGetEventHandle", "cuIpcGetEventHandle", 4010},
    {"cuIpcOpenEventHandle", "cuIpcOpenEventHandle", 4010},
    {"cuEventRecordWithFlags", "cuEventRecordWithFlags", 11010},
};

/* What an out-parameter holds before the call. */
static int stale;

static void *exported(const char *symbol)
{
    void *address = dlsym(RTLD_DEFAULT, symbol);

    if (address == NULL)
        fail_msg("%s is not exported", symbol);
    return address;
}

static CUresult look_up(const char *name, int version, void **out,
                        CUdriverProcAddressQueryResult *status)
{
    *out = &stale;
    *status = (CUdriverProcAddressQueryResult)-1;
    return cuGetProcAddress_v2(name, out, version, CU_GET_PROC_ADDRESS_DEFAULT, status);
}

TEST(each_signature_is_found_from_its_version_on)
{
    CUdriverProcAddressQueryResult status;
    void *address;

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        const bool is_first = i == 0 || strcmp(row[i - 1].name, row[i].name) != 0;
        const bool is_last =
            i + 1 == sizeof(row) / sizeof(row[0]) || strcmp(row[i + 1].name, row[i].name) != 0;

        ASSERT_OK(look_up(row[i].name, row[i].version, &address, &status));
        assert_ptr_equal(address, exported(row[i].symbol));
        assert_int_equal(status, CU_GET_PROC_ADDRESS_SUCCESS);
        if (is_last) {
            ASSERT_OK(look_up(row[i].name, 13000, &address, &status));
            assert_ptr_equal(address, exported(row[i].symbol));
        }
        if (is_first) {
            ASSERT_CU(look_up(row[i].name, row[i].version - 10, &address, &status),
                      CUDA_ERROR_NOT_FOUND);
            assert_null(address);
            assert_int_equal(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
        }
    }
}

TEST(unknown_names_are_not_found)
{
    CUdriverProcAddressQueryResult status;
    void *address;

    ASSERT_CU(look_up("cuMemAlloc_v2", 13000, &address, &status), CUDA_ERROR_NOT_FOUND);
    assert_int_equal(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    assert_null(address);
    ASSERT_CU(look_up("", 13000, &address, &status), CUDA_ERROR_NOT_FOUND);
    ASSERT_CU(look_up("cuinit", 13000, &address, &status), CUDA_ERROR_NOT_FOUND);
    ASSERT_CU(cuGetProcAddress_v2("cuNone", &address, 13000, 0, NULL), CUDA_ERROR_NOT_FOUND);
}

TEST(bad_arguments_are_refused)
{
    CUdriverProcAddressQueryResult status;
    void *address = NULL;

    ASSERT_CU(look_up(NULL, 13000, &address, &status), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(look_up("cuInit", 13010, &address, &status), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuGetProcAddress_v2("cuInit", NULL, 13000, 0, &status), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuGetProcAddress_v2("cuInit", &address, 13000, 4, &status), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuGetProcAddress_v2("cuInit", &address, 13000, 3, &status), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cuGetProcAddress_v2("cuStreamQuery", &address, 13000,
                                  CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
    assert_ptr_equal(address, exported("cuStreamQuery"));
}

TEST(old_signatures_work)
{
    void *address = NULL;

    ASSERT_OK(cuGetProcAddress("cuMemCreate", &address, 11030, 0));
    assert_ptr_equal(address, exported("cuMemCreate"));
    ASSERT_CU(cuGetProcAddress("cuNone", &address, 11030, 0), CUDA_ERROR_NOT_FOUND);
}

TEST(lookup_needs_no_initialization)
{
    const struct xseg_sim_settings settings = small_machine();
    CUdriverProcAddressQueryResult status;
    CUresult (*init)(unsigned);
    void *address = NULL;
    CUdevice device;

    assert_int_equal(xseg_sim_reset(&settings), XSEG_OK);
    ASSERT_OK(look_up("cuInit", 13000, &address, &status));
    memcpy(&init, &address, sizeof(init));
    ASSERT_CU(cuDeviceGet(&device, 0), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_OK(init(0));
    ASSERT_OK(cuDeviceGet(&device, 0));
}

SIM_TEST(newer_signatures_do_what_older_ones_do)
{
    CUresult (*get_device)(CUdevice *, CUcontext);
    CUresult (*synchronize)(CUcontext);
    CUresult (*get_context)(CUstream, CUcontext *, void **);
    CUdriverProcAddressQueryResult status;
    void *address, *green = &stale;
    CUcontext second, of = NULL;
    CUdevice device = -1;

    ASSERT_OK(look_up("cuCtxGetDevice", 13000, &address, &status));
    memcpy(&get_device, &address, sizeof(get_device));
    ASSERT_OK(look_up("cuCtxSynchronize", 13000, &address, &status));
    memcpy(&synchronize, &address, sizeof(synchronize));
    ASSERT_OK(look_up("cuStreamGetCtx", 13000, &address, &status));
    memcpy(&get_context, &address, sizeof(get_context));

    ASSERT_OK(cuDevicePrimaryCtxRetain(&second, 1));
    ASSERT_OK(get_device(&device, second));
    assert_int_equal(device, 1);
    ASSERT_OK(get_device(&device, NULL));
    assert_int_equal(device, 0);
    ASSERT_OK(synchronize(second));
    ASSERT_CU(synchronize((CUcontext)(uintptr_t)5), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(get_context(NULL, &of, &green));
    assert_null(green);
    assert_non_null(of);
}
