/* SPDX-License-Identifier: MIT */
/* Helpers of the tests of the simulated driver: a fresh machine, and short forms of driver calls. */
#ifndef XSEG_TESTS_SIM_SETUP_H
#define XSEG_TESTS_SIM_SETUP_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cuda.h>

#include "xseg/sim.h"

#include "tests/support/child.h"

#define GRANULE ((size_t)2 << 20)

static inline size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

#define ASSERT_CU(call, expected) assert_int_equal((int)(call), (int)(expected))
#define ASSERT_OK(call)           ASSERT_CU(call, CUDA_SUCCESS)
#define ASSERT_INVALID(call)      ASSERT_CU(call, CUDA_ERROR_INVALID_VALUE)

/* Settings of a machine of two devices with 1 GiB each, on which driver calls take no time. */
static inline struct xseg_sim_settings small_machine(void)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 2, .memory_bytes = 1024 * MIB,
                                         .costs = "none"};

    return settings;
}

/* Expect that a function of sim.h has rejected its arguments, with a word in the error message. */
static inline void expect_rejected(xseg_status status, const char *word)
{
    char text[512];

    if (status != XSEG_ERR_ARGUMENT)
        fail_msg("accepted, not rejected with: %s", word);
    assert_true(xseg_sim_error_message(text, sizeof(text)) > 0);
    if (strstr(text, word) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, word);
}

static inline void start(const struct xseg_sim_settings *settings)
{
    assert_int_equal(xseg_sim_reset(settings), XSEG_OK);
    ASSERT_OK(cuInit(0));
}

static inline CUcontext retain_context(CUdevice device)
{
    CUcontext context = NULL;

    ASSERT_OK(cuDevicePrimaryCtxRetain(&context, device));
    return context;
}

static inline CUcontext current_context(void)
{
    CUcontext context = NULL;

    ASSERT_OK(cuCtxGetCurrent(&context));
    return context;
}

/* Retain the primary context of a device and make it current. */
static inline CUcontext enter(CUdevice device)
{
    CUcontext context = retain_context(device);

    ASSERT_OK(cuCtxSetCurrent(context));
    return context;
}

/* Start a machine with these settings, and with those of small_machine() for members that are 0; the context of device 0 is
 * current. */
static inline void start_with(struct xseg_sim_settings settings)
{
    settings.struct_size = sizeof(settings);
    if (settings.devices == 0)
        settings.devices = 2;
    if (settings.memory_bytes == 0)
        settings.memory_bytes = 1024 * MIB;
    if (settings.costs == NULL)
        settings.costs = "none";
    start(&settings);
    (void)enter(0);
}

FIXTURE(fresh)
{
    start_with((struct xseg_sim_settings){0});
}

/* Set-up of a test that reads bytes of the device. */
FIXTURE(with_bytes)
{
    start_with((struct xseg_sim_settings){.real_bytes = true});
}

#define SIM_TEST(name)       TEST_WITH(name, fresh, NULL)
#define SIM_TEST_BYTES(name) TEST_WITH(name, with_bytes, NULL)

static inline CUmemAllocationProp on_device(int device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
}

static inline CUmemGenericAllocationHandle create(size_t bytes)
{
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    ASSERT_OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

/* Create memory on device 0, which may fail.  The memory is not released. */
static inline CUresult try_create(size_t bytes)
{
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    return cuMemCreate(&handle, bytes, &prop, 0);
}

static inline CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address = 0;

    ASSERT_OK(cuMemAlloc(&address, bytes));
    return address;
}

static inline CUdeviceptr reserve(size_t bytes)
{
    CUdeviceptr address = 0;

    ASSERT_OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
}

/* Map new memory, which is released when it is unmapped. */
static inline void back(CUdeviceptr address, size_t bytes)
{
    const CUmemGenericAllocationHandle handle = create(bytes);

    ASSERT_OK(cuMemMap(address, bytes, 0, handle, 0));
    ASSERT_OK(cuMemRelease(handle));
}

static inline CUmemAccessDesc read_write(int device)
{
    const CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };

    return desc;
}

static inline void grant(CUdeviceptr address, size_t bytes, int device)
{
    const CUmemAccessDesc desc = read_write(device);

    ASSERT_OK(cuMemSetAccess(address, bytes, &desc, 1));
}

/* Map memory that device 0 may access: memory of a handle, new memory, or new memory in a new range. */
static inline void map_usable(CUdeviceptr address, size_t bytes,
                              CUmemGenericAllocationHandle handle)
{
    ASSERT_OK(cuMemMap(address, bytes, 0, handle, 0));
    grant(address, bytes, 0);
}

