/* SPDX-License-Identifier: MIT */
#include "src/base/host_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/check.h"

#define PAGE_BYTES ((size_t)4096) /* or a part of the kernel's */
#define LINE_BYTES ((size_t)64)

/* Where the next piece begins in its page. */
static size_t next_start(void)
{
    static atomic_size_t taken;

    return atomic_fetch_add_explicit(&taken, 7 * LINE_BYTES, memory_order_relaxed) % PAGE_BYTES;
}

void *xseg_demand_zero_alloc(size_t bytes)
{
    if (bytes < XSEG_DEMAND_ZERO_LARGE)
        return calloc(1, bytes);
    char *memory = mmap(NULL, bytes + PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    (void)madvise(memory, bytes + PAGE_BYTES, MADV_NOHUGEPAGE); /* with them it only takes more */
    xseg_lsan_root_add(memory, bytes + PAGE_BYTES);
    return memory + next_start();
}

size_t xseg_demand_zero_resident(const void *memory, size_t bytes)
{
    enum { AT_ONCE = 4096 };
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (uintptr_t)memory / page_bytes * page_bytes;
    unsigned char is_there[AT_ONCE];
    size_t count = 0;

    if (memory == NULL || bytes < XSEG_DEMAND_ZERO_LARGE)
        return memory == NULL ? 0 : bytes;
    const size_t pages = ((uintptr_t)memory + bytes - first + page_bytes - 1) / page_bytes;
    for (size_t at = 0; at < pages; at += AT_ONCE) {
        const size_t some = pages - at < AT_ONCE ? pages - at : AT_ONCE;

        /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
        if (mincore((void *)(first + at * page_bytes), some * page_bytes, is_there) != 0)
            return bytes;
        for (size_t i = 0; i < some; i++)
            count += is_there[i] & 1;
    }
    return count * page_bytes;
}

void xseg_demand_zero_free(void *memory, size_t bytes)
{
    if (bytes < XSEG_DEMAND_ZERO_LARGE) {
        free(memory);
    } else if (memory != NULL) {
        char *page = (char *)memory - (uintptr_t)memory % PAGE_BYTES;

        xseg_lsan_root_remove(page, bytes + PAGE_BYTES);
        (void)munmap(page, bytes + PAGE_BYTES);
    }
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void *xseg_wipe_on_fork_alloc(size_t bytes, bool *is_wiped)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    *is_wiped = madvise(memory, bytes, MADV_WIPEONFORK) == 0;
    xseg_lsan_root_add(memory, bytes);
    return memory;
}

void xseg_wipe_on_fork_free(void *memory, size_t bytes)
{
    if (memory == NULL)
        return;
    xseg_lsan_root_remove(memory, bytes);
    (void)munmap(memory, bytes);
}

bool xseg_fork_guard_init(struct xseg_fork_guard *guard)
{
    bool is_wiped = false;
    unsigned *page = xseg_wipe_on_fork_alloc(page_bytes(), &is_wiped);

    if (page == NULL)
        return false;
    guard->owner = getpid();
    *page = 1;
    if (is_wiped)
        guard->marker = page;
    else
        xseg_wipe_on_fork_free(page, page_bytes());
    return true;
}

void xseg_fork_guard_fini(struct xseg_fork_guard *guard)
{
    xseg_wipe_on_fork_free((void *)(size_t)guard->marker, page_bytes());
    guard->marker = NULL;
}

bool xseg_fork_guard_compare_pid(const struct xseg_fork_guard *guard)
{
    return getpid() != guard->owner;
}

#ifndef F_SEAL_FUTURE_WRITE /* glibc before 2.32 */
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#ifndef MFD_NOEXEC_SEAL /* glibc before 2.38 */
#define MFD_NOEXEC_SEAL 0x0008U
#endif

/* Create the file.  Linux 6.3 knows MFD_NOEXEC_SEAL, and with vm.memfd_noexec=2 demands it; kernels before refuse it. */
static int create(const char *name)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    const int file = memfd_create(name, flags | MFD_NOEXEC_SEAL);

    return file >= 0 || errno != EINVAL ? file : memfd_create(name, flags);
}

/* Give the file its size, for good, and map it. */
static int fill_in(struct xseg_shared_region *region)
{
    if (ftruncate(region->file, (off_t)region->bytes) != 0)
        return errno;
    region->memory = mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->file, 0);
    if (region->memory == MAP_FAILED)
        return errno;
    if (madvise(region->memory, region->bytes, MADV_DONTFORK) != 0 ||
        fcntl(region->file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        return errno;
    (void)fcntl(region->file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
    (void)fcntl(region->file, F_ADD_SEALS, F_SEAL_SEAL);
    return 0;
}

int xseg_shared_region_init(struct xseg_shared_region *region, const char *name, size_t bytes)
{
    XSEG_ASSERT(bytes > 0);
    *region = (struct xseg_shared_region){.memory = MAP_FAILED, .bytes = bytes};
    region->file = create(name);
    const int error = region->file < 0 ? errno : fill_in(region);
    if (error == 0)
        return 0;
    if (region->memory != MAP_FAILED)
        (void)munmap(region->memory, bytes);
    if (region->file >= 0)
        (void)close(region->file);
    *region = (struct xseg_shared_region){.memory = NULL};
    return error;
}

void xseg_shared_region_fini(struct xseg_shared_region *region)
{
    if (region->memory == NULL)
        return;
    (void)munmap(region->memory, region->bytes);
    (void)close(region->file);
    *region = (struct xseg_shared_region){.memory = NULL};
}
