/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/describe.h"

#include <stdio.h>

#include <unistd.h>

#include "tests/gpu/facts/child.h"
#include "tests/gpu/facts/driver.h"

#define DESCRIBE_SECONDS 20u
/* Handles that are created and destroyed in turn; a driver that reuses handles returns a handle again within a few calls. */
#define HANDLES 16u
/* Limits of report_addresses_mb(): the first size, which is all user addresses of a process, and the number of ranges. */
#define LARGEST_RANGE ((size_t)1 << 47)
#define RANGES_MAX    256u

static void report_name(void)
{
    char device[256] = "";

    ASSERT_OK(cu.DeviceGetName(device, sizeof(device), 0));
    fact_report("%s", device);
}

static void report_driver(void)
{
    int version = 0;

    ASSERT_OK(cu.DriverGetVersion(&version));
    fact_report("CUDA %d.%d", version / 1000, version % 1000 / 10);
}

static void report_simulated(void)
{
    fact_report("%s", sim.launch != NULL ? "yes" : "no");
}

static void report_devices(void)
{
    fact_report("%d", device_count);
}

static void report_memory_mb(void)
{
    size_t total = 0;

    ASSERT_OK(cu.DeviceTotalMem(&total, 0));
    fact_report("%zu", total / GRANULE * (GRANULE / MIB));
}

static void report_vmm(void)
{
    fact_report("%s", driver_lacks(VMM) == NULL ? "yes" : "no");
}

/* Reports whether all, no or some ordered pairs of devices have peer access. */
static void report_peers(void)
{
    unsigned pairs = 0, peer_pairs = 0;

    for (int from = 0; from < device_count; from++)
        for (int to = 0; to < device_count; to++) {
            int can = 0;

            if (from == to)
                continue;
            ASSERT_OK(cu.DeviceCanAccessPeer(&can, from, to));
            pairs++;
            peer_pairs += can != 0;
        }
    fact_report("%s", peer_pairs == 0 ? "no" : peer_pairs == pairs ? "yes" : "some");
}

/* The attribute is an integer, because older versions of cuda.h do not declare the later attributes. */
static void report_attribute(int attribute)
{
    int value = 0;

    ASSERT_OK(cu.DeviceGetAttribute(&value, (CUdevice_attribute)attribute, 0));
    fact_report("%s", value != 0 ? "yes" : "no");
}

static void report_rdma(void)
{
    report_attribute(116 /* CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED */);
}

static void report_dma_bufs(void)
{
    report_attribute(124 /* CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED */);
}

/* Reports whether cuMemGetAddressRange supports mapped memory. */
static void report_address_range(void)
{
    const CUdeviceptr base = reserve(GRANULE);
    CUdeviceptr start = 0;
    size_t bytes = 0;

    back(base, GRANULE);
    const CUresult result = cu.MemGetAddressRange(&start, &bytes, base);
    unmap_and_free(base, GRANULE);
    fact_report("%s", result == CUDA_SUCCESS ? "yes" : "no");
}

static void report_reuse(const void *const *seen, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < i; k++)
            if (seen[i] == seen[k]) {
                fact_report("yes");
                return;
            }
    fact_report("no");
}

static void report_streams_reused(void)
{
    const void *seen[HANDLES];

    for (unsigned i = 0; i < HANDLES; i++) {
        const CUstream stream = new_stream();

        seen[i] = stream;
        ASSERT_OK(cu.StreamDestroy(stream));
    }
    report_reuse(seen, HANDLES);
}

static void report_events_reused(void)
{
    const void *seen[HANDLES];

    for (unsigned i = 0; i < HANDLES; i++) {
        const CUevent event = new_event();

        seen[i] = event;
        ASSERT_OK(cu.EventDestroy(event));
    }
    report_reuse(seen, HANDLES);
}

/* Reserves ranges, and halves the size after each failure.  All ranges are freed before the result is reported. */
static void report_addresses_mb(void)
{
    CUdeviceptr base[RANGES_MAX];
    size_t bytes[RANGES_MAX], total = 0;
    unsigned count = 0;
    bool is_freed = true;

    for (size_t size = LARGEST_RANGE; size >= GRANULE && count < RANGES_MAX; size /= 2)
        while (count < RANGES_MAX &&
               cu.MemAddressReserve(&base[count], size, 0, 0, 0) == CUDA_SUCCESS) {
            bytes[count++] = size;
            total += size;
        }
    for (unsigned i = 0; i < count; i++)
        is_freed = cu.MemAddressFree(base[i], bytes[i]) == CUDA_SUCCESS && is_freed;
    ASSERT(is_freed);
    fact_report("%zu", total / MIB);
}

static const struct fact properties[] = {
    {"simulated", NULL, report_simulated, NOTHING},
    {"driver", NULL, report_driver, NOTHING},
    {"name", NULL, report_name, DEVICE},
    {"devices", NULL, report_devices, DEVICE},
    {"memory_mb", NULL, report_memory_mb, DEVICE},
    {"vmm", NULL, report_vmm, DEVICE},
    {"peers", NULL, report_peers, TWO_DEVICES},
    {"rdma", NULL, report_rdma, DEVICE},
    {"dma_bufs", NULL, report_dma_bufs, DEVICE},
    {"address_range", NULL, report_address_range, VMM},
    {"streams_reused", NULL, report_streams_reused, DEVICE},
    {"events_reused", NULL, report_events_reused, DEVICE},
    {"addresses_mb", NULL, report_addresses_mb, VMM},
};

int describe(void)
{
    child_begin(DESCRIBE_SECONDS);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (driver_open() == NULL)
        (void)driver_enter();
    for (size_t i = 0; i < sizeof(properties) / sizeof(properties[0]); i++) {
        struct outcome outcome;

        fact_verify(&properties[i], &outcome);
        if (outcome.verdict == HOLDS)
            (void)printf("%s\t%s\n", properties[i].id, outcome.answer);
    }
    _exit(0);
}
