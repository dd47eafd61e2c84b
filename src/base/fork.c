/* SPDX-License-Identifier: MIT */
#include "src/base/fork.h"

#include <sys/mman.h>
#include <unistd.h>

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

bool xseg_fork_init(struct xseg_fork *guard)
{
    void *page =
        mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return false;
    guard->owner = getpid();
    *(unsigned *)page = 1;
    guard->marker = page;
    if (madvise(page, page_bytes(), MADV_WIPEONFORK) != 0) {
        (void)munmap(page, page_bytes());
        guard->marker = NULL;
    }
    return true;
}

void xseg_fork_fini(struct xseg_fork *guard)
{
    if (guard->marker != NULL)
        (void)munmap((void *)(size_t)guard->marker, page_bytes());
    guard->marker = NULL;
}

bool xseg_fork_compare_pid(const struct xseg_fork *guard)
{
    return getpid() != guard->owner;
}
