/* SPDX-License-Identifier: MIT */
/*
 * A kernel whose pages have 64 KiB, put before a program by LD_PRELOAD: what the program and the libraries that it
 * opens ask of mappings is answered as such a kernel does.  Addresses and offsets that are no multiples of a page are
 * refused, lengths are made whole, new mappings begin at a page, and a page is resident if a part of it is.
 *
 * * What the C library maps for itself does not come by here, and /proc/self/pagemap, which counts real pages, cannot
 * be opened.
 */
/* Else the C library's headers give both names of a call one symbol. */
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

#define PAGE ((size_t)64 << 10)
#define REAL ((size_t)4096)

#define EXPORTED __attribute__((visibility("default")))

/* The function behind one of these. */
#define BEHIND(name)                                             \
    static __typeof__(&(name)) behind;                           \
    if (behind == NULL) {                                        \
        void *const found = dlsym(RTLD_NEXT, #name);             \
                                                                 \
        memcpy(&behind, &(const void *){found}, sizeof(behind)); \
    }

static size_t whole(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static bool is_at_a_page(const void *address)
{
    return (uintptr_t)address % PAGE == 0;
}

static int refuse(void)
{
    errno = EINVAL;
    return -1;
}

EXPORTED long sysconf(int name)
{
    BEHIND(sysconf)
    return name == _SC_PAGESIZE ? (long)PAGE : behind(name);
}

EXPORTED int munmap(void *address, size_t bytes)
{
    BEHIND(munmap)
    return is_at_a_page(address) ? behind(address, whole(bytes)) : refuse();
}

EXPORTED int mprotect(void *address, size_t bytes, int access)
{
    BEHIND(mprotect)
    return is_at_a_page(address) ? behind(address, whole(bytes), access) : refuse();
}

EXPORTED int madvise(void *address, size_t bytes, int advice)
{
    BEHIND(madvise)
    return is_at_a_page(address) ? behind(address, whole(bytes), advice) : refuse();
}

/* With room for an address that begins a page; what is before it and behind it goes. */
static void *map_at_a_page(__typeof__(&mmap) map, size_t bytes, int access, int flags, int file,
                           off_t offset)
{
    char *const room =
        map(NULL, bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    __typeof__(&munmap) unmap;
    const void *const found = dlsym(RTLD_NEXT, "munmap");

    memcpy(&unmap, &found, sizeof(unmap));
    if (room == MAP_FAILED)
        return room;
    char *const start = room + (PAGE - (uintptr_t)room % PAGE) % PAGE;
    if (start != room)
        (void)unmap(room, (size_t)(start - room));
    (void)unmap(start + bytes, (size_t)(room + PAGE - start));
    char *const memory = map(start, bytes, access, flags | MAP_FIXED, file, offset);
    if (memory == MAP_FAILED)
        (void)unmap(start, bytes);
    return memory;
}

EXPORTED void *mmap(void *address, size_t bytes, int access, int flags, int file, off_t offset)
{
    BEHIND(mmap)
    if ((size_t)offset % PAGE != 0 || !is_at_a_page(address)) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    return address == NULL && bytes != 0
               ? map_at_a_page(behind, whole(bytes), access, flags, file, offset)
               : behind(address, whole(bytes), access, flags, file, offset);
}

EXPORTED void *mmap64(void *address, size_t bytes, int access, int flags, int file, off_t offset)
{
    return mmap(address, bytes, access, flags, file, offset);
}

EXPORTED int mincore(void *address, size_t bytes, unsigned char *is_there)
{
    unsigned char part[PAGE / REAL];

    BEHIND(mincore)
    if (!is_at_a_page(address))
        return refuse();
    for (size_t at = 0; at < whole(bytes); at += PAGE, is_there++) {
        if (behind((char *)address + at, PAGE, part) != 0)
            return -1;
        *is_there = 0;
        for (size_t i = 0; i < sizeof(part); i++)
            *is_there |= part[i] & 1;
    }
    return 0;
}

EXPORTED int open(const char *path, int flags, ...)
{
    va_list rest;

    BEHIND(open)
    va_start(rest, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (strcmp(path, "/proc/self/pagemap") == 0) {
        errno = EACCES;
        return -1;
    }
    return behind(path, flags, mode);
}

EXPORTED int open64(const char *path, int flags, ...)
{
    va_list rest;

    va_start(rest, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open(path, flags, mode);
}
