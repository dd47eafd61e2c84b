/* SPDX-License-Identifier: MIT */
#include "src/base/zeroed.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "src/base/root.h"

#define PAGE_BYTES ((size_t)4096) /* or a part of the kernel's */
#define LINE_BYTES ((size_t)64)

/* Where the next piece begins in its page. */
static size_t next_start(void)
{
    static atomic_size_t taken;

    return atomic_fetch_add_explicit(&taken, 7 * LINE_BYTES, memory_order_relaxed) % PAGE_BYTES;
}

void *xseg_zeroed_take(size_t bytes)
{
    if (bytes < XSEG_ZEROED_LARGE)
        return calloc(1, bytes);
    char *memory = mmap(NULL, bytes + PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    (void)madvise(memory, bytes + PAGE_BYTES, MADV_NOHUGEPAGE); /* with them it only takes more */
    xseg_root_add(memory, bytes + PAGE_BYTES);
    return memory + next_start();
}

void xseg_zeroed_give(void *memory, size_t bytes)
{
    if (bytes < XSEG_ZEROED_LARGE) {
        free(memory);
    } else if (memory != NULL) {
        char *page = (char *)memory - (uintptr_t)memory % PAGE_BYTES;

        xseg_root_remove(page, bytes + PAGE_BYTES);
        (void)munmap(page, bytes + PAGE_BYTES);
    }
}
