/* SPDX-License-Identifier: MIT */
/*
 * Settings of the simulated driver, libxseg-sim.so.
 *
 * The library speaks the CUDA driver's binary interface (cuInit, cuMemCreate, ...) without a GPU.
 * A program meets it in one of two ways.  It is loaded as the driver (XSEG_DRIVER, or
 * xseg_options).  Or it is linked, so that these functions can set the scene: how much memory there
 * is, which call fails, what the streams are doing.  There is one simulated machine in a process.
 *
 * Addresses: each reservation and allocation lies above all earlier ones, 2 MiB aligned at least, so
 * runs are repeatable, and a late use of an address meets nothing else.  Once all of the 128 TiB have been
 * used, those that were given back come again, from the lowest on.
 *
 * Time: a virtual clock.  Every driver call is charged what the cost preset says; nothing sleeps.
 * These costs are modelled, not measured.  With a tail seed each charge is spread around that: its
 * median stays, one in a hundred is above 1.4 times, one in a thousand is a spike of 5 to 80 times.
 *
 * Strict: what a real driver leaves undefined ends the process with a report on standard error
 * (what, by which call, what made it, what uses it still).  Undefined is memory that is unmapped or
 * freed while queued work touches it or others have it registered, an address that is touched without
 * being mapped or accessible, a write to memory that may only be read, and a stream or event used after
 * its destruction.  What a driver refuses is refused with its error code.
 *
 * Work: what is queued on a stream stays unfinished until its time comes on the virtual clock, or
 * until the host waits for it: a wait succeeds and ends all work that it waits for.
 *
 * Bytes: memory has no contents, unless asked for.  Then each device keeps them in one sparse memory
 * file that is mapped at the reserved addresses.  Copies and fills move them, and where any device
 * has access the program can look at them as at its own memory.  A wrong mapping is a wrong byte or
 * a fault.  Where the process has something else at an address, later addresses are taken.
 *
 * Sharing: processes that name the same machine share the memory of its devices, so what one takes
 * the others do not have.  The first of them decides how many devices there are and how large.  The
 * functions below speak of this process alone.
 *
 * Environment, read when the first driver call or xseg_sim function is reached; a variable that
 * cannot be understood is reported on standard error and left out:
 *   XSEG_SIM_DEVICES=N          number of devices (1)
 *   XSEG_SIM_MEMORY_MB=N        memory of each device, an even number (81920)
 *   XSEG_SIM_ADDRESSES_MB=N     addresses that can be reserved in all (134217728, 128 TiB)
 *   XSEG_SIM_COSTS=PRESET|FILE  none, a100, a100_cold, consumer, rocm_slow (a100), or a file of costs:
 *                               its name has a / or a . (docs/simulator.md says what is in it)
 *   XSEG_SIM_TAILS=SEED         spread of the costs; 0: none (0)
 *   XSEG_SIM_BATCH=0|1          whether one call may unmap or set access over several mappings (1)
 *   XSEG_SIM_VMM=0|1            whether the devices offer virtual memory management (1)
 *   XSEG_SIM_SHARED=NAME        the machine of that name, with all processes that name it (none)
 *   XSEG_SIM_FAIL=CALL:N[+E][:ERR]
 *                               the N-th CALL (any call if empty) fails with error number ERR (2),
 *                               and each E-th after it; several, with commas between
 *   XSEG_SIM_STRICT=0|1         whether to abort on what a driver leaves undefined (1)
 *   XSEG_SIM_PEERS=0|1          whether devices can use each other's memory (1)
 *   XSEG_SIM_BYTES=0|1          whether memory keeps what it contains (0)
 *   XSEG_SIM_FABRIC=0|1         whether memory can be exported by fabric handles (0)
 *   XSEG_SIM_RECYCLE=0|1        whether handles of streams and events come again (0)
 *   XSEG_SIM_RDMA=KIND          works, refused, denied, ignored or absent: enum xseg_sim_rdma (works)
 *   XSEG_SIM_DMA_BUF=0|1        whether address ranges have dma-bufs (1)
 *   XSEG_SIM_ADDRESS_RANGE=0|1  whether cuMemGetAddressRange answers for mapped memory (1)
 *   XSEG_SIM_ADDRESS_ORDER=ORDER
 *                               rising, falling or shuffled: enum xseg_sim_address_order (rising)
 *
 * Threads: any.  Costs: no real driver is ever called.
 * Errors:  a status, and a sentence: xseg_sim_error_text().
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

/* CUDA's own tag, as in allocator.h. */
struct CUstream_st;

