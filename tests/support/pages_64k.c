/* SPDX-License-Identifier: MIT */
/*
 * Emulates a kernel with pages of 64 KiB.  LD_PRELOAD loads this library into a program; it interposes the calls of the
 * program and its libraries that manage mappings.  Addresses and offsets must be multiples of the page size, lengths are
 * rounded up, new mappings begin at a page, and a page is resident if a part of it is.
 *
 * Mappings of the C library itself are not interposed.  /proc/self/pagemap counts real pages and cannot be opened.
 */
/* With this macro, the headers of the C library use one symbol for mmap() and mmap64(), and for open() and open64(). */
#undef _FILE_OFFSET_BITS

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE      ((size_t)64 << 10)
#define REAL_PAGE ((size_t)4096)

#define EXPORTED __attribute__((visibility("default")))

/* Declare `real`, the interposed function. */
#define DECLARE_REAL(name)                                    \
    static __typeof__(&(name)) real;                          \
    if (real == NULL) {                                       \
        void *const symbol = dlsym(RTLD_NEXT, #name);         \
                                                              \
        memcpy(&real, &(const void *){symbol}, sizeof(real)); \
    }

static size_t round_up(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static bool is_aligned(const void *address)
{
    return (uintptr_t)address % PAGE == 0;
}

static int fail_invalid(void)
{
    errno = EINVAL;
    return -1;
}

EXPORTED long sysconf(int name)
{
    DECLARE_REAL(sysconf)
    return name == _SC_PAGESIZE ? (long)PAGE : real(name);
}

EXPORTED int munmap(void *address, size_t bytes)
{
    DECLARE_REAL(munmap)
    return is_aligned(address) ? real(address, round_up(bytes)) : fail_invalid();
}

EXPORTED int mprotect(void *address, size_t bytes, int access)
{
    DECLARE_REAL(mprotect)
    return is_aligned(address) ? real(address, round_up(bytes), access) : fail_invalid();
}

EXPORTED int madvise(void *address, size_t bytes, int advice)
{
    DECLARE_REAL(madvise)
    return is_aligned(address) ? real(address, round_up(bytes), advice) : fail_invalid();
}

/* Reserve one page more, unmap the parts before and after the aligned range, and map the range. */
static void *map_aligned(__typeof__(&mmap) map, size_t bytes, int access, int flags, int file,
                         off_t offset)
{
    char *const reserved =
        map(NULL, bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    __typeof__(&munmap) unmap;
    const void *const symbol = dlsym(RTLD_NEXT, "munmap");

    memcpy(&unmap, &symbol, sizeof(unmap));
    if (reserved == MAP_FAILED)
        return reserved;
    char *const start = reserved + (PAGE - (uintptr_t)reserved % PAGE) % PAGE;
    if (start != reserved)
        (void)unmap(reserved, (size_t)(start - reserved));
    (void)unmap(start + bytes, (size_t)(reserved + PAGE - start));
    char *const memory = map(start, bytes, access, flags | MAP_FIXED, file, offset);
    if (memory == MAP_FAILED)
        (void)unmap(start, bytes);
    return memory;
}

EXPORTED void *mmap(void *address, size_t bytes, int access, int flags, int file, off_t offset)
{
    DECLARE_REAL(mmap)
    if ((size_t)offset % PAGE != 0 || !is_aligned(address)) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    return address == NULL && bytes != 0
               ? map_aligned(real, round_up(bytes), access, flags, file, offset)
               : real(address, round_up(bytes), access, flags, file, offset);
}

EXPORTED void *mmap64(void *address, size_t bytes, int access, int flags, int file, off_t offset)
{
    return mmap(address, bytes, access, flags, file, offset);
}

EXPORTED int mincore(void *address, size_t bytes, unsigned char *resident)
{
    unsigned char real_pages[PAGE / REAL_PAGE];

    DECLARE_REAL(mincore)
    if (!is_aligned(address))
        return fail_invalid();
    for (size_t offset = 0; offset < round_up(bytes); offset += PAGE, resident++) {
        if (real((char *)address + offset, PAGE, real_pages) != 0)
            return -1;
        *resident = 0;
        for (size_t i = 0; i < sizeof(real_pages); i++)
            *resident |= real_pages[i] & 1;
    }
    return 0;
}

EXPORTED int open(const char *path, int flags, ...)
{
    va_list arguments;

    DECLARE_REAL(open)
    va_start(arguments, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if (strcmp(path, "/proc/self/pagemap") == 0) {
        errno = EACCES;
        return -1;
    }
    return real(path, flags, mode);
}

EXPORTED int open64(const char *path, int flags, ...)
{
    va_list arguments;

    va_start(arguments, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return open(path, flags, mode);
}
