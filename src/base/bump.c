/* SPDX-License-Identifier: MIT */
#include "src/base/bump.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/align.h"

/* How much more gets memory at once: fewer system calls than by the page. */
#define STEP_BYTES ((size_t)1 << 20)

bool xseg_bump_init(struct xseg_bump *bump, size_t bytes)
{
    XSEG_ASSERT(bytes != 0 && bytes <= XSEG_BUMP_MAX_BYTES);
    memset(bump, 0, sizeof(*bump));
    bytes = xseg_round_up(bytes, (size_t)sysconf(_SC_PAGESIZE));
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return false;
    (void)madvise(base, bytes, MADV_NOHUGEPAGE); /* or the first record would take a huge one */
    bump->base = base;
    bump->bytes = bytes;
    atomic_init(&bump->used, XSEG_BUMP_UNIT);
    return true;
}

void xseg_bump_fini(struct xseg_bump *bump)
{
    if (bump->base != NULL)
        (void)munmap(bump->base, bump->bytes);
    bump->base = NULL;
    bump->bytes = 0;
}

/* Give memory to the addresses up to `end`, and to some more.  Returns false without host memory. */
static bool open_up_to(struct xseg_bump *bump, size_t end)
{
    const size_t open = xseg_min(xseg_round_up(end, STEP_BYTES), bump->bytes);

    if (mprotect(bump->base + bump->open, open - bump->open, PROT_READ | PROT_WRITE) != 0)
        return false;
    bump->open = open;
    return true;
}

void *xseg_bump_alloc(struct xseg_bump *bump, size_t bytes)
{
    const size_t used = atomic_load_explicit(&bump->used, memory_order_relaxed);

    XSEG_ASSERT(bump->base != NULL && bytes != 0);
    if (bytes > bump->bytes - used || xseg_round_up(bytes, XSEG_BUMP_UNIT) > bump->bytes - used) {
        atomic_store_explicit(&bump->was_full, true, memory_order_relaxed);
        return NULL;
    }
    const size_t end = used + xseg_round_up(bytes, XSEG_BUMP_UNIT);
    if (end > bump->open && !open_up_to(bump, end))
        return NULL;
    atomic_store_explicit(&bump->used, end, memory_order_relaxed);
    return bump->base + used;
}

size_t xseg_bump_resident(const struct xseg_bump *bump)
{
    return xseg_round_up(atomic_load_explicit(&bump->used, memory_order_relaxed),
                         (size_t)sysconf(_SC_PAGESIZE));
}

bool xseg_bump_audit(const struct xseg_bump *bump, struct xseg_finding *finding)
{
    const size_t used = atomic_load_explicit(&bump->used, memory_order_relaxed);

    XSEG_HOLDS(finding, "BUMP-1",
               XSEG_BUMP_UNIT <= used && used <= xseg_max(bump->open, XSEG_BUMP_UNIT) &&
                   bump->open <= bump->bytes && used % XSEG_BUMP_UNIT == 0,
               "used %zu, open %zu of %zu bytes", used, bump->open, bump->bytes);
    return true;
}
