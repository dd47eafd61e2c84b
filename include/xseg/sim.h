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
 * (XSEG_DRIVER, or struct xseg_options), or links it to call the functions of this header.  A process has one simulated
 * machine.
 *
 * Addresses: by default reservations and allocations have increasing addresses, aligned to 2 MiB, so runs are
 * repeatable.  Freed addresses are reused only after all addresses have been used, except in shuffled order.  With real
 * bytes, addresses at which the process has other mappings are skipped.
 *
 * Time: the machine has a virtual clock.  Each driver call advances the clock by the cost of the preset; no thread
 * sleeps.  Costs are modeled.  With a tail seed the median cost stays, one call in a hundred costs more than 1.4 times
 * the median, and one in a thousand 5 to 80 times.
 *
 * Work: queued work completes when the virtual clock reaches its end, or when the host waits for it.
 *
 * Strict mode, the default: undefined behavior of a real driver ends the process with a report on standard error.  The
 * report contains the error, the driver call, the calls that created the memory, and the work that uses the memory.
 * Undefined are the unmap or free of memory that queued work accesses or that is registered, accesses to memory without
 * a mapping or access rights, and uses of destroyed streams and events.  Errors that a driver detects are returned as
 * its error codes.  skip_checks turns strict mode off.
 *
 * Bytes: memory has no contents by default.  With real bytes each device has one sparse memory file, which is mapped at
 * the reserved addresses.  Copies and fills move bytes.  The program can access device memory directly at addresses to
 * which a device has access rights; other accesses fault.
 *
 * Sharing: processes that name the same machine share the memory of its devices.  The first process selects the number
 * and size of the devices.  The functions of this header apply to the calling process.
 *
 * Unified memory: with `integrated` the devices use the memory of the host, as on GB10 and Jetson.  cuMemGetInfo counts
 * the page cache of the host as used, although it is reclaimable.  If the devices and the host together use more than
 * memory_bytes, a real host stops responding and no call fails: in strict mode the process ends with a report.
 *
 * Environment: the first driver call or function of this header reads these variables.  An invalid value is reported on
 * standard error and ignored.  The default is in parentheses:
 *   XSEG_SIM_DEVICES=N            number of devices, up to 64 (1)
 *   XSEG_SIM_MEMORY_MB=N          memory of each device, an even number (81920)
 *   XSEG_SIM_ADDRESSES_MB=N       VA that can be reserved (134217728, 128 TiB)
 *   XSEG_SIM_COSTS=PRESET|FILE    none, a100, a100_cold, consumer, rocm_slow (a100); or the path of a cost file, which
 *                                 contains a / or a . (docs/simulator.md)
 *   XSEG_SIM_TAILS=SEED           tail seed; 0: constant costs (0)
 *   XSEG_SIM_BATCH=0|1            whether one call can unmap or set access over several mappings (1)
 *   XSEG_SIM_VMM=0|1              whether the devices support virtual memory management (1)
 *   XSEG_SIM_SHARED=NAME          name of the shared machine (none)
 *   XSEG_SIM_FAIL=CALL:N[+E][:ERR]
 *                                 the N-th CALL (any call if empty) returns error number ERR (2), and so does each E-th
 *                                 call after it; up to 16 faults, separated by commas
 *   XSEG_SIM_STRICT=0|1           strict mode (1)
 *   XSEG_SIM_PEERS=0|1            whether devices can access each other's memory (1)
 *   XSEG_SIM_BYTES=0|1            real bytes (0)
 *   XSEG_SIM_FABRIC=0|1           whether memory can be exported by fabric handles (0)
 *   XSEG_SIM_REUSE_HANDLES=0|1    whether handles of destroyed streams and events are reused (0)
 *   XSEG_SIM_RDMA=KIND            works, create_fails, access_fails, ignored, absent: enum xseg_sim_rdma (works)
 *   XSEG_SIM_DMA_BUF=0|1          whether address ranges have dma-bufs (1)
 *   XSEG_SIM_ADDRESS_RANGE=0|1    whether cuMemGetAddressRange works for mapped memory (1)
 *   XSEG_SIM_INTEGRATED=0|1       whether the devices use the memory of the host (0)
 *   XSEG_SIM_HOST_MB=N            memory of host programs, on integrated devices (0)
 *   XSEG_SIM_PAGE_CACHE_MB=N      reclaimable page cache of the host, on integrated devices (0)
 *   XSEG_SIM_ADDRESS_ORDER=ORDER  rising, falling or shuffled: enum xseg_sim_address_order (rising)
 *
 * Threads: any, for all functions.
 *
 * Errors: functions that return a status write a message for the calling thread (xseg_sim_error_message()).
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
    XSEG_SIM_RDMA_ACCESS_FAILS, /* set-access fails with CUDA_ERROR_UNKNOWN, as under WSL2 */
    XSEG_SIM_RDMA_IGNORED,      /* the flag is ignored */
    XSEG_SIM_RDMA_ABSENT        /* the attribute reports no support; creation fails */
};

