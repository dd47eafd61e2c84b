/* SPDX-License-Identifier: MIT */
/* Start-up, devices, contexts and the stack of current ones. */
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
    ASSERT_CU(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuDeviceGetCount(&number), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_OK(cuDriverGetVersion(&number));
    assert_int_equal(number, 13000);
    ASSERT_OK(cuInit(0));
    ASSERT_OK(cuDeviceGetCount(&number));
    assert_int_equal(number, 2);
}

SIM_TEST(each_device_has_a_bus)
{
    char text[32], cut[6];
    int value = -1;

    ASSERT_OK(cuDeviceGetPCIBusId(text, (int)sizeof(text), 1));
    assert_string_equal(text, "0000:02:00.0");
    ASSERT_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1));
    assert_int_equal(value, 2);
    ASSERT_OK(cuDeviceGetPCIBusId(cut, (int)sizeof(cut), 0));
    assert_string_equal(cut, "0000:");
    ASSERT_CU(cuDeviceGetPCIBusId(NULL, 4, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuDeviceGetPCIBusId(text, 0, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuDeviceGetPCIBusId(text, (int)sizeof(text), 2), CUDA_ERROR_INVALID_DEVICE);
}

SIM_TEST(devices_describe_themselves)
{
    CUdevice device = -1;
    char name[32], cut[5];
    size_t bytes = 0;
    int value = -1;

    ASSERT_OK(cuDeviceGet(&device, 1));
    assert_int_equal(device, 1);
    ASSERT_CU(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_CU(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_CU(cuDeviceGet(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cuDeviceGetName(name, (int)sizeof(name), 1));
    assert_string_equal(name, "Simulated device 1");
    ASSERT_OK(cuDeviceGetName(cut, (int)sizeof(cut), 1));
    assert_string_equal(cut, "Simu");
    ASSERT_OK(cuDeviceTotalMem(&bytes, 1));
    assert_int_equal(bytes, 1024 * MIB);
    ASSERT_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    assert_int_equal(value, 8);
    ASSERT_OK(
        cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    assert_int_equal(value, 1);
    ASSERT_OK(cuDeviceGetAttribute(
        &value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
    assert_int_equal(value, 1);
    ASSERT_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0));
    assert_int_equal(value, 2048);
    ASSERT_CU(cuDeviceGetAttribute(&value, (CUdevice_attribute)9999, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 2),
              CUDA_ERROR_INVALID_DEVICE);
}

SIM_TEST(devices_can_be_told_apart)
{
    CUuuid uuid, again;

    ASSERT_OK(cuDeviceGetUuid(&uuid, 0));
    ASSERT_OK(cuDeviceGetUuid(&again, 0));
    assert_memory_equal(&uuid, &again, sizeof(uuid));
    ASSERT_OK(cuDeviceGetUuid(&again, 1));
    assert_memory_not_equal(&uuid, &again, sizeof(uuid));
    ASSERT_CU(cuDeviceGetUuid(&uuid, 2), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_CU(cuDeviceGetUuid(NULL, 0), CUDA_ERROR_INVALID_VALUE);
}

SIM_TEST(errors_have_names)
{
    const char *text = NULL;

    ASSERT_OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    assert_string_equal(text, "CUDA_ERROR_OUT_OF_MEMORY");
    ASSERT_OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    assert_string_equal(text, "out of memory");
    ASSERT_CU(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    assert_null(text);
    ASSERT_CU(cuGetErrorString(CUDA_SUCCESS, NULL), CUDA_ERROR_INVALID_VALUE);
}

SIM_TEST(calls_that_need_a_context_fail_without_one)
{
    unsigned long long id = 0;
    CUdeviceptr address = 0;
    size_t left, total;
    CUdevice device = 0;
    CUstream stream = NULL;
    CUevent event = NULL;

    ASSERT_OK(cuCtxSetCurrent(NULL));
    ASSERT_CU(cuMemAlloc(&address, 1), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuMemFree(0), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuMemGetInfo(&left, &total), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuStreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuStreamSynchronize(NULL), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuStreamGetId(NULL, &id), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuEventCreate(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    expect_refused(xseg_sim_launch(NULL, 1),
                   "xseg_sim_launch: no current context for the default stream, (nil);");
}

SIM_TEST(context_stack_is_pushed_and_popped)
{
    CUcontext first = enter(0), second = NULL, current = NULL;
    CUdevice device = -1;

    ASSERT_OK(cuDevicePrimaryCtxRetain(&second, 1));
    assert_ptr_not_equal(first, second);
    ASSERT_OK(cuCtxPushCurrent(second));
    ASSERT_OK(cuCtxGetDevice(&device));
    assert_int_equal(device, 1);
    ASSERT_OK(cuCtxSetCurrent(first));
    ASSERT_OK(cuCtxGetDevice(&device));
    assert_int_equal(device, 0);
    ASSERT_OK(cuCtxPopCurrent(&current));
    assert_ptr_equal(current, first);
    ASSERT_OK(cuCtxGetCurrent(&current));
    assert_ptr_equal(current, first);
    ASSERT_OK(cuCtxPopCurrent(NULL));
    ASSERT_CU(cuCtxPopCurrent(&current), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(cuCtxGetCurrent(&current));
    assert_null(current);
    ASSERT_OK(cuCtxSetCurrent(NULL));
    ASSERT_CU(cuCtxPushCurrent(NULL), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuCtxSetCurrent((CUcontext)(uintptr_t)0x1234), CUDA_ERROR_INVALID_CONTEXT);
}

SIM_TEST(context_stack_is_bounded)
{
    CUcontext context = enter(0);
    CUresult result = CUDA_SUCCESS;

    for (int i = 0; i < 1000 && result == CUDA_SUCCESS; i++)
        result = cuCtxPushCurrent(context);
    ASSERT_CU(result, CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_OK(cuCtxPopCurrent(NULL));
}

SIM_TEST(a_context_lives_from_first_retain_to_last_release)
{
    CUcontext context = NULL;
    unsigned flags = 1;
    int active = -1;

    ASSERT_OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    assert_int_equal(active, 0);
    assert_int_equal(flags, 0);
    ASSERT_CU(cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(cuDevicePrimaryCtxRetain(&context, 1));
    ASSERT_OK(cuDevicePrimaryCtxRetain(&context, 1));
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
    ASSERT_CU(cuDevicePrimaryCtxRetain(NULL, 0), CUDA_ERROR_INVALID_VALUE);
}

SIM_TEST(contexts_have_ids_and_flags)
{
    CUcontext context = NULL;
    unsigned long long first = 0, other = 0, again = 0;
    unsigned flags = 9;

    ASSERT_OK(cuDevicePrimaryCtxRetain(&context, 1));
    ASSERT_OK(cuCtxGetId(context, &first));
    ASSERT_OK(cuCtxGetId(NULL, &other)); /* of the current one, which is device 0's */
    assert_int_not_equal(first, other);
    ASSERT_OK(cuCtxGetFlags(&flags));
    assert_int_equal(flags, 0);
    ASSERT_OK(cuCtxSetFlags(0x80)); /* CU_CTX_SYNC_MEMOPS */
    ASSERT_OK(cuCtxGetFlags(&flags));
    assert_int_equal(flags, 0x80);
    ASSERT_CU(cuCtxSetFlags(1u << 30), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuCtxGetFlags(NULL), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuCtxGetId(context, NULL), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cuDevicePrimaryCtxRelease(1));
    ASSERT_OK(cuDevicePrimaryCtxRetain(&context, 1));
    ASSERT_OK(cuCtxGetId(context, &again));
    assert_int_not_equal(again, first);
    assert_int_not_equal(again, other);
    ASSERT_OK(cuDevicePrimaryCtxRelease(1));
}

SIM_TEST(objects_are_destroyed_with_their_context)
{
    CUdeviceptr allocation = 0, range = reserve(GRANULE);
    CUstream stream = new_stream();
    CUevent event = new_event();
    unsigned long long id;
    char text[512];

    back(range, GRANULE);
    launch(stream, UINT64_MAX);
    launch(NULL, UINT64_MAX);
    ASSERT_OK(cuEventRecord(event, stream));
    ASSERT_OK(cuMemAlloc(&allocation, 1));
    ASSERT_OK(cuDevicePrimaryCtxReset(0));
    ASSERT_CU(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ASSERT_CU(cuMemAlloc(&allocation, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);

    ASSERT_OK(cuDevicePrimaryCtxRelease(0));
    (void)enter(0);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuStreamGetId(stream, &id), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuMemFree(allocation), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cuStreamQuery(NULL));
    /* Virtual memory belongs to no context. */
    assert_int_equal(xseg_sim_used(0), GRANULE);
    ASSERT_OK(cuMemUnmap(range, GRANULE));
    ASSERT_OK(cuMemAddressFree(range, GRANULE));
    assert_int_equal(xseg_sim_leaks(text, sizeof(text)), 1);
    assert_string_equal(text, "retained contexts: 1, first: device 0, 1 reference\n");
}

SIM_TEST(many_allocations_are_freed_with_their_context)
{
    CUdeviceptr address = 0, range[40];

    for (int i = 0; i < 200; i++) {
        if (i % 5 == 0)
            range[i / 5] = reserve(GRANULE);
        ASSERT_OK(cuMemAlloc(&address, GRANULE));
    }
    (void)enter(1);
    ASSERT_OK(cuMemAlloc(&address, GRANULE));
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
    ASSERT_CU(cuMemRelease(memory), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuCtxSetCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventDestroy(event), CUDA_ERROR_INVALID_HANDLE);
    /* Objects that take their places have other handles. */
    assert_true(create(GRANULE) != memory);
    assert_ptr_not_equal(new_stream(), stream);
    assert_ptr_not_equal(new_event(), event);
}

SIM_TEST(invalid_settings_change_nothing)
{
    struct xseg_sim_settings settings = small_machine();
    CUmemGenericAllocationHandle memory = create(GRANULE);

    settings.devices = 65;
    expect_refused(xseg_sim_reset(&settings), "xseg_sim_reset: too many devices, 65;");
    settings = small_machine();
    settings.memory_bytes = GRANULE + 1;
    expect_refused(xseg_sim_reset(&settings),
                   "memory_bytes is not a multiple of 2 MiB, 2097153 bytes");
    settings = small_machine();
    settings.costs = "cheap";
    expect_refused(xseg_sim_reset(&settings), "costs: unknown preset, 'cheap'");
    settings = small_machine();
    settings.struct_size--;
    expect_refused(xseg_sim_reset(&settings), "struct_size is unknown");
    ASSERT_OK(cuMemRelease(memory));
    settings = small_machine();
    settings.devices = 64;
    assert_int_equal(xseg_sim_reset(&settings), XSEG_OK);
}
