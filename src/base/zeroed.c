/* SPDX-License-Identifier: MIT */
#include "src/base/zeroed.h"

#include <stdlib.h>
#include <sys/mman.h>

void *xseg_zeroed_take(size_t bytes)
{
    if (bytes < XSEG_ZEROED_LARGE)
        return calloc(1, bytes);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    (void)madvise(memory, bytes, MADV_NOHUGEPAGE); /* with them it only takes more */
    return memory;
}

void xseg_zeroed_give(void *memory, size_t bytes)
{
    if (bytes < XSEG_ZEROED_LARGE)
        free(memory);
    else if (memory != NULL)
        (void)munmap(memory, bytes);
}
