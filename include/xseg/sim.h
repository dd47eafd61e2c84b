/* SPDX-License-Identifier: MIT */
/*
 * Control of the simulated driver, libxseg-sim.so.
 *
 *     struct xseg_sim_settings settings = {sizeof(settings)};
 *     settings.memory_bytes = 64 << 20; // One device of 64 MiB.
 *     if (xseg_sim_reset(&settings) != XSEG_OK)
 *         return 1;
 *     xseg_sim_fail("cuMemCreate", 2, 2); // The second call returns CUDA_ERROR_OUT_OF_MEMORY.
 *
 * The simulator implements the CUDA driver's binary interface without a GPU.  A program loads it as the driver
 * (XSEG_DRIVER, or struct xseg_options), or links it to call these functions.  A process has one simulated machine.
 *
 * Addresses: by default reservations and allocations have increasing addresses, aligned to 2 MiB, so runs are
 * repeatable.  Freed addresses are reused only after all 128 TiB have been used, except in shuffled order.  With real
 * bytes, addresses at which the process has other mappings are skipped.
 *
 * Time: a virtual clock.  Each driver call advances it by the cost of the preset; no thread sleeps.  Costs are modeled.
 * With a tail seed the median cost stays, one call in a hundred costs more than 1.4 times the median, and one in a
 * thousand 5 to 80 times.
 *
 * Strict mode: undefined behavior of a real driver ends the process with a report on standard error.  The report
 * contains the error, the call, the origin and the users of the memory.  Undefined are the unmap or free of memory that
 * queued work accesses or that is registered, accesses to memory without a mapping or access rights, and uses of
 * destroyed streams and events.  Errors that a driver detects are returned as its error codes.
 *
 * Work: queued work completes when the virtual clock reaches its end, or when the host waits for it.
 *
 * Bytes: memory has no contents by default.  With real bytes each device has one sparse memory file, which is mapped at
 * the reserved addresses.  Copies and fills move bytes.  The program can access device memory directly where a device
 * has access rights; elsewhere it faults.
 *
 * Sharing: processes that name the same machine share the memory of its devices.  The first process selects the number
 * and size of the devices.  The functions below apply to the calling process.
 *
 * Environment: the variables are read by the first driver call or xseg_sim function.  An invalid value is reported on
 * standard error and ignored:
 *   XSEG_SIM_DEVICES=N          number of devices (1)
 *   XSEG_SIM_MEMORY_MB=N        memory of each device, an even number (81920)
 *   XSEG_SIM_ADDRESSES_MB=N     VA that can be reserved (134217728, 128 TiB)
 *   XSEG_SIM_COSTS=PRESET|FILE  none, a100, a100_cold, consumer, rocm_slow (a100), or a file of costs:
 *                               its name has a / or a . (format: docs/simulator.md)
 *   XSEG_SIM_TAILS=SEED         spread of the costs; 0: none (0)
 *   XSEG_SIM_BATCH=0|1          whether one call may unmap or set access over several mappings (1)
 *   XSEG_SIM_VMM=0|1            whether the devices offer virtual memory management (1)
 *   XSEG_SIM_SHARED=NAME        shared machine of this name (none)
 *   XSEG_SIM_FAIL=CALL:N[+E][:ERR]
 *                               the N-th CALL (any call if empty) fails with error number ERR (2),
 *                               and each E-th after it; a list is separated by commas
 *   XSEG_SIM_STRICT=0|1         whether undefined behavior ends the process (1)
 *   XSEG_SIM_PEERS=0|1          whether devices can use each other's memory (1)
 *   XSEG_SIM_BYTES=0|1          whether memory has contents (0)
 *   XSEG_SIM_FABRIC=0|1         whether memory can be exported by fabric handles (0)
 *   XSEG_SIM_REUSE_HANDLES=0|1        whether handles of streams and events are reused (0)
 *   XSEG_SIM_RDMA=KIND          works, refused, denied, ignored or absent: enum xseg_sim_rdma (works)
 *   XSEG_SIM_DMA_BUF=0|1        whether address ranges have dma-bufs (1)
 *   XSEG_SIM_ADDRESS_RANGE=0|1  whether cuMemGetAddressRange answers for mapped memory (1)
 *   XSEG_SIM_ADDRESS_ORDER=ORDER
 *                               rising, falling or shuffled: enum xseg_sim_address_order (rising)
 *
 * Threads: any, for all functions.  Errors: a status and a message, xseg_sim_error_message().
 */
