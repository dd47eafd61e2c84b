/* SPDX-License-Identifier: MIT */
#include "vmm/sim/machine.h"

#include <pthread.h>
#include <string.h>

#include "vmm/sim/bytes.h"
#include "vmm/sim/capture.h"
#include "vmm/sim/context.h"
#include "vmm/sim/executable.h"
#include "vmm/sim/host.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/object.h"
#include "vmm/sim/work.h"

struct sim_machine sim_machine = {
    .streams = {.kind = SIM_KIND_STREAM},
    .events = {.kind = SIM_KIND_EVENT},
    .graphs = {.kind = SIM_KIND_GRAPH},
    .nodes = {.kind = SIM_KIND_NODE},
    .physical = {.kind = SIM_KIND_PHYSICAL},
    .executables = {.kind = SIM_KIND_EXECUTABLE},
    .objects = {.kind = SIM_KIND_OBJECT},
};

struct sim_mutex sim_mutex = {.os = PTHREAD_MUTEX_INITIALIZER};
__thread struct sim_thread *sim_thread_own;

static pthread_cond_t idle = PTHREAD_COND_INITIALIZER; /* no host function runs */
static bool watches_forks;
static __thread struct sim_thread thread;

static void before_fork(void)
{
    (void)pthread_mutex_lock(&sim_mutex.os);
}

static void after_fork(void)
{
    (void)pthread_mutex_unlock(&sim_mutex.os);
}

static void after_fork_in_child(void)
{
    sim_machine.forked = true;
    sim_machine.is_plain = false;
    (void)pthread_mutex_unlock(&sim_mutex.os);
}

static void register_fork_handlers(void)
{
    if (watches_forks)
        return;
    watches_forks = true;
    (void)pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

void sim_lock_first(void)
{
    struct sim_scene scene;

    register_fork_handlers();
    (void)sim_scene_of_environment(&scene, true);
    sim_machine_start(&scene);
}

void sim_settle(void)
{
    struct sim_actions *actions = &sim_machine.actions;

    if (actions->first != NULL || actions->is_running) {
        const uint64_t self = sim_thread()->number;

        while (sim_machine.waits && actions->is_running && actions->runner != self)
            (void)pthread_cond_wait(&idle, &sim_mutex.os);
        sim_actions_run();
    }
}

void sim_unlock_settling(void)
{
    sim_settle();
    sim_machine.waits = false;
    if (sim_machine.shared.is_locked)
        sim_shared_unlock(&sim_machine.shared);
    sim_mutex_give();
}

void sim_unlock_for(CUhostFn function, void *argument)
{
    sim_shared_unlock(&sim_machine.shared);
    sim_mutex_give();
    function(argument);
    sim_mutex_take();
    (void)pthread_cond_broadcast(&idle);
}

struct sim_thread *sim_thread_begin(void)
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
    sim_executables_end();
    sim_captures_end();
    sim_objects_end();
    for (unsigned i = 0; i < sim_machine.devices; i++)
        sim_context_destroy(i);
    sim_addresses_end(&sim_machine.addresses);
    sim_dmabufs_end();
    sim_registrations_end();
    sim_physical_end();
    sim_host_end();
    sim_touches_end();
    sim_bytes_end();
    sim_shared_leave(&sim_machine.shared);
}

void sim_machine_start(const struct sim_scene *scene)
{
    if (sim_machine.ready)
        machine_destroy();
    sim_machine.ready = true;
    sim_machine.initialised = sim_machine.is_plain = false;
    sim_machine.epoch++;
    sim_machine.now = sim_machine.driver_time = 0;
    sim_machine.devices = scene->devices;
    sim_machine.memory_bytes = scene->memory_bytes;
    sim_machine.one_by_one = scene->one_by_one;
    sim_machine.without_vmm = scene->without_vmm;
    sim_machine.without_peers = scene->without_peers;
    sim_machine.strict = !scene->fast;
    sim_machine.has_tails = scene->tail_seed != 0;
    sim_machine.tail_state = scene->tail_seed;
    sim_machine.real_bytes = scene->real_bytes;
    sim_machine.recycles = scene->recycles;
    sim_machine.fabric = scene->fabric;
    sim_machine.without_dma_buf = scene->without_dma_buf;
    sim_machine.no_address_range = scene->no_address_range;
    sim_machine.rdma = scene->rdma;
    sim_machine.forked = false;
    sim_machine.shared = scene->shared;
    sim_machine.current = NULL;
    sim_machine.entered = 0;
    sim_machine.costs = scene->costs;
    memset(sim_machine.calls, 0, sizeof(sim_machine.calls));
    memset(sim_machine.device, 0, sizeof(sim_machine.device));
    sim_machine.faults = scene->faults;
    sim_addresses_start(&sim_machine.addresses, scene->address_bytes, scene->address_order);
}

uint64_t sim_memory_left(unsigned device)
{
    const uint64_t held = sim_machine.device[device].held;
    uint64_t left, others;

    sim_physical_settle_pinned();
    others = sim_shared_others(&sim_machine.shared, device);
    left = sim_machine.memory_bytes - sim_machine.device[device].used;
    left = others < left ? left - others : 0;
    return held < left ? left - held : 0;
}

void sim_memory_take(unsigned device, uint64_t bytes)
{
    struct sim_device *at = &sim_machine.device[device];

    at->used += bytes;
    sim_shared_say(&sim_machine.shared, device, at->used);
    if (at->used > at->peak)
        at->peak = at->used;
}

void sim_memory_put(unsigned device, uint64_t bytes)
{
    sim_machine.device[device].used -= bytes;
    sim_shared_say(&sim_machine.shared, device, sim_machine.device[device].used);
}
