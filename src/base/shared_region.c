/* SPDX-License-Identifier: MIT */
#include "src/base/shared_region.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/check.h"

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
