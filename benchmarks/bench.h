/* SPDX-License-Identifier: MIT */
/*
 * The interface of benchmarks to the allocator under test.
 *
 * Each benchmark is compiled twice.  With xseg (bench_xseg.c) the calls of the hot loop are inline, so the time is that of a
 * user's call.  The device is the simulated one in fast mode, or that of the driver that XSEG_DRIVER names.  With PyTorch's
 * allocator (BENCH_TORCH, bench_torch.cpp) these calls are functions, which adds 1 to 2 ns.
 *
 * A call that fails prints the error and ends the program with status 3.
 */
#ifndef BENCHMARKS_BENCH_H
#define BENCHMARKS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum number of streams.  Stream 0 is the device's default stream. */
#define BENCH_STREAMS 1024u

/* Memory of the simulated device: 10^4 blocks of up to 24 MiB have 117 GiB. */
#define BENCH_MEMORY_BYTES ((uint64_t)512 << 30)

/* Result for a quantity that the allocator does not count. */
#define BENCH_UNKNOWN UINT64_MAX

/* Open device 0 with a configuration string, and create the streams 1 to `streams` - 1. */
void bench_open(const char *config, unsigned streams);

/* Name of the allocator in the results: "xseg" or "PyTorch". */
const char *bench_name(void);

/* Record the history of all blocks from now on.  Returns false, with a message on standard error, if the allocator cannot. */
enum bench_history { BENCH_EVENTS, BENCH_EVENTS_AND_STACKS };
bool bench_record_history(enum bench_history detail);

/* The unwinder that captures call stacks, as the note of a row; "" without a note. */
const char *bench_stack_method(void);

/* Allocate from a private pool, which is created at the first use of its index.  0 is the default pool. */
void *bench_alloc_in_pool(size_t bytes, unsigned stream, unsigned pool);

/* Record the use of a block on a stream other than its own. */
void bench_record_stream(void *pointer, unsigned stream);

/* Register the memory of a block with empty callbacks until the process ends.  Returns false if the allocator has no
 * registration. */
bool bench_register(void *pointer, size_t bytes);

/* Free bytes of the device when it was opened. */
uint64_t bench_free_memory(void);

/* Queue endless work on a stream, or complete this work.  A driver without such work completes it immediately. */
void bench_set_busy(unsigned stream, bool busy);

/* Release cached memory to the driver: PyTorch's empty_cache(). */
void bench_empty_cache(void);

/* Bytes of the device that are mapped. */
uint64_t bench_reserved_bytes(void);

/* Host memory of the allocator's metadata in bytes, counted by the allocator. */
uint64_t bench_host_bytes(void);

/* Number of calls of a driver function by the allocator; modeled time of all driver calls in us. */
uint64_t bench_driver_calls(const char *name);
uint64_t bench_driver_us(void);

#ifdef BENCH_TORCH
void *bench_alloc(size_t bytes, unsigned stream);
void bench_free(void *pointer);
#else
#include "xseg/xseg.h"

struct bench_xseg {
    struct xseg_allocator *allocator;
    xseg_stream streams[BENCH_STREAMS];
};
extern struct bench_xseg bench_xseg;

/* Print the error of a failed call, and end the program. */
_Noreturn void bench_fail(const char *call);

static inline void *bench_alloc(size_t bytes, unsigned stream)
{
    void *pointer;

    if (xseg_alloc(bench_xseg.allocator, 0, bytes, bench_xseg.streams[stream], &pointer) != XSEG_OK)
        bench_fail("xseg_alloc");
    return pointer;
}

static inline void bench_free(void *pointer)
{
    if (xseg_free(bench_xseg.allocator, pointer) != XSEG_OK)
        bench_fail("xseg_free");
}
#endif

#ifdef __cplusplus
}
#endif

#endif