/** Order of the addresses of reservations and allocations. */
enum xseg_sim_address_order {
    XSEG_SIM_ADDRESSES_RISING,  /* increasing */
    XSEG_SIM_ADDRESSES_FALLING, /* decreasing */
    XSEG_SIM_ADDRESSES_SHUFFLED /* pseudo-random, the same in each run */
};

/** Settings of the simulated machine. */
struct xseg_sim_settings {
    size_t struct_size;         /* sizeof(struct xseg_sim_settings), exactly */
    unsigned devices;           /* number of devices, up to 64; 0: 1 */
    uint64_t memory_bytes;      /* memory of each device, a multiple of 2 MiB; 0: 80 GiB */
    uint64_t address_bytes;     /* VA that can be reserved; 0: 128 TiB */
    const char *costs;          /* name of a preset, or path of a cost file; NULL: "a100" */
    bool single_mapping_calls;  /* reject unmap and set-access over several mappings, as HIP does */
    bool without_vmm;           /* no virtual memory management */
    bool skip_checks;           /* turn strict mode off, for benchmarks */
    bool real_bytes;            /* memory has contents */
    bool without_peers;         /* no peer access */
    uint64_t tail_seed;         /* tail seed of the costs; 0: constant costs */
    const char *shared;         /* name of the shared machine; NULL: private */
    bool reuse_handles;         /* reuse handles of destroyed streams and events */
    bool fabric;                /* fabric handles are supported */
    enum xseg_sim_rdma rdma;    /* behavior of memory for RDMA */
    bool without_dma_buf;       /* no dma-buf support */
    bool without_address_range; /* cuMemGetAddressRange fails for mapped memory */
    enum xseg_sim_address_order address_order; /* order of addresses */
    bool integrated;           /* the devices use the memory of the host, memory_bytes in all */
    uint64_t host_bytes;       /* integrated: memory of host programs */
    uint64_t page_cache_bytes; /* integrated: reclaimable page cache of the host */
};

/**
 * Replace the machine by a new one.
 *
 * Handles of the old machine become invalid; counters, clock and faults are reset.
 *
 * @param settings  settings, which replace those of the environment; NULL: the settings of the environment.
 *
 * @return XSEG_ERR_ARGUMENT  a setting is invalid: an unknown struct_size or preset, an invalid cost file, a number out
 *                            of range, an inaccessible shared machine, or an invalid variable of the environment.  The
 *                            machine is unchanged.
 */
XSEG_API xseg_status xseg_sim_reset(const struct xseg_sim_settings *settings);

/**
 * Get the message of the calling thread's last failed call of a function in this header.
 *
 * @param text   receives the message, truncated to fit and terminated; may be NULL if bytes is 0.
 * @param bytes  size of text.
 *
 * @return the length of the whole message in bytes, without the terminator; 0 if no call of this thread has failed.
 */
XSEG_API size_t xseg_sim_error_message(char *text, size_t bytes);

/**
 * Inject one fault: a driver call returns an error and has no effect.  The call replaces the fault of slot 0.
 *
 * @param call   name without a version suffix, such as "cuMemCreate"; NULL: any call that can fail.
 * @param nth    1 selects the next call; 0 removes the fault.
 * @param error  CUresult, such as 2 for CUDA_ERROR_OUT_OF_MEMORY.
 *
 * @return XSEG_ERR_ARGUMENT  the name is unknown, or the error is 0.
 */
XSEG_API xseg_status xseg_sim_fail(const char *call, uint64_t nth, int error);

/** Get whether the fault of xseg_sim_fail() has affected a call. */
XSEG_API bool xseg_sim_failed(void);

