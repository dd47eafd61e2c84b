/* SPDX-License-Identifier: MIT */
/*
 * The simulated machine: devices, virtual clock, configuration and the lock of the simulated driver.
 *
 * The simulator is a model of the CUDA driver.  It implements the driver's binary interface on host memory only, so that
 * programs and tests exercise the code that loads and calls a driver without a GPU.  One header describes each subject.
 *
 *   entry.h           entry points: counters, checks on entry, cuGetProcAddress.
 *   context.h         devices, primary contexts, peer access.
 *   memory.h          physical memory, cuMemAlloc, pinned host memory.
 *   contents.h        contents of memory, in memory files.
 *   mapping.h         address ranges, mappings and access rights.
 *   stream.h          streams, queued work and its completion.
 *   operation.h       kernels, copies, fills and host functions.
 *   access.h          memory that queued work accesses, and the checks of strict mode.
 *   event.h           events.
 *   graph.h           graphs, executable graphs, user objects.
 *   capture.h         stream capture.
 *   sharing.h         export and import, IPC, dma-bufs.
 *   shared_machine.h  device memory that processes share.
 *   unified.h         memory that integrated devices share with the host.
 *   registrar.h       libraries that register memory.
 *   cost.h, fault.h   costs of calls, injected faults.
 *   report.h          error messages, reports, leaks.
 *
 * State.  A process has one machine, `sim_machine`.  The first call of the process starts it with the configuration of
 * the environment; xseg_sim_reset() replaces it.  The start of a machine destroys every object of the previous one.
 * Handles of destroyed objects do not resolve (handle.h), and threads recognize stale state by `epoch`.
 *
 * Clock.  Time is virtual and advances in driver calls only: by the cost of the call (sim_clock_charge()), by a wait of
 * the host, and by xseg_sim_advance().  Work completes when the clock reaches its end.  The clock never reaches
 * SIM_OPEN_ENDED, the end of open-ended work.
 *
 * Completion.  Copies, fills and host functions take effect when their work completes.  They run before the call that
 * observed the completion releases the lock (sim_unlock()), in the order of their ends.  Host functions run without the
 * lock, in the thread of that call.
 *
 * Invariants: an allocation succeeds only if the used memory of all processes and external_bytes do not exceed that of
 * the device, on an integrated machine together with the memory of the host.  IDs are never reused in a process.
 *
 * Locking: one mutex protects the machine.  Every exported function acquires it on entry and releases it before it
 * returns; all other functions require that the caller holds it, unless their header says otherwise.  While the
 * process has a single thread, the mutex is not locked.  struct sim_thread is thread-local.
 */
#ifndef XSEG_SIM_MACHINE_H
#define XSEG_SIM_MACHINE_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/access.h"
#include "vmm/sim/calls.h"
#include "vmm/sim/cost.h"
#include "vmm/sim/fault.h"
#include "vmm/sim/handle.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/memory.h"
#include "vmm/sim/operation.h"
#include "vmm/sim/registrar.h"
#include "vmm/sim/report.h"
#include "vmm/sim/shared_machine.h"
#include "vmm/sim/sharing.h"
#include "vmm/sim/stream.h"
#include "vmm/sim/unified.h"
#include "xseg/sim.h"

/* Whether the process has a single thread, if the C library reports it. */
#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 32)
#include <sys/single_threaded.h>
#define SIM_HAS_ONE_THREAD __libc_single_threaded
#endif
#endif
#ifndef SIM_HAS_ONE_THREAD
#define SIM_HAS_ONE_THREAD false
#endif

/* Allocation granularity, minimum and recommended. */
#define SIM_GRANULE ((uint64_t)2 << 20)

enum { SIM_DEVICES_MAX = 64, SIM_STACK_MAX = 256, SIM_DRIVER_VERSION = 13000 };

struct sim_event;
struct sim_capture;

/** Settings of a machine, defaults included. */
struct sim_config {
    unsigned devices;
    uint64_t memory_bytes, address_bytes;
    struct sim_costs costs;
    uint64_t tail_seed; /* 0: constant costs */
    bool single_mapping_calls, without_vmm, without_peers, strict, real_bytes, reuse_handles,
        fabric;
    bool without_dma_buf, without_address_range;
    bool integrated;      /* unified memory */
    struct sim_host host; /* initial memory of the host */
    enum xseg_sim_rdma rdma;
    enum xseg_sim_address_order address_order;
    struct sim_faults faults;         /* initial faults */
    struct sim_shared_machine shared; /* joined machine */
};

struct sim_device {
    uint64_t used, peak;     /* memory of this process, in bytes */
    uint64_t external_bytes; /* memory that xseg_sim_set_external_memory() reserves */
    uint64_t peers; /* bit mask of devices to whose allocations the context has peer access */
    /* The primary context. */
    unsigned retained; /* reference count */
    bool active;
    uint64_t context_number;   /* counts the contexts of the device */
    unsigned flags;            /* stored, without effect */
    struct sim_stream *legacy; /* legacy default stream, created on first use */
    struct sim_stream *streams;
    struct sim_stream *destroyed_streams; /* with work that has not completed */
    struct sim_event *events;
    /* The memory file (contents.h). */
    bool has_file;
    int file;
    uint64_t file_bytes; /* size; space is not reused */
};

struct sim_machine {
    bool ready;       /* a machine has been started */
    bool initialized; /* cuInit was called */
    /* The row of the call table contains all checks that can reject a call.  Code that adds another check, such as a
     * fault, clears the flag; sim_enter_checked() computes it again. */
    bool fast_entry;
    bool forked;    /* the process is a child of the process that owns the machine */
    uint32_t epoch; /* counts starts */
    struct sim_config config;

