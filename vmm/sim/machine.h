/* SPDX-License-Identifier: MIT */
/*
 * The simulated machine: its devices, its clock, and the one lock over all of it.
 *
 * There is one machine in a process.  It starts at the first call of any kind, as the environment
 * says, or at xseg_sim_reset().  A reset ends every object of the old machine; their handles find
 * nothing afterwards (handle.h).
 *
 * Words: a device has one context, its primary one, so a context is named by its device.
 *
 * Locking: every exported function takes the lock on entry and gives it back before it returns;
 * everything below runs under it.  What belongs to a thread (struct sim_thread) is thread-local.
 */
#ifndef XSEG_SIM_MACHINE_H
#define XSEG_SIM_MACHINE_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/action.h"
#include "vmm/sim/address.h"
#include "vmm/sim/calls.h"
#include "vmm/sim/cost.h"
#include "vmm/sim/dmabuf.h"
#include "vmm/sim/fault.h"
#include "vmm/sim/handle.h"
#include "vmm/sim/origin.h"
#include "vmm/sim/registrar.h"
#include "vmm/sim/shared.h"
#include "vmm/sim/touch.h"
#include "vmm/sim/work.h"
#include "xseg/sim.h"

/* Whether the process has one thread only, where the C library says so. */
#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 32)
#include <sys/single_threaded.h>
#define SIM_HAS_ONE_THREAD __libc_single_threaded
#endif
#endif
#ifndef SIM_HAS_ONE_THREAD
#define SIM_HAS_ONE_THREAD false
#endif

#define SIM_GRANULE ((uint64_t)2 << 20) /* the smallest piece of memory that can be mapped */

enum { SIM_DEVICES_MAX = 64, SIM_STACK_MAX = 256, SIM_DRIVER_VERSION = 13000 };

struct sim_stream;
struct sim_event;
struct sim_capture;
struct sim_host;

struct sim_device {
    uint64_t used, peak; /* bytes of memory */
    uint64_t held;       /* by somebody else, as a test wants it */
    uint64_t peers;      /* a bit for each device whose allocations the context may use */
    /* The primary context. */
    unsigned retained;
    bool active;
    uint64_t context_number;     /* rises with each context of the device */
    unsigned flags;              /* of the context; nothing depends on them */
    struct sim_stream *legacy;   /* the legacy default stream, made when first needed */
    struct sim_stream *streams;  /* all that are alive */
    struct sim_stream *departed; /* destroyed, with work still unfinished */
    struct sim_event *events;
    /* Real bytes. */
    bool has_file;
    int file;
    uint64_t file_bytes; /* of it that were given out */
};

struct sim_machine {
    bool ready;       /* set up since the process started */
    bool initialised; /* cuInit was called */
    /* A call can be refused by the checks of its own table row alone.  Code that may change that clears
     * the flag; the next call that finds it clear sets it anew. */
    bool is_plain;
    uint32_t epoch; /* counts resets */
    uint64_t now, driver_time;

    unsigned devices;
    uint64_t memory_bytes;
    bool one_by_one, without_vmm, without_peers, strict, real_bytes, recycles, fabric;
    bool without_dma_buf, no_address_range;
    enum xseg_sim_rdma rdma;
    bool forked; /* the process is a child of the one that the machine belongs to */
    struct sim_costs costs;
    bool has_tails;
    uint64_t tail_state; /* of their random numbers */

    uint64_t calls[SIM_CALL_COUNT];
    const char *current; /* name of the call under way; NULL: none of the driver's */
    uint64_t entered;    /* calls so far, so the number of the one under way */
    struct sim_faults faults;
    struct sim_touches touches;
    struct sim_actions actions;
    bool waits; /* the call under way has seen work end, so its actions must be over, too */
    struct sim_shared shared;
    uint64_t pinned; /* memory that only other processes or open files hold */
    struct sim_addresses addresses;
    struct sim_handles streams, events, graphs, nodes, physical, executables, objects;
    uint64_t mappings; /* how many there are */
    struct sim_dmabuf *dmabufs;
    struct sim_opened *opened;
    struct sim_registrations registrations;
    struct sim_host *hosts; /* pinned host memory */

    struct sim_capture *captures; /* begun and not ended */
    uint64_t visits;              /* walks over unfinished work, work.c */

    /* Never start again, so that ids are unique in the process. */
    uint64_t last_stream_id, last_capture_id, last_thread, last_condition, last_registration;

    struct sim_device device[SIM_DEVICES_MAX];
};

/* CU_MEM_HANDLE_TYPE_FABRIC, which older headers do not have. */
#define SIM_HANDLE_FABRIC 8u

extern struct sim_machine sim_machine;

