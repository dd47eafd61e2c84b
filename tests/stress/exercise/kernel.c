/* SPDX-License-Identifier: MIT */
#include "tests/stress/exercise/kernel.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/stress/exercise/failure.h"
#include "tests/support/driver.h"

#define SAMPLE_DISTANCE ((uintptr_t)64 << 10)
#define DENSE_BYTES     ((size_t)16 << 10)
#define BLOCK_UNIT      ((size_t)512)

static atomic_uint_fast64_t count;

static uint64_t word_at(const struct kernel *kernel, size_t offset)
{
    return (kernel->number + offset) * UINT64_C(0x9E3779B97F4A7C15);
}

static void access_word(const struct kernel *kernel, size_t offset)
{
    volatile uint64_t *word = (volatile uint64_t *)(kernel->ptr + offset);
    const uint64_t expected = kernel->kind == KERNEL_ZERO ? 0 : word_at(kernel, offset);

    /* Bytes past the requested size are not zeroed. */
    if (kernel->kind == KERNEL_ZERO && offset + sizeof(*word) > kernel->bytes)
        return;
    if (kernel->kind == KERNEL_WRITE)
        *word = expected;
    else if (*word != expected)
        failure("block %" PRIu64 " of %zu bytes at %p (seen at %p) has %016" PRIx64
                " at offset %zu instead of %016" PRIx64,
                kernel->number, kernel->bytes, (const void *)kernel->block_address,
                (void *)kernel->ptr, (uint64_t)*word, offset, expected);
}

static void run_kernel(void *argument)
{
    const struct kernel *kernel = argument;
    const size_t last =
        (kernel->bytes + BLOCK_UNIT - 1) / BLOCK_UNIT * BLOCK_UNIT - sizeof(uint64_t);
    const uintptr_t base = (uintptr_t)kernel->block_address;
    size_t offset = 0;

    for (; offset < kernel->bytes && offset < DENSE_BYTES; offset += BLOCK_UNIT)
        access_word(kernel, offset);
    for (uintptr_t at =
             (base + DENSE_BYTES + SAMPLE_DISTANCE - 1) / SAMPLE_DISTANCE * SAMPLE_DISTANCE;
         at < base + kernel->bytes; at += SAMPLE_DISTANCE)
        access_word(kernel, at - base);
    access_word(kernel, last);
    atomic_fetch_add_explicit(&count, kernel->kind != KERNEL_WRITE, memory_order_relaxed);
    free(argument);
}

void kernel_launch(const struct kernel *kernel, int device, xseg_stream stream,
                   uint64_t nanoseconds)
{
    driver_work(device, stream, nanoseconds, kernel->ptr, kernel->bytes);
    if (!ENV_HAS_BYTES)
        return;
    struct kernel *copy = malloc(sizeof(*copy));

    CHECK(copy != NULL);
    *copy = *kernel;
    driver_call_host(device, stream, run_kernel, copy);
    /* The memory is in use until the function has run. */
    driver_work(device, stream, 1, kernel->ptr, kernel->bytes);
}

uint64_t kernel_count(void)
{
    return count;
}