    uint64_t now, driver_time; /* virtual clock; sum of costs */
    uint64_t tail_state;       /* state of the random numbers of latency tails */

    uint64_t calls[SIM_CALL_COUNT];
    const char *current_call; /* name of the call in progress; NULL: none */
    uint64_t call_number;     /* number of the call in progress, from the start on */
    bool saw_completion;      /* the call in progress returns after completions that are running */
    struct sim_faults faults;
    struct sim_accesses accesses;
    struct sim_completions completions;
    struct sim_shared_machine shared;
    struct sim_address_space addresses;
    struct sim_handles streams, events, graphs, nodes, physical, graph_execs, user_objects;
    uint64_t mappings;       /* number of mappings */
    uint64_t exports_in_use; /* physical memory that only importers or open descriptors use */
    struct sim_dmabuf *dmabufs;
    struct sim_memory_file *memory_files;
    struct sim_registrations registrations;
    struct sim_pinned *pinned;
    uint64_t pinned_bytes;        /* of cuMemHostAlloc */
    struct sim_host host;         /* unless the machine is shared */
    struct sim_capture *captures; /* active and invalidated captures */
    uint64_t last_visit;          /* number of the last walk over queued work */

    /* Not reset by a start, so that IDs are unique in the process. */
    uint64_t last_stream_id, last_capture_id, last_thread, last_condition, last_registration;

    struct sim_device device[SIM_DEVICES_MAX];
};

extern struct sim_machine sim_machine;

/** State of a thread. */
struct sim_thread {
    uint32_t epoch;  /* epoch of the machine to which the state belongs */
    uint64_t number; /* unique in the process */
    CUstreamCaptureMode capture_mode;
    unsigned depth;                       /* of the context stack */
    unsigned char stack[SIM_STACK_MAX];   /* current contexts: device + 1, or 0 */
    uint64_t per_thread[SIM_DEVICES_MAX]; /* handles of the per-thread default streams */
};

/* State of the calling thread, or NULL.  The TLS model avoids a function call. */
extern __thread struct sim_thread *sim_thread_own __attribute__((tls_model("initial-exec")));

/** Reset the state of the calling thread for the current machine. */
struct sim_thread *sim_thread_reset(void);

/** Get the state of the calling thread. */
static inline struct sim_thread *sim_thread(void)
{
    struct sim_thread *own = sim_thread_own;

    return __builtin_expect(own != NULL && own->epoch == sim_machine.epoch, 1) ? own
                                                                               : sim_thread_reset();
}

/* A process with a single thread does not lock the mutex: a second thread cannot start while the first one is in a
 * driver call.  `is_elided` belongs to the holder of the lock. */
struct sim_mutex {
    pthread_mutex_t os;
    bool is_elided;
};
extern struct sim_mutex sim_mutex;

static inline void sim_mutex_lock(void)
{
    const bool is_elided = SIM_HAS_ONE_THREAD;

    if (!is_elided)
        (void)pthread_mutex_lock(&sim_mutex.os);
    sim_mutex.is_elided = is_elided;
}

static inline void sim_mutex_unlock(void)
{
    if (!sim_mutex.is_elided)
        (void)pthread_mutex_unlock(&sim_mutex.os);
}

/** Start the first machine, with the configuration of the environment. */
void sim_machine_start_default(void);

/** Lock the machine. */
static inline void sim_lock(void)
{
    sim_mutex_lock();
    if (__builtin_expect(!sim_machine.ready, 0))
        sim_machine_start_default();
}

/** Run the completions of completed work.  Releases the lock while host functions run. */
void sim_run_completions(void);

/** Unlock the machine after running completions and releasing the shared machine. */
void sim_unlock_slow(void);

/** Unlock the machine.  Completions of completed work run first. */
static inline void sim_unlock(void)
{
    if (__builtin_expect(sim_machine.completions.first != NULL ||
                             sim_machine.completions.is_running || sim_machine.shared.is_locked,
                         0)) {
        sim_unlock_slow();
        return;
    }
    sim_machine.saw_completion = false;
    sim_mutex_unlock();
}

/** Call a function of the application without the lock. */
void sim_call_unlocked(CUhostFn function, void *argument);

/**
 * Get the configuration of the environment.  An invalid variable has its default value.
 *
 * @param report  write a message about an invalid variable to standard error.
 *
 * @return XSEG_ERR_ARGUMENT  a variable is invalid.
 */
xseg_status sim_config_from_environment(struct sim_config *config, bool report);

/** Destroy the machine and start a new one. */
void sim_machine_start(const struct sim_config *config);

/** Get whether work has completed.  NULL is completed work. */
static inline bool sim_work_completed(const struct sim_work *work)
{
    return work == NULL || work->number <= work->queue->finished || work->end <= sim_machine.now;
}

/** Advance the clock. */
static inline void sim_clock_advance(uint64_t nanoseconds)
{
    const uint64_t remaining = SIM_OPEN_ENDED - 1 - sim_machine.now;

    sim_machine.now += nanoseconds < remaining ? nanoseconds : remaining;
}

/** Advance the clock by the cost of the call in progress. */
static inline void sim_clock_charge(uint64_t nanoseconds)
{
    if (__builtin_expect(sim_machine.config.tail_seed != 0 && nanoseconds != 0, 0))
        nanoseconds = sim_cost_with_tail(nanoseconds, &sim_machine.tail_state);
    sim_clock_advance(nanoseconds);
    sim_machine.driver_time += nanoseconds;
}

/** Get the memory of a device that can be allocated, in bytes. */
uint64_t sim_memory_available(unsigned device);

/** Add memory to the used memory of a device, or subtract it. */
void sim_memory_charge(unsigned device, uint64_t bytes);
void sim_memory_uncharge(unsigned device, uint64_t bytes);

#endif