/** What the simulator keeps for each thread. */
struct sim_thread {
    uint32_t epoch;  /* of the machine that the rest belongs to */
    uint64_t number; /* unique in the process */
    CUstreamCaptureMode capture_mode;
    unsigned depth;                       /* of the stack of current contexts */
    unsigned char stack[SIM_STACK_MAX];   /* device + 1; 0 is no context */
    uint64_t per_thread[SIM_DEVICES_MAX]; /* handles of its default streams, made when needed */
};

/* The calling thread's own, once it has been asked for: at a fixed place, which costs no call. */
extern __thread struct sim_thread *sim_thread_own __attribute__((tls_model("initial-exec")));

/** The calling thread begins with what belongs to the machine as it is now. */
struct sim_thread *sim_thread_begin(void);

/** The calling thread's own. */
static inline struct sim_thread *sim_thread(void)
{
    struct sim_thread *own = sim_thread_own;

    return __builtin_expect(own != NULL && own->epoch == sim_machine.epoch, 1) ? own
                                                                               : sim_thread_begin();
}

/*
 * The machine's lock.  As long as the process has one thread, the mutex is not locked: no other
 * thread can begin while that one holds the machine.  `is_guarded` says whether the holder came in
 * that way; only the holder uses it.
 */
struct sim_mutex {
    pthread_mutex_t os;
    bool is_guarded;
};
extern struct sim_mutex sim_mutex;

static inline void sim_mutex_take(void)
{
    const bool is_guarded = SIM_HAS_ONE_THREAD;

    if (!is_guarded)
        (void)pthread_mutex_lock(&sim_mutex.os);
    sim_mutex.is_guarded = is_guarded;
}

static inline void sim_mutex_give(void)
{
    if (!sim_mutex.is_guarded)
        (void)pthread_mutex_unlock(&sim_mutex.os);
}

/** The machine's first call: it starts as the environment says. */
void sim_lock_first(void);

static inline void sim_lock(void)
{
    sim_mutex_take();
    if (__builtin_expect(!sim_machine.ready, 0))
        sim_lock_first();
}

/** Carry out the actions of work that has ended; gives the lock back while host functions run. */
void sim_settle(void);

/** Give the lock back where host functions, other processes or work that ended may be about. */
void sim_unlock_settling(void);

static inline void sim_unlock(void)
{
    if (__builtin_expect(sim_machine.actions.first != NULL || sim_machine.actions.is_running ||
                             sim_machine.shared.is_locked,
                         0)) {
        sim_unlock_settling();
        return;
    }
    sim_machine.waits = false;
    sim_mutex_give();
}

/** Give the lock back for the time of a host function. */
void sim_unlock_for(CUhostFn function, void *argument);

/** Settings with every default filled in. */
struct sim_scene {
    unsigned devices;
    uint64_t memory_bytes, address_bytes;
    struct sim_costs costs;
    bool one_by_one, without_vmm, without_peers, fast, real_bytes, recycles, fabric;
    bool without_dma_buf, no_address_range;
    enum xseg_sim_rdma rdma;
    enum xseg_sim_address_order address_order;
    struct sim_faults faults;
    uint64_t tail_seed;
    struct sim_shared shared;
};

/** What settings ask for.  Returns: XSEG_OK or XSEG_ERR_ARGUMENT. */
xseg_status sim_scene_of(const struct xseg_sim_settings *settings, struct sim_scene *scene);

/**
 * What the environment asks for; a variable that cannot be understood keeps its default.
 *
 * @param report  whether to say so on standard error
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT if there was such a variable
 */
xseg_status sim_scene_of_environment(struct sim_scene *scene, bool report);

/** End the old machine, start a fresh one. */
void sim_machine_start(const struct sim_scene *scene);

/** Whether a piece of work has ended; NULL has. */
static inline bool sim_work_ended(const struct sim_work *work)
{
    return work == NULL || work->number <= work->queue->cut || work->end <= sim_machine.now;
}

/** Let time pass; the clock stops short of its end. */
static inline void sim_pass(uint64_t nanoseconds)
{
    /* The last moment is SIM_OPEN, when nothing ends. */
    const uint64_t left = SIM_OPEN - 1 - sim_machine.now;

    sim_machine.now += nanoseconds < left ? nanoseconds : left;
}

/** Charge the machine's clock. */
static inline void sim_charge(uint64_t nanoseconds)
{
    if (__builtin_expect(sim_machine.has_tails && nanoseconds != 0, 0))
        nanoseconds = sim_cost_spread(nanoseconds);
    sim_pass(nanoseconds);
    sim_machine.driver_time += nanoseconds;
}

/** The memory that a device has left. */
uint64_t sim_memory_left(unsigned device);

/** Take memory that a device has, or give it back. */
void sim_memory_take(unsigned device, uint64_t bytes);
void sim_memory_put(unsigned device, uint64_t bytes);

#endif
