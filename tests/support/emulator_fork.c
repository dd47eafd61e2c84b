/* SPDX-License-Identifier: MIT */
/*
 * MADV_WIPEONFORK and MADV_DONTFORK for qemu-user before version 8, whose madvise() succeeds without an effect.
 * LD_PRELOAD loads this library into tests that run in the emulator.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define RANGES 4096u

static struct range {
    char *start, *end;
    int advice;
} ranges[RANGES];

static size_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __typeof__(&madvise) real_madvise;
static __typeof__(&munmap) real_munmap;

static void apply_in_child(void)
{
    for (size_t i = 0; i < count; i++) {
        const size_t bytes = (size_t)(ranges[i].end - ranges[i].start);

        if (ranges[i].advice == MADV_DONTFORK)
            (void)real_munmap(ranges[i].start, bytes);
        else if (mmap(ranges[i].start, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
            abort();
    }
}

/* The forking thread holds the lock, so that the child sees a consistent table. */
static void lock_table(void)
{
    (void)pthread_mutex_lock(&lock);
}

static void unlock_table(void)
{
    (void)pthread_mutex_unlock(&lock);
}

static void handle_child(void)
{
    apply_in_child();
    (void)pthread_mutex_unlock(&lock);
}

/* The first registered handler runs first in the child. */
__attribute__((constructor)) static void register_handlers(void)
{
    const void *const advise = dlsym(RTLD_NEXT, "madvise"), *const unmap =
                                                                dlsym(RTLD_NEXT, "munmap");

    memcpy(&real_madvise, &advise, sizeof(real_madvise));
    memcpy(&real_munmap, &unmap, sizeof(real_munmap));
    (void)pthread_atfork(lock_table, unlock_table, handle_child);
}

__attribute__((visibility("default"))) int madvise(void *address, size_t bytes, int advice)
{
    const int result = real_madvise(address, bytes, advice);

    if (result != 0 || (advice != MADV_WIPEONFORK && advice != MADV_DONTFORK))
        return result;
    (void)pthread_mutex_lock(&lock);
    if (count == RANGES)
        abort();
    ranges[count++] = (struct range){address, (char *)address + bytes, advice};
    (void)pthread_mutex_unlock(&lock);
    return 0;
}

/* The library unmaps each of these mappings completely. */
__attribute__((visibility("default"))) int munmap(void *address, size_t bytes)
{
    (void)pthread_mutex_lock(&lock);
    for (size_t i = count; i > 0; i--)
        if (ranges[i - 1].start == address)
            ranges[i - 1] = ranges[--count];
    (void)pthread_mutex_unlock(&lock);
    return real_munmap(address, bytes);
}