/** What a machine does about memory that is created with gpuDirectRDMACapable. */
enum xseg_sim_rdma {
    XSEG_SIM_RDMA_WORKS,   /* makes it, and others can register it */
    XSEG_SIM_RDMA_REFUSED, /* refuses to make it, although the devices say that they can */
    XSEG_SIM_RDMA_DENIED, /* makes it, and refuses access to it: CUDA_ERROR_UNKNOWN, as under WSL2 */
    XSEG_SIM_RDMA_IGNORED, /* makes it as if without the flag */
    XSEG_SIM_RDMA_ABSENT /* the devices say that they have none; it is refused, and so is every registration */
};

/** The order of the addresses of reservations and allocations. */
enum xseg_sim_address_order {
    XSEG_SIM_ADDRESSES_RISING,  /* above all earlier ones */
    XSEG_SIM_ADDRESSES_FALLING, /* below all earlier ones */
    XSEG_SIM_ADDRESSES_SHUFFLED /* at pseudo-random addresses, the same in each run */
};

/** The simulated machine.  Start from XSEG_SIM_SETTINGS_INIT; zero is the default throughout. */
struct xseg_sim_settings {
    size_t struct_bytes;     /* sizeof(struct xseg_sim_settings) */
    unsigned devices;        /* 0: 1 */
    uint64_t memory_bytes;   /* of each device; 0: 80 GiB */
    uint64_t address_bytes;  /* that can be reserved in all; 0: 128 TiB */
    const char *costs;       /* preset by name, or a file of costs by its path; NULL: "a100" */
    bool one_by_one;         /* refuse unmap and set-access over several mappings, as HIP does */
    bool without_vmm;        /* the devices offer no virtual memory management */
    bool fast;               /* leave out the checks that end in a report, for benchmarks */
    bool real_bytes;         /* keep what memory contains; see above */
    bool without_peers;      /* no device can use the memory of another */
    uint64_t tail_seed;      /* calls cost more or less by chance, repeatably; 0: what they cost */
    const char *shared;      /* name of the machine whose memory processes share; NULL: own */
    bool recycles;           /* handles of destroyed streams and events come again */
    bool fabric;             /* memory can be exported by fabric handles, too */
    enum xseg_sim_rdma rdma; /* what it does about memory for RDMA; 0: all works */
    bool without_dma_buf;    /* no address range has a dma-buf */
    bool no_address_range;   /* cuMemGetAddressRange does not answer for mapped memory */
    enum xseg_sim_address_order address_order; /* 0: rising addresses */
};
/* clang-format off */
#define XSEG_SIM_SETTINGS_INIT {sizeof(struct xseg_sim_settings), 0, 0, 0, NULL, false, false, false, false, false, 0, NULL, false, false, XSEG_SIM_RDMA_WORKS, false, false, XSEG_SIM_ADDRESSES_RISING}
/* clang-format on */

/**
 * Start again with a fresh machine.  Everything made on the old one is gone; handles of it must
 * not be used again.  Call counters, the clock and set faults start at nothing.
 *
 * @param settings  NULL: what the environment says
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT (unknown size or preset, a file of costs that cannot be
 *          understood, more than 64 devices, memory_bytes
 *          not a multiple of 2 MiB, a shared machine that cannot be joined, an environment that
 *          cannot be understood: nothing changes)
 */
XSEG_API xseg_status xseg_sim_reset(const struct xseg_sim_settings *settings);

/**
 * What was wrong in the calling thread's last call of a function of this header that failed: the value
 * that was refused, and what it may be.
 *
 * @param text   where the sentence goes, cut to fit and always terminated; NULL when bytes is 0
 * @param bytes  size of text
 *
 * Returns: the length of the whole sentence in bytes without its terminator; 0 if none has failed yet.
 */
XSEG_API size_t xseg_sim_error_text(char *text, size_t bytes);

