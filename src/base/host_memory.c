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

#if defined(__SANITIZE_ADDRESS__)
#define HAS_LEAK_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_LEAK_SANITIZER 1
#endif
#endif

#ifdef HAS_LEAK_SANITIZER
#include <sanitizer/lsan_interface.h>
#endif

#define PAGE_BYTES ((size_t)4096) /* or a fraction of the kernel's page */
#define LINE_BYTES ((size_t)64)

static void register_lsan_root(const void *memory, size_t bytes)
{
#ifdef HAS_LEAK_SANITIZER
    __lsan_register_root_region(memory, bytes);
#else
    (void)memory;
    (void)bytes;
#endif
}

static void unregister_lsan_root(const void *memory, size_t bytes)
{
#ifdef HAS_LEAK_SANITIZER
    __lsan_unregister_root_region(memory, bytes);
#else
    (void)memory;
    (void)bytes;
#endif
}

/* --- Demand-zero memory. --- */

/* The offset of the next allocation in its first page. */
static size_t next_page_offset(void)
{
    static atomic_size_t offset;

    return atomic_fetch_add_explicit(&offset, 7 * LINE_BYTES, memory_order_relaxed) % PAGE_BYTES;
}

void *xseg_demand_zero_alloc(size_t bytes)
{
    if (bytes < XSEG_DEMAND_ZERO_LARGE)
        return calloc(1, bytes);
    char *memory = mmap(NULL, bytes + PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    (void)madvise(memory, bytes + PAGE_BYTES,
                  MADV_NOHUGEPAGE); /* a sparse table would become resident */
    register_lsan_root(memory, bytes + PAGE_BYTES);
    return memory + next_page_offset();
}

void xseg_demand_zero_free(void *memory, size_t bytes)
{
    if (bytes < XSEG_DEMAND_ZERO_LARGE) {
        free(memory);
    } else if (memory != NULL) {
        char *page = (char *)memory - (uintptr_t)memory % PAGE_BYTES;

        unregister_lsan_root(page, bytes + PAGE_BYTES);
        (void)munmap(page, bytes + PAGE_BYTES);
    }
}

size_t xseg_demand_zero_resident(const void *memory, size_t bytes)
{
    enum { PAGES_PER_CALL = 4096 };
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (uintptr_t)memory / page_bytes * page_bytes;
    unsigned char is_resident[PAGES_PER_CALL];
    size_t count = 0;

    if (memory == NULL || bytes < XSEG_DEMAND_ZERO_LARGE)
        return memory == NULL ? 0 : bytes;
    const size_t pages = ((uintptr_t)memory + bytes - first + page_bytes - 1) / page_bytes;
    for (size_t page = 0; page < pages; page += PAGES_PER_CALL) {
        const size_t page_count = pages - page < PAGES_PER_CALL ? pages - page : PAGES_PER_CALL;

        /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
        if (mincore((void *)(first + page * page_bytes), page_count * page_bytes, is_resident) != 0)
            return bytes;
        for (size_t i = 0; i < page_count; i++)
            count += is_resident[i] & 1;
    }
    return count * page_bytes;
}

/* --- Wipe-on-fork memory. --- */

void *xseg_wipe_on_fork_alloc(size_t bytes, bool *is_wiped)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    *is_wiped = madvise(memory, bytes, MADV_WIPEONFORK) == 0;
    register_lsan_root(memory, bytes);
    return memory;
}

void xseg_wipe_on_fork_free(void *memory, size_t bytes)
{
    if (memory == NULL)
        return;
    unregister_lsan_root(memory, bytes);
    (void)munmap(memory, bytes);
}

static size_t guard_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

bool xseg_fork_guard_init(struct xseg_fork_guard *guard)
{
    bool is_wiped = false;
    unsigned *page = xseg_wipe_on_fork_alloc(guard_bytes(), &is_wiped);

    if (page == NULL)
        return false;
    guard->owner = getpid();
    *page = 1;
    if (is_wiped)
        guard->marker = page;
    else
        xseg_wipe_on_fork_free(page, guard_bytes());
    return true;
}

void xseg_fork_guard_fini(struct xseg_fork_guard *guard)
{
    xseg_wipe_on_fork_free((void *)(size_t)guard->marker, guard_bytes());
    guard->marker = NULL;
}

bool xseg_fork_guard_compare_pid(const struct xseg_fork_guard *guard)
{
    return getpid() != guard->owner;
}

/* --- Shared regions. --- */

#ifndef F_SEAL_FUTURE_WRITE /* glibc before 2.32 */
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#ifndef MFD_NOEXEC_SEAL /* glibc before 2.38 */
#define MFD_NOEXEC_SEAL 0x0008U
#endif

/* Linux 6.3 and later may require MFD_NOEXEC_SEAL (vm.memfd_noexec=2); earlier kernels reject the flag. */
static int create_memfd(const char *name)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    const int file = memfd_create(name, flags | MFD_NOEXEC_SEAL);

    return file >= 0 || errno != EINVAL ? file : memfd_create(name, flags);
}

/* Set the size of the file, map it, and seal it.  Returns 0 or an errno. */
static int map_region(struct xseg_shared_region *region)
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
    region->file = create_memfd(name);
    const int error = region->file < 0 ? errno : map_region(region);
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