#ifndef XSEG_SIM_H
#define XSEG_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xseg/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CUDA's struct tag, as in allocator.h. */
struct CUstream_st;

/** Behavior for memory that is created with gpuDirectRDMACapable. */
enum xseg_sim_rdma {
    XSEG_SIM_RDMA_WORKS,        /* it can be created and registered */
    XSEG_SIM_RDMA_CREATE_FAILS, /* the attribute reports support, but the creation fails */
    XSEG_SIM_RDMA_ACCESS_FAILS, /* access cannot be set: CUDA_ERROR_UNKNOWN, as under WSL2 */
    XSEG_SIM_RDMA_IGNORED,      /* the flag is ignored */
    XSEG_SIM_RDMA_ABSENT /* the attribute reports no support; creation and registration fail */
};

/** Order of the addresses of reservations and allocations. */
enum xseg_sim_address_order {
    XSEG_SIM_ADDRESSES_RISING,  /* increasing */
    XSEG_SIM_ADDRESSES_FALLING, /* decreasing */
    XSEG_SIM_ADDRESSES_SHUFFLED /* pseudo-random, the same in each run */
};

/** Settings of the simulated machine. */
struct xseg_sim_settings {
    size_t struct_size;         /* sizeof(struct xseg_sim_settings) */
    unsigned devices;           /* number of devices; 0: 1 */
    uint64_t memory_bytes;      /* memory of each device; 0: 80 GiB */
    uint64_t address_bytes;     /* VA that can be reserved; 0: 128 TiB */
    const char *costs;          /* name of a preset, or path of a cost file; NULL: "a100" */
    bool single_mapping_calls;  /* reject unmap and set-access over several mappings, as HIP does */
    bool without_vmm;           /* no virtual memory management */
    bool skip_checks;           /* skip the checks of strict mode, for benchmarks */
    bool real_bytes;            /* memory has contents */
    bool without_peers;         /* no peer access */
    uint64_t tail_seed;         /* seed of the cost distribution; 0: constant costs */
    const char *shared;         /* name of the shared machine; NULL: private */
    bool reuse_handles;         /* reuse handles of destroyed streams and events */
    bool fabric;                /* fabric handles are supported */
    enum xseg_sim_rdma rdma;    /* memory for RDMA */
    bool without_dma_buf;       /* no dma-buf support */
    bool without_address_range; /* cuMemGetAddressRange fails for mapped memory */
    enum xseg_sim_address_order address_order; /* order of addresses */
};

/**
 * Replace the machine by a new one.  Handles of the old machine become invalid; counters, clock and faults are reset.
 *
 * @param settings  NULL: the settings of the environment.
 *
 * @return XSEG_ERR_ARGUMENT  unknown size or preset, invalid cost file, more than 64 devices, memory_bytes not a
 *                            multiple of 2 MiB, inaccessible shared machine, or invalid environment.  The machine is
 *                            unchanged.
 */
XSEG_API xseg_status xseg_sim_reset(const struct xseg_sim_settings *settings);

/**
 * Get the message of the calling thread's last failed call of a function in this header.
 *
 * @param text   receives the message, truncated to fit and terminated; may be NULL if bytes is 0.
 * @param bytes  size of text.
 *
 * @return the length of the whole message in bytes, without the terminator; 0 if no call has failed.
 */
XSEG_API size_t xseg_sim_error_message(char *text, size_t bytes);

/**
 * Inject one fault: a driver call returns an error and has no effect.  Replaces the previous fault of this function.
 *
 * @param call   name without a version suffix, such as "cuMemCreate"; NULL: any call that can fail.
 * @param nth    1 selects the next call; 0 removes the fault.
 * @param error  CUresult, such as 2 for CUDA_ERROR_OUT_OF_MEMORY.
 *
 * @return XSEG_ERR_ARGUMENT  the name is unknown, or the error is 0.
 */