/**
 * Let a driver call fail, once.
 *
 * The call does nothing but return the error.  A later xseg_sim_fail() replaces an earlier one.
 *
 * @param call   name without a version suffix, such as "cuMemCreate"; NULL: any call that can fail
 * @param nth    1 is the next such call; 0 takes the fault back
 * @param error  CUresult to return, such as 2 for CUDA_ERROR_OUT_OF_MEMORY
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT for a name that the simulator does not have, or error 0
 */
XSEG_API xseg_status xseg_sim_fail(const char *call, uint64_t nth, int error);

/** Whether the fault set last has struck. */
XSEG_API bool xseg_sim_failed(void);

/** Faults that can be set at once. */
#define XSEG_SIM_FAULTS 16

/** A fault in full.  Start from XSEG_SIM_FAULT_INIT: the next call of any name fails, once. */
struct xseg_sim_fault {
    size_t struct_bytes;     /* sizeof(struct xseg_sim_fault) */
    const char *call;        /* name without a version suffix; NULL: any call that can fail */
    uint64_t address, bytes; /* only calls with an address in there; bytes 0: all calls */
    uint64_t nth;            /* 1 is the next such call */
    uint64_t every;          /* and each every-th after it, so 1 is all from then on; 0: once */
    uint64_t halfway; /* cuMemUnmap, cuMemSetAccess: mappings that are done before it fails */
    int error;        /* CUresult to return */
};
#define XSEG_SIM_FAULT_INIT                                   \
    {                                                         \
        sizeof(struct xseg_sim_fault), NULL, 0, 0, 1, 0, 0, 2 \
    }

/**
 * Set a fault.  Faults are independent: each counts the calls that it is about, whether another
 * strikes in them or not; where several strike in one call, it returns the error of the lowest slot.
 *
 * @param slot   below XSEG_SIM_FAULTS; xseg_sim_fail() uses slot 0
 * @param fault  NULL: take it back
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT (slot, size, name, nth or error 0, half-way in other calls)
 */
XSEG_API xseg_status xseg_sim_fault_set(unsigned slot, const struct xseg_sim_fault *fault);

/** How often the fault set last in a slot has struck. */
XSEG_API uint64_t xseg_sim_fault_struck(unsigned slot);

/**
 * Let somebody else hold memory of a device from here on, which is then not free; 0 gives it back.
 * More than is free leaves nothing, until programs give back enough.
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT for a device that does not exist
 */
XSEG_API xseg_status xseg_sim_hold_memory(unsigned device, uint64_t bytes);

/** Let somebody else hold addresses, as above. */
XSEG_API void xseg_sim_hold_addresses(uint64_t bytes);

/**
 * How often a call was made since the reset, failed ones included.
 *
 * @param call  name without a version suffix; NULL: all calls together
 *
 * Returns: the count; 0 for a name that the simulator does not have, with a line on standard error.
 */
XSEG_API uint64_t xseg_sim_calls(const char *call);

/** Nanoseconds on the virtual clock since the reset.  Modelled. */
XSEG_API uint64_t xseg_sim_clock(void);

/** Nanoseconds that driver calls were charged since the reset, waits left out.  Modelled. */
XSEG_API uint64_t xseg_sim_driver_time(void);

/** Let time pass: work whose time has come is finished. */
XSEG_API void xseg_sim_advance(uint64_t nanoseconds);

/**
 * Queue work on a stream.
 *
 * @param stream       a stream of the current context; NULL: the legacy default stream
 * @param nanoseconds  how long it takes once it runs; UINT64_MAX: until it is finished by
 *                     xseg_sim_finish() or a wait of the host
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT for a stream that is not alive; XSEG_ERR_HOST_MEMORY
 */
XSEG_API xseg_status xseg_sim_launch(struct CUstream_st *stream, uint64_t nanoseconds);

/** Memory that a piece of work reads and writes. */
struct xseg_sim_touch {
    uint64_t address, bytes;
};

/**
 * Queue work that says what it touches.  All of it has to be mapped and accessible to the stream's
 * device when the work is queued, and must stay so until the work has finished; else the process
 * ends with a report.  In fast mode nothing is checked.
 *
 * Returns: as xseg_sim_launch()
 */
XSEG_API xseg_status xseg_sim_launch_on(struct CUstream_st *stream, uint64_t nanoseconds,
                                        uint64_t address, uint64_t bytes);

