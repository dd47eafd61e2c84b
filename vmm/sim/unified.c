/* SPDX-License-Identifier: MIT */
#include "vmm/sim/unified.h"

#include <inttypes.h>
#include <stdio.h>

#include "vmm/sim/machine.h"

static struct sim_host *find_host(void)
{
    struct sim_host *shared = sim_shared_host(&sim_machine.shared);

    return shared != NULL ? shared : &sim_machine.host;
}

uint64_t sim_host_used(void)
{
    return sim_machine.config.integrated ? find_host()->bytes + sim_machine.pinned_bytes : 0;
}

uint64_t sim_memory_reported_free(unsigned device)
{
    const uint64_t available = sim_memory_available(device);
    uint64_t cached;

    if (!sim_machine.config.integrated)
        return available;
    cached = find_host()->page_cache_bytes;
    return cached < available ? available - cached : 0;
}

/* End the process with a report, because the host has no memory for an allocation of `bytes`. */
static void report_freeze(uint64_t bytes)
{
    const uint64_t total = sim_machine.config.memory_bytes, host = sim_host_used();
    const uint64_t available = sim_memory_available(0);
    uint64_t used = 0;

    for (unsigned i = 0; i < sim_machine.config.devices; i++)
        used += sim_machine.device[i].used;

    sim_report_begin("the host is out of memory and stops responding; leave device memory free for "
                     "the host (device_free_min_mb)");
    if (bytes != 0)
        sim_report_line("request:", NULL, "%" PRIu64 " bytes, %" PRIu64 " available", bytes,
                        available);
    sim_report_line("host:", NULL, "%" PRIu64 " of %" PRIu64 " bytes in use", host, total);
    sim_report_line("devices:", NULL, "%" PRIu64 " bytes in use by this process", used);
    sim_report_end();
}

bool sim_memory_suffices(unsigned device, uint64_t bytes)
{
    if (bytes <= sim_memory_available(device))
        return true;
    if (sim_machine.config.integrated && sim_machine.config.strict)
        report_freeze(bytes);
    return false;
}

void sim_host_reclaim(void)
{
    struct sim_host *host;
    uint64_t available;

    if (!sim_machine.config.integrated)
        return;
    available = sim_memory_available(0);
    host = find_host();
    if (host->page_cache_bytes > available)
        host->page_cache_bytes = available;
}

xseg_status xseg_sim_set_host_memory(uint64_t host_bytes, uint64_t page_cache_bytes)
{
    bool is_integrated, is_frozen;

    sim_lock();
    is_integrated = sim_machine.config.integrated;
    if (is_integrated) {
        find_host()->bytes = 0;
        is_frozen = host_bytes > sim_memory_available(0);
        *find_host() = (struct sim_host){host_bytes, page_cache_bytes};
        sim_host_reclaim();
        sim_machine.current_call = "xseg_sim_set_host_memory";
        if (is_frozen && sim_machine.config.strict)
            report_freeze(0);
        sim_machine.current_call = NULL;
    }
    sim_unlock();
    if (is_integrated)
        return XSEG_OK;
    return sim_error(XSEG_ERR_ARGUMENT, "xseg_sim_set_host_memory: machine is not integrated; set "
                                        "integrated in struct xseg_sim_settings");
}

size_t xseg_sim_meminfo(char *text, size_t bytes)
{
    uint64_t total, available, free;
    int length = 0;

    if (bytes > 0)
        text[0] = '\0';
    sim_lock();
    if (sim_machine.config.integrated) {
        total = sim_machine.config.memory_bytes;
        available = sim_memory_available(0);
        free = sim_memory_reported_free(0);
        length = snprintf(text, bytes,
                          "MemTotal:       %8" PRIu64 " kB\nMemFree:        %8" PRIu64
                          " kB\nMemAvailable:   %8" PRIu64 " kB\nBuffers:               0 kB\n"
                          "Cached:         %8" PRIu64 " kB\n",
                          total >> 10, free >> 10, available >> 10, (available - free) >> 10);
    }
    sim_unlock();
    return length > 0 ? (size_t)length : 0;
}
