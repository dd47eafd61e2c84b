/* SPDX-License-Identifier: MIT */
#include "src/base/demand_zero.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/lsan_root.h"

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