XSEG_API xseg_status xseg_sim_fail(const char *call, uint64_t nth, int error);

/** Get whether the fault of xseg_sim_fail() has occurred. */
XSEG_API bool xseg_sim_failed(void);

/** Number of faults that can be set concurrently. */
#define XSEG_SIM_FAULTS 16

/** Description of a fault.  XSEG_SIM_FAULT_INIT selects the next call of any name, once. */
struct xseg_sim_fault {
    size_t struct_size;      /* sizeof(struct xseg_sim_fault) */
    const char *call;        /* name without a version suffix; NULL: any call that can fail */
    uint64_t address, bytes; /* only calls with an address in this range; bytes 0: all calls */
    uint64_t nth;            /* 1 selects the next such call */
    uint64_t every;          /* and each every-th call after it; 0: once */
    uint64_t halfway; /* cuMemUnmap, cuMemSetAccess: mappings that are processed before the error */
    int error;        /* CUresult to return */
};
#define XSEG_SIM_FAULT_INIT                                   \
    {                                                         \
        sizeof(struct xseg_sim_fault), NULL, 0, 0, 1, 0, 0, 2 \
    }

/**
 * Set the fault of a slot.  Each fault counts its calls independently; if several apply to a call, the lowest slot
 * does.
 *
 * @param slot   less than XSEG_SIM_FAULTS; xseg_sim_fail() uses slot 0.
 * @param fault  NULL removes the fault.
 *
 * @return XSEG_ERR_ARGUMENT  invalid slot, size or name, nth or error is 0, or halfway is set for another call.
 */
XSEG_API xseg_status xseg_sim_fault_set(unsigned slot, const struct xseg_sim_fault *fault);

/** Get the number of occurrences of the fault in a slot. */
XSEG_API uint64_t xseg_sim_fault_count(unsigned slot);

/**
 * Simulate memory of a device that other processes use.
 *
 * @param bytes  memory in use by others from now on, which replaces the previous value; it can exceed the free memory.
 *
 * @return XSEG_ERR_ARGUMENT  the device does not exist.
 */
XSEG_API xseg_status xseg_sim_set_external_memory(unsigned device, uint64_t bytes);

/** Simulate addresses that others have reserved: `bytes` in total, which replaces the previous value. */
XSEG_API void xseg_sim_set_external_addresses(uint64_t bytes);

/**
 * Get the number of calls of a driver function since the reset, including failed calls.
 *
 * @param call  name without a version suffix; NULL: all calls.
 *
 * @return the count; 0 for an unknown name, which is reported on standard error.
 */
XSEG_API uint64_t xseg_sim_calls(const char *call);

/** Get the virtual time since the reset, in nanoseconds (modeled). */
XSEG_API uint64_t xseg_sim_clock(void);

/** Get the time of driver calls since the reset, without waits, in nanoseconds (modeled). */
XSEG_API uint64_t xseg_sim_driver_time(void);

/** Advance the virtual clock: work that ends until then completes. */
XSEG_API void xseg_sim_advance(uint64_t nanoseconds);

/**
 * Queue work on a stream.
 *
 * @param stream       a stream of the current context; NULL: the legacy default stream.
 * @param nanoseconds  duration; UINT64_MAX: until xseg_sim_finish() or a wait of the host.
 *
 * @return XSEG_ERR_ARGUMENT  the stream has been destroyed.
 */
XSEG_API xseg_status xseg_sim_launch(struct CUstream_st *stream, uint64_t nanoseconds);

/** Memory that work reads and writes. */
struct xseg_sim_access {
    uint64_t address, bytes;
};

/**
 * Queue work that accesses memory.
 *
 * The memory must be mapped and accessible to the stream's device from now until the work completes; otherwise the
 * process ends with a report.  Fast mode does not check this.
 *
 * @return as xseg_sim_launch().
 */
XSEG_API xseg_status xseg_sim_launch_on(struct CUstream_st *stream, uint64_t nanoseconds,
                                        uint64_t address, uint64_t bytes);