/** Number of faults that can be set concurrently. */
#define XSEG_SIM_FAULTS 16

/** Description of a fault.  XSEG_SIM_FAULT_INIT selects the next call of any name, once. */
struct xseg_sim_fault {
    size_t struct_size; /* sizeof(struct xseg_sim_fault), exactly */
    const char *call;   /* name without a version suffix; NULL: any call that can fail */
    uint64_t address;   /* start of the range of `bytes` */
    uint64_t bytes;     /* only calls with an address in this range fail; 0: all calls */
    uint64_t nth;       /* number of the first such call that fails; 1: the next one */
    uint64_t every;     /* then each every-th such call fails; 0: none */
    uint64_t halfway;   /* cuMemUnmap, cuMemSetAccess: mappings processed before the error */
    int error;          /* CUresult that the call returns */
};
#define XSEG_SIM_FAULT_INIT                                   \
    {                                                         \
        sizeof(struct xseg_sim_fault), NULL, 0, 0, 1, 0, 0, 2 \
    }

/**
 * Set the fault of a slot.
 *
 * Each fault counts its calls independently.  If several faults apply to a call, the fault of the lowest slot
 * determines the error.
 *
 * @param slot   less than XSEG_SIM_FAULTS; xseg_sim_fail() uses slot 0.
 * @param fault  NULL removes the fault.
 *
 * @return XSEG_ERR_ARGUMENT  the slot, struct_size or name is invalid; nth or error is 0; or halfway is set for another
 *                            call.
 */
XSEG_API xseg_status xseg_sim_fault_set(unsigned slot, const struct xseg_sim_fault *fault);

/** Get how many calls the fault of a slot has affected; 0 for an invalid slot. */
XSEG_API uint64_t xseg_sim_fault_count(unsigned slot);

/**
 * Simulate memory of a device that other processes use.
 *
 * @param device  device ordinal.
 * @param bytes   memory that others use from now on.  It replaces the previous value and can exceed the free memory.
 *
 * @return XSEG_ERR_ARGUMENT  the device does not exist.
 */
XSEG_API xseg_status xseg_sim_set_external_memory(unsigned device, uint64_t bytes);

/**
 * Set the memory of the host of an integrated machine, for all processes of a shared machine.
 *
 * In strict mode the process ends with a report if host programs and devices together use more than the machine has.
 *
 * @param host_bytes        memory of host programs.
 * @param page_cache_bytes  reclaimable page cache, at most the memory that is not in use otherwise.
 *
 * @return XSEG_ERR_ARGUMENT  the machine is not integrated.
 */
XSEG_API xseg_status xseg_sim_set_host_memory(uint64_t host_bytes, uint64_t page_cache_bytes);

/**
 * Write the memory of the host of an integrated machine in the form of /proc/meminfo: MemTotal, MemFree, MemAvailable,
 * Buffers and Cached.  xseg reads it instead of /proc/meminfo.
 *
 * @param text   receives the text, truncated to fit and terminated; may be NULL if bytes is 0.
 * @param bytes  size of text.
 *
 * @return the length of the whole text in bytes, without the terminator; 0 if the machine is not integrated.
 */
XSEG_API size_t xseg_sim_meminfo(char *text, size_t bytes);

/** Simulate addresses that others have reserved.  `bytes` replaces the previous value. */
XSEG_API void xseg_sim_set_external_addresses(uint64_t bytes);

/**
 * Get the number of calls of a driver function since the reset, including failed calls.
 *
 * @param call  name without a version suffix; NULL: all calls.
 *
 * @return the count; 0 for an unknown name, which is reported on standard error.
 */
XSEG_API uint64_t xseg_sim_calls(const char *call);

/** Get the modeled virtual time since the reset, in nanoseconds. */
XSEG_API uint64_t xseg_sim_clock(void);

/** Get the modeled time of driver calls since the reset, without waits, in nanoseconds. */
XSEG_API uint64_t xseg_sim_driver_time(void);

/** Advance the virtual clock.  Work whose end the clock reaches completes. */
XSEG_API void xseg_sim_advance(uint64_t nanoseconds);