static inline void back_usable(CUdeviceptr address, size_t bytes)
{
    back(address, bytes);
    grant(address, bytes, 0);
}

static inline CUdeviceptr usable(size_t bytes)
{
    CUdeviceptr base = reserve(bytes);

    back_usable(base, bytes);
    return base;
}

static inline unsigned long long access_of(CUdeviceptr address, int device)
{
    const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    unsigned long long flags = ~0ull;

    ASSERT_OK(cuMemGetAccess(&flags, &location, address));
    return flags;
}

static inline CUstream new_stream(void)
{
    CUstream stream = NULL;

    ASSERT_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static inline CUevent new_event(void)
{
    CUevent event = NULL;

    ASSERT_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

/* A new event that is recorded on a stream. */
static inline CUevent record(CUstream stream)
{
    CUevent event = new_event();

    ASSERT_OK(cuEventRecord(event, stream));
    return event;
}

static inline unsigned long long id_of(CUstream stream)
{
    unsigned long long id = 0;

    ASSERT_OK(cuStreamGetId(stream, &id));
    assert_true(id != 0);
    return id;
}

static inline CUgraph end_capture(CUstream stream)
{
    CUgraph graph = NULL;

    ASSERT_OK(cuStreamEndCapture(stream, &graph));
    return graph;
}

/* Bytes of a device, as a kernel sees them. */
static inline unsigned char *bytes_at(CUdeviceptr address)
{
    return (unsigned char *)(uintptr_t)address;
}

static inline CUdevice current_device(void)
{
    CUdevice device = -1;

    ASSERT_OK(cuCtxGetDevice(&device));
    return device;
}

static inline size_t total_memory(CUdevice device)
{
    size_t bytes = 0;

    ASSERT_OK(cuDeviceTotalMem(&bytes, device));
    return bytes;
}

/* Free memory of the current device. */
static inline size_t free_memory(void)
{
    size_t free_bytes = 0, total = 0;

    ASSERT_OK(cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

/* An attribute of device 0 by number, because older versions of cuda.h do not name the later ones. */
static inline int device_attribute(int attribute)
{
    int value = -1;

    ASSERT_OK(cuDeviceGetAttribute(&value, (CUdevice_attribute)attribute, 0));
    return value;
}

/* The value of a pointer attribute of any size: the remaining bytes are zero. */
static inline uint64_t pointer_attribute(CUdeviceptr address, int attribute)
{
    uint64_t value = 0;

    ASSERT_OK(cuPointerGetAttribute(&value, (CUpointer_attribute)attribute, address));
    return value;
}

static inline void launch(CUstream stream, uint64_t nanoseconds)
{
    assert_int_equal(xseg_sim_launch(stream, nanoseconds), XSEG_OK);
}

/* A kernel that accesses memory. */
static inline void launch_on(CUstream stream, uint64_t nanoseconds, CUdeviceptr address,
                             size_t bytes)
{
    assert_int_equal(xseg_sim_launch_on(stream, nanoseconds, address, bytes), XSEG_OK);
}

static inline void finish(CUstream stream)
{
    assert_int_equal(xseg_sim_finish(stream), XSEG_OK);
}

/* Expect this number of leaks on the machine, and words in the leak report. */
static inline void expect_leak(size_t count, const char *words)
{
    char text[1024];

    assert_int_equal(xseg_sim_leaks(text, sizeof(text)), count);
    assert_non_null(strstr(text, words));
}

static inline void call_on_fresh_machine(const void *part)
{
    (void)fresh(NULL);
    child_call(part);
}

/* Expect that a part aborts its process with a report that contains these words. */
static inline void expect_report(void (*part)(void), const char *const *words)
{
    char text[8192];
    const int status = child_run(call_on_fresh_machine, &part, text, sizeof(text));

    if (!child_aborted(status))
        fail_msg("no report: wait status 0x%x, and\n%s", (unsigned)status, text);
    for (; *words != NULL; words++)
        if (strstr(text, *words) == NULL)
            fail_msg("'%s' is not in the report:\n%s", *words, text);
}

/* A part that makes one call. */
#define PART(name, call)   \
    static void name(void) \
    {                      \
        (void)(call);      \
    }

#define EXPECT_REPORT(part, ...) \
    expect_report((part), (const char *const[]){": undefined behavior, ", __VA_ARGS__, NULL})

#endif
