/* SPDX-License-Identifier: MIT */
#include "tests/fault/host_faults.h"
#include "tests/support/wrapped.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

static atomic_uint_fast64_t calls, first_failing_call, failed_calls;
static atomic_bool is_onward, is_suspended;

void host_fault_set(uint64_t nth, bool onward)
{
    atomic_store(&calls, 0);
    atomic_store(&failed_calls, 0);
    atomic_store(&is_onward, onward);
    atomic_store(&first_failing_call, nth);
}

void host_fault_clear(void)
{
    atomic_store(&first_failing_call, 0);
}

void host_fault_suspend(bool suspend)
{
    atomic_store(&is_suspended, suspend);
}

uint64_t host_fault_count(void)
{
    return atomic_load(&failed_calls);
}

/* Count a call.  Returns whether it fails. */
static bool call_fails(void)
{
    const uint64_t nth = atomic_load(&first_failing_call);

    if (nth == 0 || atomic_load(&is_suspended))
        return false;
    const uint64_t call = atomic_fetch_add(&calls, 1) + 1;
    if (call != nth && !(atomic_load(&is_onward) && call > nth))
        return false;
    atomic_fetch_add(&failed_calls, 1);
    errno = ENOMEM;
    return true;
}

WRAPPED(void *, malloc, size_t bytes);
WRAPPED(void *, calloc, size_t count, size_t bytes);
WRAPPED(void *, realloc, void *memory, size_t bytes);
WRAPPED(void *, aligned_alloc, size_t alignment, size_t bytes);
WRAPPED(char *, strdup, const char *text);
WRAPPED(void *, mmap, void *address, size_t bytes, int protection, int flags, int file,
        off_t offset);
WRAPPED(void *, mmap64, void *address, size_t bytes, int protection, int flags, int file,
        off_t offset);
WRAPPED(int, pthread_create, pthread_t *thread, const pthread_attr_t *attributes,
        void *(*run)(void *), void *self);

void *__wrap_malloc(size_t bytes)
{
    return call_fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return call_fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return call_fails() ? NULL : __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return call_fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

char *__wrap_strdup(const char *text)
{
    return call_fails() ? NULL : __real_strdup(text);
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    return call_fails() ? MAP_FAILED : __real_mmap(address, bytes, protection, flags, file, offset);
}

/* A library compiled with 64-bit file offsets calls this variant. */
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    return call_fails() ? MAP_FAILED
                        : __real_mmap64(address, bytes, protection, flags, file, offset);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *self)
{
    return call_fails() ? EAGAIN : __real_pthread_create(thread, attributes, run, self);
}