/**
 * Queue work on a stream.
 *
 * On a capturing stream the work becomes a node of the graph.
 *
 * @param stream       stream of the current context; NULL: the legacy default stream.
 * @param nanoseconds  duration; UINT64_MAX: until xseg_sim_finish() or a wait of the host.
 *
 * @return XSEG_ERR_ARGUMENT     the stream has been destroyed, no context is current for a default stream, the capture of the
 *                               stream is invalid, or the stream is the legacy default stream while a blocking stream of the
 *                               device is capturing, which invalidates that capture.
 *         XSEG_ERR_HOST_MEMORY  a host allocation failed.
 */
XSEG_API xseg_status xseg_sim_launch(struct CUstream_st *stream, uint64_t nanoseconds);

/** Memory that work reads and writes. */
struct xseg_sim_access {
    uint64_t address; /* start address */
    uint64_t bytes;   /* size */
};

/**
 * Queue work that accesses one range of memory.  Otherwise as xseg_sim_launch().
 *
 * The memory must be mapped and accessible to the stream's device from now until the work completes; otherwise the
 * process ends with a report.  With skip_checks the memory is not checked.
 *
 * @param address  start of the range.
 * @param bytes    size of the range.
 *
 * @return the statuses of xseg_sim_launch().
 */
XSEG_API xseg_status xseg_sim_launch_on(struct CUstream_st *stream, uint64_t nanoseconds,
                                        uint64_t address, uint64_t bytes);

/** Queue work that accesses `count` ranges of memory.  Otherwise as xseg_sim_launch_on(). */
XSEG_API xseg_status xseg_sim_launch_accessing(struct CUstream_st *stream, uint64_t nanoseconds,
                                               const struct xseg_sim_access *access, size_t count);

/**
 * Complete all work that is queued on a stream.
 *
 * @return XSEG_ERR_ARGUMENT  the stream has been destroyed.
 */
XSEG_API xseg_status xseg_sim_finish(struct CUstream_st *stream);

/** Complete all queued work. */
XSEG_API void xseg_sim_finish_all(void);

/**
 * Library or kernel module that registers memory.  It determines the checks of xseg_sim_register().
 *
 * PEERMEM is the kernel module nvidia_peermem: the range is in one mapping or allocation.
 *
 * DMABUF is a user of dma-bufs, such as UCX: cuMemGetAddressRange returns a mapping or allocation that contains the
 * range and can have a dma-buf.
 *
 * NCCL: cuMemGetAddressRange returns each mapping of the range, and the range can have a dma-buf.  On a machine without
 * dma-bufs the checks are those of PEERMEM.
 */
enum xseg_sim_registrar { XSEG_SIM_PEERMEM, XSEG_SIM_DMABUF, XSEG_SIM_NCCL };

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
 * @param id       receives the ID for xseg_sim_unregister(), unique in the process.
 *
 * @return XSEG_ERR_ARGUMENT     a page is not mapped or not accessible, or differs from the first page in device or
 *                               properties; or the range exceeds its mapping or allocation.  The message has the
 *                               address.
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
 * @param bytes   size, not 0.
 * @param id      receives the ID for xseg_sim_unregister().
 *
 * @return XSEG_ERR_ARGUMENT     the file is no dma-buf of this process, the range exceeds the dma-buf, or its memory
 *                               has changed.
 *         XSEG_ERR_UNSUPPORTED  the machine has no RDMA.
 * Cost: O(open dma-bufs); no virtual time.
 */
XSEG_API xseg_status xseg_sim_register_descriptor(int file, uint64_t offset, uint64_t bytes,
                                                  uint64_t *id);

/**
 * End a registration.
 *
 * @return XSEG_ERR_ARGUMENT  no registration has this ID.
 * Cost: O(registrations).
 */
XSEG_API xseg_status xseg_sim_unregister(uint64_t id);

/** Get the sum of the sizes of all registrations, in bytes. */
XSEG_API uint64_t xseg_sim_registered(void);

/** Get the number of registrations that were created since the reset. */
XSEG_API uint64_t xseg_sim_registrations(void);

/** Get the memory of a device that this process uses, in bytes; 0 if the device does not exist. */
XSEG_API uint64_t xseg_sim_used(unsigned device);

/** Get the peak of xseg_sim_used() since the reset. */
XSEG_API uint64_t xseg_sim_peak(unsigned device);

/**
 * Get the number of driver objects that were not released: physical memory, mappings, reservations, allocations,
 * streams, events, graphs, pinned host memory, registrations and retained contexts.
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