/** Queue work that accesses several ranges of memory; as xseg_sim_launch_on(). */
XSEG_API xseg_status xseg_sim_launch_accessing(struct CUstream_st *stream, uint64_t nanoseconds,
                                               const struct xseg_sim_access *touch, size_t count);

/**
 * Complete all work that is queued on a stream.
 *
 * @return XSEG_ERR_ARGUMENT  the stream has been destroyed.
 */
XSEG_API xseg_status xseg_sim_finish(struct CUstream_st *stream);

/** Complete all queued work. */
XSEG_API void xseg_sim_finish_all(void);

/** Kind of a registration, by the requirements of the library or kernel module. */
enum xseg_sim_registrar {
    /* Kernel module nvidia_peermem: the range is in one mapping or allocation. */
    XSEG_SIM_PEERMEM,
    /* Users of dma-bufs, such as UCX: the range is in the result of cuMemGetAddressRange, which can have a dma-buf. */
    XSEG_SIM_DMABUF,
    /* NCCL: cuMemGetAddressRange covers the range mapping by mapping, and the range can have a dma-buf.  On a machine
     * without dma-bufs as XSEG_SIM_PEERMEM. */
    XSEG_SIM_NCCL
};

/**
 * Register memory as network libraries do, until xseg_sim_unregister().
 *
 * The memory must be mapped, accessible to its device and created with gpuDirectRDMACapable, or be whole host pages of
 * a cuMemAlloc allocation.  Ranges can overlap.  In strict mode the unmap or free of registered memory ends the
 * process.
 *
 * @param address  start of the range.
 * @param bytes    size, not 0.
 * @param kind     requirements to check.
 * @param id       receives a number that is unique in the process.
 *
 * @return XSEG_ERR_ARGUMENT     a page is not mapped, not accessible, or of another device or other properties than the
 *                               first page; or the range exceeds its allocation.  The message has the address.
 *         XSEG_ERR_UNSUPPORTED  the first page was created without gpuDirectRDMACapable, or the machine lacks a
 *                               feature.
 * Cost: O(mappings in the range); no virtual time.
 */
XSEG_API xseg_status xseg_sim_register(uint64_t address, uint64_t bytes,
                                       enum xseg_sim_registrar kind, uint64_t *id);

/**
 * Register memory through a descriptor of cuMemGetHandleForAddressRange, which can be closed afterwards.
 *
 * Unlike a real library, the function rejects a range whose memory has changed since the descriptor was created.
 *
 * @param file    descriptor.
 * @param offset  offset of the range in the descriptor.
 * @param bytes   size.
 * @param id      as for xseg_sim_register().
 *
 * @return XSEG_ERR_ARGUMENT     not a descriptor of this machine, a range outside the descriptor, or other memory.
 *         XSEG_ERR_UNSUPPORTED  the machine has no RDMA.
 * Cost: O(open dma-bufs); no virtual time.
 */
XSEG_API xseg_status xseg_sim_register_descriptor(int file, uint64_t offset, uint64_t bytes,
                                                  uint64_t *id);

/**
 * End a registration.
 *
 * @return XSEG_ERR_ARGUMENT  no registration has this number.
 * Cost: O(registrations).
 */
XSEG_API xseg_status xseg_sim_unregister(uint64_t id);

/** Get the registered bytes, counted for each registration. */
XSEG_API uint64_t xseg_sim_registered(void);

/** Get the number of registrations since the reset. */
XSEG_API uint64_t xseg_sim_registrations(void);

/** Get the memory of a device in use, in bytes; 0 if the device does not exist. */
XSEG_API uint64_t xseg_sim_used(unsigned device);

/** Get the peak of xseg_sim_used() since the reset. */
XSEG_API uint64_t xseg_sim_peak(unsigned device);

/**
 * Get the number of driver objects that were not released: physical memory, mappings, reservations, allocations,
 * streams, events, graphs, registrations and retained contexts.
 *
 * @param text   receives one line per kind with its count and an example, truncated to fit and terminated; may be NULL
 *               if bytes is 0.
 * @param bytes  size of text.
 *
 * @return the number of objects.
 */
XSEG_API size_t xseg_sim_leaks(char *text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
