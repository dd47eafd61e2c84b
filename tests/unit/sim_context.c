/* SPDX-License-Identifier: MIT */
/* Initialization, entry points, devices, contexts, leaks and threads. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/sim_setup.h"

TEST(every_call_fails_before_init)
{
    const struct xseg_sim_settings settings = small_machine();
    CUdeviceptr address = 0;
    CUcontext context = NULL;
    CUevent event = NULL;
    int number = 0;

    assert_int_equal(xseg_sim_reset(&settings), XSEG_OK);
    ASSERT_CU(cuDeviceGetCount(&number), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_CU(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_CU(cuMemAddressReserve(&address, GRANULE, 0, 0, 0), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_CU(cuMemAlloc(&address, GRANULE), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_CU(cuEventCreate(&event, 0), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_CU(cuCtxGetCurrent(&context), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_INVALID(cuInit(1));
    ASSERT_CU(cuDeviceGetCount(&number), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_OK(cuDriverGetVersion(&number));
    assert_int_equal(number, 13000);
    ASSERT_OK(cuInit(0));
    ASSERT_OK(cuDeviceGetCount(&number));
    assert_int_equal(number, 2);
}

SIM_TEST(devices_return_their_properties)
{
    CUdevice device = -1;
    CUuuid uuid, second_uuid;
    char name[32], truncated[6];
    int value = -1;

    ASSERT_OK(cuDeviceGet(&device, 1));
    assert_int_equal(device, 1);
    ASSERT_CU(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_CU(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_INVALID(cuDeviceGet(NULL, 0));
    ASSERT_OK(cuDeviceGetName(name, (int)sizeof(name), 1));
    assert_string_equal(name, "Simulated device 1");
    ASSERT_OK(cuDeviceGetName(truncated, (int)sizeof(truncated), 1));
    assert_string_equal(truncated, "Simul");
    assert_int_equal(total_memory(1), 1024 * MIB);
    assert_int_equal(device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 8);
    assert_int_equal(device_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 1);
    assert_int_equal(
        device_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED), 1);
    assert_int_equal(device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR), 2048);
    ASSERT_INVALID(cuDeviceGetAttribute(&value, (CUdevice_attribute)9999, 0));
    ASSERT_CU(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 2),
              CUDA_ERROR_INVALID_DEVICE);

    ASSERT_OK(cuDeviceGetPCIBusId(name, (int)sizeof(name), 1));
    assert_string_equal(name, "0000:02:00.0");
    ASSERT_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1));
    assert_int_equal(value, 2);
    ASSERT_OK(cuDeviceGetPCIBusId(truncated, (int)sizeof(truncated), 0));
    assert_string_equal(truncated, "0000:");
    ASSERT_INVALID(cuDeviceGetPCIBusId(NULL, 4, 0));
    ASSERT_INVALID(cuDeviceGetPCIBusId(name, 0, 0));
    ASSERT_CU(cuDeviceGetPCIBusId(name, (int)sizeof(name), 2), CUDA_ERROR_INVALID_DEVICE);

    ASSERT_OK(cuDeviceGetUuid(&uuid, 0));
    ASSERT_OK(cuDeviceGetUuid(&second_uuid, 0));
    assert_memory_equal(&uuid, &second_uuid, sizeof(uuid));
    ASSERT_OK(cuDeviceGetUuid(&second_uuid, 1));
    assert_memory_not_equal(&uuid, &second_uuid, sizeof(uuid));
    ASSERT_CU(cuDeviceGetUuid(&uuid, 2), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_INVALID(cuDeviceGetUuid(NULL, 0));
}

SIM_TEST(errors_have_names)
{
    const char *text = NULL;

    ASSERT_OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    assert_string_equal(text, "CUDA_ERROR_OUT_OF_MEMORY");
    ASSERT_OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    assert_string_equal(text, "out of memory");
    ASSERT_INVALID(cuGetErrorName((CUresult)12345, &text));
    assert_null(text);
    ASSERT_INVALID(cuGetErrorString(CUDA_SUCCESS, NULL));
}

SIM_TEST(calls_that_need_a_context_fail_without_one)
{
    unsigned long long id = 0;
    CUdeviceptr address = 0;
    size_t free_bytes, total;
    CUdevice device = 0;
    CUstream stream = NULL;
    CUevent event = NULL;

    ASSERT_OK(cuCtxSetCurrent(NULL));
    ASSERT_CU(cuMemAlloc(&address, 1), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuMemFree(0), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuMemGetInfo(&free_bytes, &total), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuStreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuStreamSynchronize(NULL), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuStreamGetId(NULL, &id), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuEventCreate(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    expect_rejected(xseg_sim_launch(NULL, 1),
                    "xseg_sim_launch: no current context for the default stream, (nil);");
}

SIM_TEST(context_stack_is_pushed_and_popped)
{
    CUcontext first = enter(0), current = NULL, second = retain_context(1);
    CUresult result = CUDA_SUCCESS;

    assert_ptr_not_equal(first, second);
    ASSERT_OK(cuCtxPushCurrent(second));
    assert_int_equal(current_device(), 1);
    ASSERT_OK(cuCtxSetCurrent(first));
    assert_int_equal(current_device(), 0);
    ASSERT_OK(cuCtxPopCurrent(&current));
    assert_ptr_equal(current, first);
    assert_ptr_equal(current_context(), first);
    ASSERT_OK(cuCtxPopCurrent(NULL));
    ASSERT_CU(cuCtxPopCurrent(&current), CUDA_ERROR_INVALID_CONTEXT);
    assert_null(current_context());
    ASSERT_OK(cuCtxSetCurrent(NULL));
    ASSERT_CU(cuCtxPushCurrent(NULL), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuCtxSetCurrent((CUcontext)(uintptr_t)0x1234), CUDA_ERROR_INVALID_CONTEXT);
    /* The stack is bounded. */
    for (int i = 0; i < 1000 && result == CUDA_SUCCESS; i++)
        result = cuCtxPushCurrent(first);
    ASSERT_CU(result, CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_OK(cuCtxPopCurrent(NULL));
}

