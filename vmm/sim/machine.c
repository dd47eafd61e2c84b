/* SPDX-License-Identifier: MIT */
#include "vmm/sim/machine.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/context.h"
#include "vmm/sim/graph.h"
#include "vmm/sim/handle.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/memory.h"
#include "vmm/sim/stream.h"

struct sim_machine sim_machine = {
    .streams = {.kind = SIM_KIND_STREAM},
    .events = {.kind = SIM_KIND_EVENT},
    .graphs = {.kind = SIM_KIND_GRAPH},
    .nodes = {.kind = SIM_KIND_NODE},
    .physical = {.kind = SIM_KIND_PHYSICAL},
    .graph_execs = {.kind = SIM_KIND_GRAPH_EXEC},
    .user_objects = {.kind = SIM_KIND_USER_OBJECT},
};

struct sim_mutex sim_mutex = {.os = PTHREAD_MUTEX_INITIALIZER};
__thread struct sim_thread *sim_thread_own;

/* Signaled when a host function returns. */
static pthread_cond_t host_function_returned = PTHREAD_COND_INITIALIZER;
static bool has_fork_handlers;
static __thread struct sim_thread thread;

static void lock_before_fork(void)
{
    (void)pthread_mutex_lock(&sim_mutex.os);
}

static void unlock_after_fork(void)
{
    (void)pthread_mutex_unlock(&sim_mutex.os);
}

static void unlock_in_child(void)
{
    sim_machine.forked = true;
    sim_machine.fast_entry = false;
    (void)pthread_mutex_unlock(&sim_mutex.os);
}

static void register_fork_handlers(void)
{
    if (has_fork_handlers)
        return;
    has_fork_handlers = true;
    (void)pthread_atfork(lock_before_fork, unlock_after_fork, unlock_in_child);
}

void sim_machine_start_default(void)
{
    struct sim_config config;

    register_fork_handlers();
    (void)sim_config_from_environment(&config, true);
    sim_machine_start(&config);
}

void sim_run_completions(void)
{
    struct sim_completions *completions = &sim_machine.completions;

    if (completions->first != NULL || completions->is_running) {
        const uint64_t self = sim_thread()->number;

        while (sim_machine.saw_completion && completions->is_running && completions->runner != self)
            (void)pthread_cond_wait(&host_function_returned, &sim_mutex.os);
        sim_completions_run();
    }
}

void sim_unlock_slow(void)
{
    sim_run_completions();
    sim_machine.saw_completion = false;
    if (sim_machine.shared.is_locked)
        sim_shared_unlock(&sim_machine.shared);
    sim_mutex_unlock();
}

void sim_call_unlocked(CUhostFn function, void *argument)
{
    sim_shared_unlock(&sim_machine.shared);
    sim_mutex_unlock();
    function(argument);
    sim_mutex_lock();
    (void)pthread_cond_broadcast(&host_function_returned);
}

struct sim_thread *sim_thread_reset(void)
{
    const uint64_t number = thread.number;

    memset(&thread, 0, sizeof(thread));
    thread.epoch = sim_machine.epoch;
    thread.number = number != 0 ? number : ++sim_machine.last_thread;
    thread.capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return sim_thread_own = &thread;
}

static void machine_destroy(void)
{
    sim_graph_execs_destroy();
    sim_captures_destroy();
    sim_user_objects_destroy();
    for (unsigned i = 0; i < sim_machine.config.devices; i++)
        sim_context_destroy(i);
    sim_address_space_destroy(&sim_machine.addresses);
    sim_dmabufs_destroy();
    sim_registrations_destroy();
    sim_physical_destroy_all();
    sim_pinned_destroy_all();
    sim_accesses_destroy();
    sim_contents_close();
    sim_shared_leave(&sim_machine.shared);
}

void sim_machine_start(const struct sim_config *config)
{
    if (sim_machine.ready)
        machine_destroy();
    sim_machine.ready = true;
    sim_machine.initialized = sim_machine.fast_entry = false;
    sim_machine.epoch++;
    sim_machine.now = sim_machine.driver_time = 0;
    sim_machine.config = *config;
    sim_machine.tail_state = config->tail_seed;
    /* A forked child has no thread that runs a host function. */
    if (sim_machine.forked)
        sim_machine.completions.is_running = false;
    sim_machine.forked = false;
    sim_machine.shared = config->shared;
    sim_machine.current_call = NULL;
    sim_machine.call_number = 0;
    memset(sim_machine.calls, 0, sizeof(sim_machine.calls));
    memset(sim_machine.device, 0, sizeof(sim_machine.device));
    sim_machine.faults = config->faults;
    sim_machine.host = config->host;
    sim_machine.pinned_bytes = 0;
    sim_address_space_init(&sim_machine.addresses, config->address_bytes, config->address_order);
}

uint64_t sim_memory_available(unsigned device)
{
    const bool is_unified = sim_machine.config.integrated;
    const unsigned first = is_unified ? 0 : device;
    const unsigned end = is_unified ? sim_machine.config.devices : device + 1;
    uint64_t used = sim_host_used();

    sim_physical_free_unused_exports();
    for (unsigned i = first; i < end; i++)
        used += sim_machine.device[i].used + sim_machine.device[i].external_bytes +
                sim_shared_used_by_others(&sim_machine.shared, i);
    return used < sim_machine.config.memory_bytes ? sim_machine.config.memory_bytes - used : 0;
}

void sim_memory_charge(unsigned device, uint64_t bytes)
{
    struct sim_device *state = &sim_machine.device[device];

    state->used += bytes;
    sim_shared_publish(&sim_machine.shared, device, state->used);
    if (state->used > state->peak)
        state->peak = state->used;
    sim_host_reclaim();
}

void sim_memory_uncharge(unsigned device, uint64_t bytes)
{
    sim_machine.device[device].used -= bytes;
    sim_shared_publish(&sim_machine.shared, device, sim_machine.device[device].used);
}

uint64_t xseg_sim_clock(void)
{
    uint64_t now;

    sim_lock();
    now = sim_machine.now;
    sim_unlock();
    return now;
}

uint64_t xseg_sim_driver_time(void)
{
    uint64_t time;

    sim_lock();
    time = sim_machine.driver_time;
    sim_unlock();
    return time;
}

void xseg_sim_advance(uint64_t nanoseconds)
{
    sim_lock();
    sim_clock_advance(nanoseconds);
    sim_unlock();
}