/** Queue one piece of work that touches several places. */
XSEG_API xseg_status xseg_sim_launch_touching(struct CUstream_st *stream, uint64_t nanoseconds,
                                              const struct xseg_sim_touch *touch, size_t count);

/**
 * All work queued on a stream so far has finished.
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT for a stream that is not alive
 */
XSEG_API xseg_status xseg_sim_finish(struct CUstream_st *stream);

/** All work queued on any stream so far has finished. */
XSEG_API void xseg_sim_finish_all(void);

/** The library or module that registers memory.  Each asks something else of the memory. */
enum xseg_sim_registrar {
    /* The kernel module nvidia_peermem: the range lies in one mapping or one allocation. */
    XSEG_SIM_PEERMEM,
    /* Users of dma-bufs, such as UCX: the range lies in what cuMemGetAddressRange answers for its address,
     * and all of that could have a dma-buf. */
    XSEG_SIM_DMABUF,
    /* NCCL: cuMemGetAddressRange answers from one mapping to the next until the range is covered, and
     * the range could have a dma-buf.  On a machine that has none, as XSEG_SIM_PEERMEM. */
    XSEG_SIM_NCCL
};

/**
 * Register memory, as libraries for networks do, until xseg_sim_unregister().
 *
 * All kinds want memory that is mapped, accessible to its device, and made with gpuDirectRDMACapable; or
 * an allocation of cuMemAlloc, in whole pages of the host.  Ranges may overlap.
 *
 * Strict: unmapping or freeing memory of which some is registered ends the process with a report.
 *
 * @param address, bytes  what is to be registered, not only whole pages; bytes is not 0
 * @param kind            who registers it
 * @param id              written on success: a number that no other registration has in this process
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT (id or kind; the sentence names the first page that is not mapped, not
 *          accessible, of another device or of other properties than the first, or where the allocation
 *          ends); XSEG_ERR_UNSUPPORTED (the first page was made without gpuDirectRDMACapable, or the machine lacks
 *          what the kind needs); XSEG_ERR_HOST_MEMORY
 * Threads: any.  Cost: grows with the mappings in the range; no virtual time.
 */
XSEG_API xseg_status xseg_sim_register(uint64_t address, uint64_t bytes,
                                       enum xseg_sim_registrar kind, uint64_t *id);

/**
 * Register memory through a descriptor of cuMemGetHandleForAddressRange, which may be closed afterwards.
 *
 * Other than a real registrar, this one refuses a range that has other memory by now than the descriptor.
 *
 * @param file           the descriptor
 * @param offset, bytes  within its range
 * @param id             as above
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT (id, no descriptor of this process's machine, a range that reaches
 *          beyond it, other memory); XSEG_ERR_UNSUPPORTED (the machine has no RDMA); XSEG_ERR_HOST_MEMORY
 * Threads: any.  Cost: grows with the dma-bufs that are open; no virtual time.
 */
XSEG_API xseg_status xseg_sim_register_descriptor(int file, uint64_t offset, uint64_t bytes,
                                                  uint64_t *id);

/**
 * Take a registration back.
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT for a number that is no registration's, or was one's
 * Threads: any.  Cost: grows with the registrations.
 */
XSEG_API xseg_status xseg_sim_unregister(uint64_t id);

/** Bytes that are registered now; memory that is registered twice counts twice.  Threads: any. */
XSEG_API uint64_t xseg_sim_registered(void);

/** Registrations that were made since the reset.  Threads: any. */
XSEG_API uint64_t xseg_sim_registrations(void);

/** Bytes of a device's memory in use now; 0 for a device that does not exist. */
XSEG_API uint64_t xseg_sim_used(unsigned device);

/** The highest that xseg_sim_used() has been since the reset. */
XSEG_API uint64_t xseg_sim_peak(unsigned device);

/**
 * What programs have not given back: physical memory, mappings, reservations, allocations, streams,
 * events, graphs, registrations and retained contexts.
 *
 * @param text   one line per kind with its count and an example, cut to fit and always terminated;
 *               NULL when bytes is 0
 * @param bytes  size of text
 *
 * Returns: how many objects are left.
 */
XSEG_API size_t xseg_sim_leaks(char *text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