SIM_TEST(a_context_lives_from_first_retain_to_last_release)
{
    unsigned flags = 1;
    int active = -1;

    ASSERT_OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    assert_int_equal(active, 0);
    assert_int_equal(flags, 0);
    ASSERT_CU(cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
    CUcontext context = retain_context(1);
    context = retain_context(1);
    ASSERT_OK(cuDevicePrimaryCtxRelease(1));
    ASSERT_OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    assert_int_equal(active, 1);
    ASSERT_OK(cuDevicePrimaryCtxRelease(1));
    ASSERT_OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    assert_int_equal(active, 0);
    ASSERT_CU(cuCtxSetCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuDevicePrimaryCtxRetain(&context, 2), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_CU(cuDevicePrimaryCtxRelease(-1), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_CU(cuDevicePrimaryCtxReset(2), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_INVALID(cuDevicePrimaryCtxRetain(NULL, 0));
}

SIM_TEST(contexts_have_ids_and_flags)
{
    unsigned long long first = 0, current = 0, later = 0;
    unsigned flags = 9;
    CUcontext context = retain_context(1);

    ASSERT_OK(cuCtxGetId(context, &first));
    ASSERT_OK(cuCtxGetId(NULL, &current)); /* of the current context, which is device 0's */
    assert_int_not_equal(first, current);
    ASSERT_OK(cuCtxGetFlags(&flags));
    assert_int_equal(flags, 0);
    ASSERT_OK(cuCtxSetFlags(0x80)); /* CU_CTX_SYNC_MEMOPS */
    ASSERT_OK(cuCtxGetFlags(&flags));
    assert_int_equal(flags, 0x80);
    ASSERT_INVALID(cuCtxSetFlags(1u << 30));
    ASSERT_INVALID(cuCtxGetFlags(NULL));
    ASSERT_INVALID(cuCtxGetId(context, NULL));
    ASSERT_OK(cuDevicePrimaryCtxRelease(1));
    context = retain_context(1);
    ASSERT_OK(cuCtxGetId(context, &later));
    assert_int_not_equal(later, first);
    assert_int_not_equal(later, current);
    ASSERT_OK(cuDevicePrimaryCtxRelease(1));
}

SIM_TEST(objects_are_destroyed_with_their_context)
{
    CUdeviceptr range = reserve(GRANULE);
    CUstream stream = new_stream();
    CUevent event = new_event();
    unsigned long long id;
    char text[512];

    back(range, GRANULE);
    launch(stream, UINT64_MAX);
    launch(NULL, UINT64_MAX);
    ASSERT_OK(cuEventRecord(event, stream));
    CUdeviceptr allocation = allocate(1);
    ASSERT_OK(cuDevicePrimaryCtxReset(0));
    ASSERT_CU(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ASSERT_CU(cuMemAlloc(&allocation, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);

    ASSERT_OK(cuDevicePrimaryCtxRelease(0));
    (void)enter(0);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuStreamGetId(stream, &id), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_INVALID(cuMemFree(allocation));
    ASSERT_OK(cuStreamQuery(NULL));
    /* Virtual memory belongs to no context. */
    assert_int_equal(xseg_sim_used(0), GRANULE);
    ASSERT_OK(cuMemUnmap(range, GRANULE));
    ASSERT_OK(cuMemAddressFree(range, GRANULE));
    assert_int_equal(xseg_sim_leaks(text, sizeof(text)), 1);
    assert_string_equal(text, "retained contexts: 1, first: device 0, 1 reference\n");
    /* A new stream reuses the slot of the destroyed one. */
    (void)new_stream();
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
}

SIM_TEST(many_allocations_are_freed_with_their_context)
{
    CUdeviceptr address = 0, range[40];

    for (int i = 0; i < 200; i++) {
        if (i % 5 == 0)
            range[i / 5] = reserve(GRANULE);
        address = allocate(GRANULE);
    }
    (void)enter(1);
    address = allocate(GRANULE);
    ASSERT_OK(cuDevicePrimaryCtxReset(0));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(xseg_sim_used(1), GRANULE);
    for (int i = 0; i < 40; i++)
        ASSERT_OK(cuMemAddressFree(range[i], GRANULE));
    ASSERT_OK(cuMemFree(address));
    assert_int_equal(xseg_sim_used(1), 0);
}

SIM_TEST(handles_of_an_earlier_machine_are_invalid)
{
    CUmemGenericAllocationHandle memory = create(GRANULE);
    CUcontext context = enter(0);
    CUstream stream = new_stream();
    CUevent event = new_event();

    assert_int_equal(fresh(state), 0);
    ASSERT_INVALID(cuMemRelease(memory));
    ASSERT_CU(cuCtxSetCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventDestroy(event), CUDA_ERROR_INVALID_HANDLE);
    /* New objects in their slots have other handles. */
    assert_true(create(GRANULE) != memory);
    assert_ptr_not_equal(new_stream(), stream);
    assert_ptr_not_equal(new_event(), event);
}

SIM_TEST(invalid_settings_change_nothing)
{
    static const struct {
        struct xseg_sim_settings settings;
        const char *words;
    } rows[] = {
        {{sizeof(struct xseg_sim_settings), .devices = 65},
         "xseg_sim_reset: too many devices, 65;"},
        {{sizeof(struct xseg_sim_settings), .memory_bytes = GRANULE + 1},
         "memory_bytes is not a multiple of 2 MiB, 2097153 bytes"},
        {{sizeof(struct xseg_sim_settings), .costs = "cheap"}, "costs: unknown preset, 'cheap'"},
        {{sizeof(struct xseg_sim_settings) - 1}, "struct_size is unknown"},
    };
    CUmemGenericAllocationHandle memory = create(GRANULE);

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        expect_rejected(xseg_sim_reset(&rows[i].settings), rows[i].words);
    ASSERT_OK(cuMemRelease(memory));
    start_with((struct xseg_sim_settings){.devices = 64});
}

/* --- Entry points by name and version. --- */

#undef cuGetProcAddress
CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags);

/* The suffix of an exported symbol, and the version that introduced it. */
struct signature {
    const char *suffix;
    int version;
};

/* Entry points with one signature. */
static const struct {
    struct signature signature;
    const char *names[12];
} single[] = {
    {{"", 2000},
     {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
      "cuStreamCreate", "cuStreamQuery", "cuStreamSynchronize", "cuEventCreate", "cuEventRecord",
      "cuEventQuery", "cuEventSynchronize"}},
    {{"", 2020}, {"cuDriverGetVersion"}},
    {{"", 3020}, {"cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async", "cuStreamWaitEvent"}},
    {{"_v2", 3020},
     {"cuDeviceTotalMem", "cuMemGetInfo", "cuMemAlloc", "cuMemFree", "cuMemcpyHtoD",
      "cuMemcpyHtoDAsync", "cuMemcpyDtoH", "cuMemcpyDtoHAsync", "cuMemcpyDtoD", "cuMemcpyDtoDAsync",
      "cuMemsetD8", "cuMemsetD16"}},
    {{"_v2", 3020}, {"cuMemsetD32", "cuMemGetAddressRange"}},
    {{"", 4000},
     {"cuCtxGetCurrent", "cuCtxSetCurrent", "cuMemcpy", "cuMemcpyAsync", "cuDeviceCanAccessPeer",
      "cuCtxEnablePeerAccess", "cuCtxDisablePeerAccess", "cuPointerGetAttribute",
      "cuMemHostUnregister", "cuMemcpyPeerAsync"}},
    {{"_v2", 4000}, {"cuCtxPushCurrent", "cuCtxPopCurrent", "cuStreamDestroy", "cuEventDestroy"}},
    {{"", 4010},
     {"cuDeviceGetPCIBusId", "cuIpcGetMemHandle", "cuIpcCloseMemHandle", "cuIpcGetEventHandle",
      "cuIpcOpenEventHandle"}},
    {{"", 5050},
     {"cuCtxGetStreamPriorityRange", "cuStreamCreateWithPriority", "cuStreamGetFlags",
      "cuStreamGetPriority"}},
    {{"", 6000}, {"cuGetErrorName", "cuGetErrorString", "cuPointerSetAttribute"}},
    {{"_v2", 6050}, {"cuMemHostRegister"}},
    {{"", 7000},
     {"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxGetState", "cuCtxGetFlags",
      "cuPointerGetAttributes"}},
    {{"", 10000},
     {"cuLaunchHostFunc", "cuStreamEndCapture", "cuStreamIsCapturing", "cuGraphGetNodes",
      "cuGraphGetRootNodes", "cuGraphNodeGetType", "cuGraphDestroy", "cuGraphCreate",
      "cuGraphLaunch", "cuGraphExecDestroy"}},
    {{"", 10010}, {"cuThreadExchangeStreamCaptureMode"}},
    {{"_v2", 10010}, {"cuStreamBeginCapture"}},
    {{"", 10020},
     {"cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate",
      "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemGetAccess",
      "cuMemGetAllocationPropertiesFromHandle", "cuMemExportToShareableHandle",
      "cuMemImportFromShareableHandle"}},
    {{"", 11000}, {"cuMemRetainAllocationHandle"}},
    {{"_v2", 11000},
     {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset", "cuIpcOpenMemHandle"}},
    {{"", 11010}, {"cuEventRecordWithFlags"}},
    {{"", 11030},
     {"cuUserObjectCreate", "cuUserObjectRetain", "cuUserObjectRelease",
      "cuGraphRetainUserObject"}},
    {{"", 11040}, {"cuGraphInstantiateWithFlags"}},
    {{"_v2", 11070}, {"cuStreamWriteValue32"}},
    {{"", 12000}, {"cuCtxGetId", "cuStreamGetId"}},
    {{"WithFlags", 12000}, {"cuGraphInstantiate"}},
    {{"", 12010}, {"cuCtxSetFlags"}},
    {{"", 12030}, {"cuStreamBeginCaptureToGraph"}},
#if CUDA_VERSION >= 12040
    {{"", 12030}, {"cuGraphConditionalHandleCreate"}},
    {{"_v2", 12030}, {"cuGraphAddNode"}},
#endif
};

/* Entry points with several signatures. */
static const struct {
    const char *name;
    struct signature signature[2];
} several[] = {
    {"cuGetProcAddress", {{"", 11030}, {"_v2", 12000}}},
    {"cuDeviceGetUuid", {{"", 9020}, {"_v2", 11040}}},
    {"cuCtxGetDevice", {{"", 2000}, {"_v2", 13000}}},
    {"cuCtxSynchronize", {{"", 2000}, {"_v2", 13000}}},
    {"cuStreamGetCtx", {{"", 9020}, {"_v2", 12050}}},
    {"cuStreamGetCaptureInfo", {{"_v2", 11030}, {"_v3", 12030}}},
    {"cuStreamUpdateCaptureDependencies", {{"", 11030}, {"_v2", 12030}}},
    {"cuGraphGetEdges", {{"", 10000}, {"_v2", 12030}}},
    {"cuGraphNodeGetDependencies", {{"", 10000}, {"_v2", 12030}}},
    {"cuEventElapsedTime", {{"", 2000}, {"_v2", 12080}}},
};

/* The value of an out-parameter before the call. */
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

static void expect_signatures(const char *name, const struct signature *signature, size_t count)
{
    CUdriverProcAddressQueryResult status;
    void *address;

    ASSERT_CU(look_up(name, signature[0].version - 10, &address, &status), CUDA_ERROR_NOT_FOUND);
    assert_null(address);
    assert_int_equal(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    for (size_t i = 0; i < count; i++) {
        char symbol[64];

        (void)snprintf(symbol, sizeof(symbol), "%s%s", name, signature[i].suffix);
        ASSERT_OK(look_up(name, signature[i].version, &address, &status));
        assert_ptr_equal(address, exported(symbol));
        assert_int_equal(status, CU_GET_PROC_ADDRESS_SUCCESS);
    }
    void *last = address;
    ASSERT_OK(look_up(name, 13000, &address, &status));
    assert_ptr_equal(address, last);
}

TEST(each_signature_is_found_from_its_version_on)
{
    for (size_t i = 0; i < COUNT_OF(single); i++)
        for (size_t k = 0; k < COUNT_OF(single[i].names) && single[i].names[k] != NULL; k++)
            expect_signatures(single[i].names[k], &single[i].signature, 1);
    for (size_t i = 0; i < COUNT_OF(several); i++)
        expect_signatures(several[i].name, several[i].signature, 2);
}

TEST(lookup_rejects_unknown_names_and_invalid_arguments)
{
    CUdriverProcAddressQueryResult status;
    void *address;

    ASSERT_CU(look_up("cuMemAlloc_v2", 13000, &address, &status), CUDA_ERROR_NOT_FOUND);
    assert_int_equal(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    assert_null(address);
    ASSERT_CU(look_up("", 13000, &address, &status), CUDA_ERROR_NOT_FOUND);
    ASSERT_CU(look_up("cuinit", 13000, &address, &status), CUDA_ERROR_NOT_FOUND);
    ASSERT_CU(cuGetProcAddress_v2("cuNone", &address, 13000, 0, NULL), CUDA_ERROR_NOT_FOUND);
    ASSERT_INVALID(look_up(NULL, 13000, &address, &status));
    ASSERT_INVALID(look_up("cuInit", 13010, &address, &status));
    ASSERT_INVALID(cuGetProcAddress_v2("cuInit", NULL, 13000, 0, &status));
    ASSERT_INVALID(cuGetProcAddress_v2("cuInit", &address, 13000, 4, &status));
    ASSERT_INVALID(cuGetProcAddress_v2("cuInit", &address, 13000, 3, &status));
    ASSERT_OK(cuGetProcAddress_v2("cuStreamQuery", &address, 13000,
                                  CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
    assert_ptr_equal(address, exported("cuStreamQuery"));
    /* The older signature. */
    ASSERT_OK(cuGetProcAddress("cuMemCreate", &address, 11030, 0));
    assert_ptr_equal(address, exported("cuMemCreate"));
    ASSERT_CU(cuGetProcAddress("cuNone", &address, 11030, 0), CUDA_ERROR_NOT_FOUND);
}

/* Store the address of the newest signature in a function pointer. */
static void find_newest(const char *name, void *function)
{
    CUdriverProcAddressQueryResult status;
    void *address = NULL;

    ASSERT_OK(look_up(name, 13000, &address, &status));
    memcpy(function, &address, sizeof(address));
}

TEST(lookup_needs_no_initialization)
{
    const struct xseg_sim_settings settings = small_machine();
    CUresult (*init)(unsigned);
    CUdevice device;

    assert_int_equal(xseg_sim_reset(&settings), XSEG_OK);
    find_newest("cuInit", &init);
    ASSERT_CU(cuDeviceGet(&device, 0), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_OK(init(0));
    ASSERT_OK(cuDeviceGet(&device, 0));
}

SIM_TEST(newer_signatures_equal_older_ones)
{
    CUresult (*get_device)(CUdevice *, CUcontext);
    CUresult (*synchronize)(CUcontext);
    CUresult (*get_context)(CUstream, CUcontext *, void **);
    void *green = &stale;
    CUcontext context = NULL;
    CUdevice device = -1;

    find_newest("cuCtxGetDevice", &get_device);
    find_newest("cuCtxSynchronize", &synchronize);
    find_newest("cuStreamGetCtx", &get_context);

    CUcontext second = retain_context(1);
    ASSERT_OK(get_device(&device, second));
    assert_int_equal(device, 1);
    ASSERT_OK(get_device(&device, NULL));
    assert_int_equal(device, 0);
    ASSERT_OK(synchronize(second));
    ASSERT_CU(synchronize((CUcontext)(uintptr_t)5), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(get_context(NULL, &context, &green));
    assert_null(green);
    assert_non_null(context);
}

/* --- Leaks. --- */

SIM_TEST(a_machine_without_leaks_reports_nothing)
{
    char text[64] = "unchanged";

    /* Default streams are not leaks; the context is one. */
    (void)id_of(NULL);
    (void)id_of(CU_STREAM_PER_THREAD);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 1);
    ASSERT_OK(cuDevicePrimaryCtxRelease(0));
    assert_int_equal(xseg_sim_leaks(text, sizeof(text)), 0);
    assert_string_equal(text, "");
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

SIM_TEST(each_kind_of_leak_has_a_line)
{
    CUdeviceptr base = reserve(4 * GRANULE), second = reserve(GRANULE);
    char expected[1024], text[1024];

    (void)create(GRANULE);
    back(base + GRANULE, GRANULE);
    (void)allocate(100);
    (void)allocate(100);
    CUstream stream = new_stream();
    unsigned long long id = id_of(stream);
    (void)new_event();
    ASSERT_OK(cuEventRecord(new_event(), stream));
    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch(stream, 1);
    launch(stream, 1);
    (void)end_capture(stream);
    (void)enter(1);
    (void)enter(0);

    (void)snprintf(expected, sizeof(expected),
                   "physical memory: 2, first: 2097152 bytes on device 0, 1 reference, 0 "
                   "mappings\n"
                   "mappings: 1, first: 2097152 bytes at 0x%llx\n"
                   "reservations: 2, first: 8388608 bytes at 0x%llx\n"
                   "allocations: 2, first: 100 bytes at 0x%llx\n"
                   "streams: 1, first: stream %llu of device 0\n"
                   "events: 2, first: on device 0, never recorded\n"
                   "graphs: 1, first: 2 nodes\n"
                   "retained contexts: 2, first: device 0, 2 references\n",
                   base + GRANULE, base, second + GRANULE, id);
    assert_int_equal(xseg_sim_leaks(text, sizeof(text)), 2 + 1 + 2 + 2 + 1 + 2 + 1 + 2);
    assert_string_equal(text, expected);
}

SIM_TEST(leak_report_is_truncated_to_fit)
{
    char complete[512], text[512];

    (void)create(GRANULE);
    (void)reserve(GRANULE);
    (void)xseg_sim_leaks(complete, sizeof(complete));
    assert_true(strlen(complete) > 100 && strlen(complete) < sizeof(complete));
    for (size_t bytes = 1; bytes < strlen(complete) + 3; bytes++) {
        memset(text, 'x', sizeof(text));
        assert_int_equal(xseg_sim_leaks(text, bytes), 1 + 1 + 1); /* with the context */
        assert_int_equal(strlen(text), bytes <= strlen(complete) ? bytes - 1 : strlen(complete));
        assert_memory_equal(text, complete, strlen(text));
        assert_int_equal(text[bytes], 'x');
    }
}

/* --- Threads. --- */

enum { THREADS = 4, ROUNDS = 400 };

/* cmocka's assertions longjmp, so a failed expectation ends the thread. */
#define EXPECT(condition)      \
    do {                       \
        if (!(condition))      \
            return #condition; \
    } while (0)
#define EXPECT_OK(call) EXPECT((call) == CUDA_SUCCESS)

static const char *use_memory(int device)
{
    const CUmemAllocationProp prop = on_device(device);
    const CUmemAccessDesc desc = read_write(device);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base, block;

    EXPECT_OK(cuMemAddressReserve(&base, 4 * GRANULE, 0, 0, 0));
    for (int i = 0; i < 4; i++) {
        EXPECT_OK(cuMemCreate(&handle, GRANULE, &prop, 0));
        EXPECT_OK(cuMemMap(base + (size_t)i * GRANULE, GRANULE, 0, handle, 0));
        EXPECT_OK(cuMemRelease(handle));
    }
    EXPECT_OK(cuMemSetAccess(base, 4 * GRANULE, &desc, 1));
    EXPECT_OK(cuMemAlloc(&block, GRANULE));
    EXPECT_OK(cuMemUnmap(base, 4 * GRANULE));
    EXPECT_OK(cuMemFree(block));
    EXPECT_OK(cuMemAddressFree(base, 4 * GRANULE));
    return NULL;
}

static const char *use_streams(CUstream stream, CUevent event)
{
    EXPECT(xseg_sim_launch(stream, UINT64_MAX) == XSEG_OK);
    EXPECT_OK(cuEventRecord(event, stream));
    EXPECT(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    EXPECT_OK(cuStreamWaitEvent(CU_STREAM_PER_THREAD, event, 0));
    EXPECT(cuStreamQuery(CU_STREAM_PER_THREAD) == CUDA_ERROR_NOT_READY);
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_OK(cuEventQuery(event));
    EXPECT_OK(cuStreamQuery(stream));
    return NULL;
}

static const char *use_device(int device)
{
    const char *failure = NULL;
    CUcontext context, current;
    CUstream stream;
    CUevent event;

    EXPECT_OK(cuCtxGetCurrent(&current));
    EXPECT(current == NULL);
    EXPECT_OK(cuDevicePrimaryCtxRetain(&context, device));
    EXPECT_OK(cuCtxPushCurrent(context));
    EXPECT_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    EXPECT_OK(cuEventCreate(&event, 0));
    for (int i = 0; i < ROUNDS && failure == NULL; i++) {
        failure = use_memory(device);
        if (failure == NULL)
            failure = use_streams(stream, event);
        (void)xseg_sim_leaks(NULL, 0);
    }
    EXPECT_OK(cuStreamDestroy(stream));
    EXPECT_OK(cuEventDestroy(event));
    EXPECT_OK(cuDevicePrimaryCtxRelease(device));
    return failure;
}

struct worker {
    pthread_t thread;
    int device;
    const char *failure;
};

static void *run_worker(void *argument)
{
    struct worker *worker = argument;

    worker->failure = use_device(worker->device);
    return NULL;
}

TEST(threads_are_independent)
{
    struct worker worker[THREADS];
    char text[512];

    start_with((struct xseg_sim_settings){.costs = "a100"});
    (void)enter(1);
    for (int i = 0; i < THREADS; i++) {
        worker[i] = (struct worker){.device = i % 2};
        assert_int_equal(pthread_create(&worker[i].thread, NULL, run_worker, &worker[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(worker[i].thread, NULL), 0);
        if (worker[i].failure != NULL)
            fail_msg("thread %d: failed expectation: %s", i, worker[i].failure);
    }
    ASSERT_OK(cuDevicePrimaryCtxRelease(0));
    ASSERT_OK(cuDevicePrimaryCtxRelease(1));
    if (xseg_sim_leaks(text, sizeof(text)) != 0)
        fail_msg("leaked driver resources: %s", text);
    assert_int_equal(xseg_sim_calls("cuMemMap"), THREADS * ROUNDS * 4);
    assert_int_equal(xseg_sim_used(0) + xseg_sim_used(1), 0);
}
