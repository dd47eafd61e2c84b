/* SPDX-License-Identifier: MIT */
#include "tests/stress/exercise/fault.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

#include "tests/stress/exercise/failure.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"
#include "xseg/sim.h"

#define SLOTS 4u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint_fast64_t epoch; /* 2 per change, plus 1 while faults are set */
static atomic_uint_fast64_t count;
static unsigned next_slot, devices_with_external_memory;

/* Driver calls of the library. NULL: any call. */
static const char *const names[] = {
    NULL,
    "cuMemCreate",
    "cuMemCreate",
    "cuMemMap",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemRelease",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemGetInfo",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoDAsync",
    "cuMemsetD32Async",
    "cuMemsetD8Async",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamGetCaptureInfo",
    "cuStreamGetCtx",
    "cuCtxPushCurrent",
};

/* CUDA_ERROR_OUT_OF_MEMORY, _INVALID_VALUE, _UNKNOWN and _NOT_SUPPORTED. */
static const int errors[] = {2, 2, 1, 999, 801};

static uint64_t draw(uint64_t *state, uint64_t bound)
{
    return (rng_next(state) >> 16) % bound;
}

uint64_t fault_epoch(void)
{
    return atomic_load_explicit(&epoch, memory_order_acquire);
}

bool fault_was_none(uint64_t since)
{
    return since % 2 == 0 && fault_epoch() == since;
}

uint64_t fault_count(void)
{
    return atomic_load(&count);
}

/* Let another process use memory of a device, or most addresses. */
static void use_external_memory(uint64_t *state, unsigned devices, char *text, unsigned bytes)
{
    const unsigned device = (unsigned)draw(state, devices);

    if (draw(state, 4) == 0) {
        xseg_sim_set_external_addresses(UINT64_MAX / 4);
        (void)snprintf(text, bytes, "no addresses");
    } else {
        const uint64_t external_bytes = draw(state, UINT64_C(1) << 30);

        CHECK_OK(xseg_sim_set_external_memory(device, external_bytes));
        (void)snprintf(text, bytes, "%llu bytes of device %u are used by others",
                       (unsigned long long)external_bytes, device);
    }
    devices_with_external_memory = devices;
}

static void fail_calls(uint64_t *state, char *text, unsigned bytes)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    const unsigned slot = next_slot++ % SLOTS;

    fault.call = names[draw(state, COUNT_OF(names))];
    fault.error = errors[draw(state, COUNT_OF(errors))];
    fault.nth = 1 + draw(state, fault.call == NULL ? 40 : 8);
    if (draw(state, 3) == 0)
        fault.every = fault.call == NULL ? 5 + draw(state, 20) : 1 + draw(state, 3);
    if (fault.every == 0 && fault.call != NULL && draw(state, 2) == 0 &&
        (fault.call[5] == 'U' || fault.call[5] == 'S'))
        fault.halfway = draw(state, 4);
    /* Only unmap and set-access can fail halfway. */
    if (xseg_sim_fault_set(slot, &fault) != XSEG_OK) {
        fault.halfway = 0;
        CHECK_OK(xseg_sim_fault_set(slot, &fault));
    }
    (void)snprintf(text, bytes, "%s from call %llu on, every %llu, error %d, halfway %llu",
                   fault.call == NULL ? "any call" : fault.call, (unsigned long long)fault.nth,
                   (unsigned long long)fault.every, fault.error, (unsigned long long)fault.halfway);
}

void fault_set(uint64_t seed, unsigned devices, char *text, unsigned bytes)
{
    uint64_t state = seed | 1;

    (void)pthread_mutex_lock(&lock);
    atomic_fetch_add(&epoch, 1 + epoch % 2);
    if (draw(&state, 6) == 0)
        use_external_memory(&state, devices, text, bytes);
    else
        fail_calls(&state, text, bytes);
    atomic_fetch_add(&count, 1);
    (void)pthread_mutex_unlock(&lock);
}

void fault_lift(void)
{
    (void)pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < SLOTS; i++)
        CHECK_OK(xseg_sim_fault_set(i, NULL));
    for (unsigned i = 0; i < devices_with_external_memory; i++)
        CHECK_OK(xseg_sim_set_external_memory(i, 0));
    xseg_sim_set_external_addresses(0);
    devices_with_external_memory = 0;
    if (epoch % 2 != 0)
        atomic_fetch_add(&epoch, 1);
    (void)pthread_mutex_unlock(&lock);
}
