/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/describe.h"

#include <stdio.h>

#include <unistd.h>

#include "tests/gpu/facts/child.h"
#include "tests/gpu/facts/driver.h"

#define SECONDS 20u
/* Handles that are created and destroyed; reuse shows within a few. */
#define HANDLES 16u
/* A search that terminates: halves from the largest possible range of a program, with this many ranges in total. */
#define LARGEST_RANGE ((size_t)1 << 47)
#define RANGES_MAX    256u

static void name(void)
{
    char device[256] = "";

    ASSERT_OK(cu.DeviceGetName(device, sizeof(device), 0));
    fact_say("%s", device);
}

static void driver(void)
{
    int version = 0;

    ASSERT_OK(cu.DriverGetVersion(&version));
    fact_say("CUDA %d.%d", version / 1000, version % 1000 / 10);
}

static void simulated(void)
{
    fact_say("%s", sim.launch != NULL ? "yes" : "no");
}

static void devices(void)
{
    fact_say("%d", device_count);
}

static void memory_mb(void)
{
    size_t total = 0;

    ASSERT_OK(cu.DeviceTotalMem(&total, 0));
    fact_say("%zu", total / GRANULE * 2);
}

static void vmm(void)
{
    fact_say("%s", driver_lacks(VMM) == NULL ? "yes" : "no");
}

/* yes, no or some: of the ordered pairs of devices. */
static void peers(void)
{
    unsigned pairs = 0, reach = 0;

    for (int from = 0; from < device_count; from++)
        for (int to = 0; to < device_count; to++) {
            int can = 0;

            if (from == to)
                continue;
            ASSERT_OK(cu.DeviceCanAccessPeer(&can, from, to));
            pairs++;
            reach += can != 0;
        }
    fact_say("%s", reach == 0 ? "no" : reach == pairs ? "yes" : "some");
}

/* By number, because older versions of cuda.h do not name the later ones. */
static void say_attribute(int which)
{
    int value = 0;

    ASSERT_OK(cu.DeviceGetAttribute(&value, (CUdevice_attribute)which, 0));
    fact_say("%s", value != 0 ? "yes" : "no");
}

static void rdma(void)
{
    say_attribute(116 /* CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED */);
}

static void dma_bufs(void)
{
    say_attribute(124 /* CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED */);
}

/* Whether cuMemGetAddressRange supports mapped memory. */
static void address_range(void)
{
    const CUdeviceptr base = reserve(GRANULE);
    CUdeviceptr start = 0;
    size_t bytes = 0;

    back(base, GRANULE);
    const CUresult result = cu.MemGetAddressRange(&start, &bytes, base);
    unmap_and_free(base, GRANULE);
    fact_say("%s", result == CUDA_SUCCESS ? "yes" : "no");
}

static void say_whether_repeated(const void *const *seen, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < i; k++)
            if (seen[i] == seen[k]) {
                fact_say("yes");
                return;
            }
    fact_say("no");
}

static void streams_come_again(void)
{
    const void *seen[HANDLES];

    for (unsigned i = 0; i < HANDLES; i++) {
        const CUstream stream = new_stream();

        seen[i] = stream;
        ASSERT_OK(cu.StreamDestroy(stream));
    }
    say_whether_repeated(seen, HANDLES);
}

static void events_come_again(void)
{
    const void *seen[HANDLES];

    for (unsigned i = 0; i < HANDLES; i++) {
        const CUevent event = new_event();

        seen[i] = event;
        ASSERT_OK(cu.EventDestroy(event));
    }
    say_whether_repeated(seen, HANDLES);
}

/* From the largest range down; all ranges are released before the result is computed. */
static void addresses_mb(void)
{
    CUdeviceptr base[RANGES_MAX];
    size_t bytes[RANGES_MAX], total = 0;
    unsigned count = 0;
    bool is_given_back = true;

    for (size_t wanted = LARGEST_RANGE; wanted >= GRANULE && count < RANGES_MAX; wanted /= 2)
        while (count < RANGES_MAX &&
               cu.MemAddressReserve(&base[count], wanted, 0, 0, 0) == CUDA_SUCCESS) {
            bytes[count++] = wanted;
            total += wanted;
        }
    for (unsigned i = 0; i < count; i++)
        is_given_back = cu.MemAddressFree(base[i], bytes[i]) == CUDA_SUCCESS && is_given_back;
    ASSERT(is_given_back);
    fact_say("%zu", total / MIB);
}

static const struct fact things[] = {
    {"simulated", NULL, simulated, NOTHING},
    {"driver", NULL, driver, NOTHING},
    {"name", NULL, name, DEVICE},
    {"devices", NULL, devices, DEVICE},
    {"memory_mb", NULL, memory_mb, DEVICE},
    {"vmm", NULL, vmm, DEVICE},
    {"peers", NULL, peers, TWO},
    {"rdma", NULL, rdma, DEVICE},
    {"dma_bufs", NULL, dma_bufs, DEVICE},
    {"address_range", NULL, address_range, VMM},
    {"streams_come_again", NULL, streams_come_again, DEVICE},
    {"events_come_again", NULL, events_come_again, DEVICE},
    {"addresses_mb", NULL, addresses_mb, VMM},
};

int describe(void)
{
    child_begin(SECONDS);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (driver_open() == NULL)
        (void)driver_enter();
    for (size_t i = 0; i < sizeof(things) / sizeof(things[0]); i++) {
        struct outcome outcome;

        fact_ask(&things[i], &outcome);
        if (outcome.verdict == HOLDS)
            (void)printf("%s\t%s\n", things[i].id, outcome.answer);
    }
    _exit(0);
}
