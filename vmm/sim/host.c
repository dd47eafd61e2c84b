/* SPDX-License-Identifier: MIT */
#include "vmm/sim/host.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"

uint64_t sim_host_page(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The kernel gives a page when it is first written, so large pieces cost what is kept in them: but only if
 * the pages are not huge. */
static void *map_host_pages(size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (base != MAP_FAILED)
        (void)madvise(base, bytes, MADV_NOHUGEPAGE); /* a kernel that has none does not know it */
    return base;
}

static CUresult allocate_pinned(void **out, size_t bytes, unsigned flags)
{
    const unsigned known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    struct sim_host *host;
    void *base;

    if (out == NULL || bytes == 0 || (flags & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    host = calloc(1, sizeof(*host));
    base = host != NULL ? map_host_pages(bytes) : MAP_FAILED;
    if (base == MAP_FAILED) {
        free(host);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *host = (struct sim_host){
        .next = sim_machine.hosts,
        .base = (uint64_t)(uintptr_t)base,
        .bytes = bytes,
        .origin = sim_origin_here(),
    };
    sim_machine.hosts = host;
    *out = base;
    return CUDA_SUCCESS;
}

/* In strict mode, end the process with a report if a queued copy still needs the memory. */
static void check_pinned_idle(const struct sim_host *host)
{
    const struct sim_action *action = sim_actions_find(host->base, host->bytes);

    if (action == NULL || !sim_machine.strict)
        return;
    sim_report_begin("queued copy accesses the host memory; synchronize its stream first");
    sim_report_line("memory:", &host->origin,
                    "%" PRIu64 " bytes of pinned host memory at 0x%" PRIx64 ", created",
                    host->bytes, host->base);
    sim_report_line("copy:", NULL, "%" PRIu64 " bytes from 0x%" PRIx64 " to 0x%" PRIx64,
                    action->bytes, action->from, action->to);
    sim_report_end();
}

static void pinned_destroy(struct sim_host *host)
{
    if (!host->is_registered)
        (void)munmap((void *)(uintptr_t)host->base, host->bytes);
    free(host);
}

/* Take out the piece that begins there. */
static CUresult release_pinned(const void *pointer, bool is_registered, CUresult refusal)
{
    struct sim_host **at = &sim_machine.hosts, *host;

    while (*at != NULL && (*at)->base != (uint64_t)(uintptr_t)pointer)
        at = &(*at)->next;
    host = *at;
    if (host == NULL || host->is_registered != is_registered)
        return refusal;
    check_pinned_idle(host);
    *at = host->next;
    pinned_destroy(host);
    return CUDA_SUCCESS;
}

static bool overlaps_pinned(uint64_t base, uint64_t bytes)
{
    for (const struct sim_host *host = sim_machine.hosts; host != NULL; host = host->next)
        if (base < host->base + host->bytes && host->base < base + bytes)
            return true;
    return false;
}

static CUresult register_host(const void *pointer, size_t bytes, unsigned flags)
{
    const uint64_t base = (uint64_t)(uintptr_t)pointer;
    const unsigned known =
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    struct sim_host *host;

    if (base == 0 || bytes == 0 || bytes > UINT64_MAX - base || (flags & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (overlaps_pinned(base, bytes))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    host = calloc(1, sizeof(*host));
    if (host == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *host = (struct sim_host){
        .next = sim_machine.hosts,
        .base = base,
        .bytes = bytes,
        .is_registered = true,
        .origin = sim_origin_here(),
    };
    sim_machine.hosts = host;
    return CUDA_SUCCESS;
}

const struct sim_host *sim_host_at(uint64_t address)
{
    const struct sim_host *host = sim_machine.hosts;

    while (host != NULL && (address < host->base || address - host->base >= host->bytes))
        host = host->next;
    return host;
}

bool sim_host_is_pinned(uint64_t address, uint64_t bytes)
{
    const struct sim_host *host = sim_host_at(address);

    return host != NULL && bytes <= host->bytes - (address - host->base);
}

size_t sim_host_count(const struct sim_host **example)
{
    size_t count = 0;

    for (const struct sim_host *host = sim_machine.hosts; host != NULL; host = host->next) {
        *example = host;
        count++;
    }
    return count;
}

void sim_host_end(void)
{
    struct sim_host *next;

    for (struct sim_host *host = sim_machine.hosts; host != NULL; host = next) {
        next = host->next;
        pinned_destroy(host);
    }
    sim_machine.hosts = NULL;
}

SIM_ENTRY(MEM_HOST_ALLOC, cuMemHostAlloc, (void **pp, size_t bytesize, unsigned int Flags),
          allocate_pinned(pp, bytesize, Flags));
SIM_ENTRY(MEM_FREE_HOST, cuMemFreeHost, (void *p), release_pinned(p, false, CUDA_ERROR_INVALID_VALUE));
SIM_ENTRY(MEM_HOST_REGISTER, cuMemHostRegister_v2, (void *p, size_t bytesize, unsigned int Flags),
          register_host(p, bytesize, Flags));
SIM_ENTRY(MEM_HOST_UNREGISTER, cuMemHostUnregister, (void *p),
          release_pinned(p, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
