/* SPDX-License-Identifier: MIT */
#include "src/base/fork.h"

#include <sys/mman.h>
#include <unistd.h>

#include "src/base/lsan_root.h"

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void *xseg_fork_wiped(size_t bytes, bool *is_wiped)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    *is_wiped = madvise(memory, bytes, MADV_WIPEONFORK) == 0;
    xseg_lsan_root_add(memory, bytes);
    return memory;
}

void xseg_fork_unmap(void *memory, size_t bytes)
{
    if (memory == NULL)
        return;
    xseg_lsan_root_remove(memory, bytes);
    (void)munmap(memory, bytes);
}

bool xseg_fork_init(struct xseg_fork *guard)
{
    bool is_wiped = false;
    unsigned *page = xseg_fork_wiped(page_bytes(), &is_wiped);

    if (page == NULL)
        return false;
    guard->owner = getpid();
    *page = 1;
    if (is_wiped)
        guard->marker = page;
    else
        xseg_fork_unmap(page, page_bytes());
    return true;
}

void xseg_fork_fini(struct xseg_fork *guard)
{
    xseg_fork_unmap((void *)(size_t)guard->marker, page_bytes());
    guard->marker = NULL;
}

bool xseg_fork_compare_pid(const struct xseg_fork *guard)
{
    return getpid() != guard->owner;
}
