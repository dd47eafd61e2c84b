/* SPDX-License-Identifier: MIT */
/*
 * The subject of a benchmark: an allocator of device memory, behind the few calls that programmes make.
 *
 * Each programme is compiled twice.  With xseg the hot calls are inline, so what is measured is what a
 * user's own call would be; the device is the simulated one, in fast mode, or that of the driver which
 * XSEG_DRIVER names.  With PyTorch's allocator (BENCH_TORCH) they stand in torch.cpp, one call further away,
 * which is one or two ns.
 *
 * A subject that cannot do what it is asked ends the programme with a sentence: a benchmark has no
 * use for half an answer.
 */
#ifndef BENCHMARKS_SUBJECT_H
#define BENCHMARKS_SUBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Streams that a programme may have; number 0 is the device's default stream. */
#define SUBJECT_STREAMS 1024u

/* Memory of the simulated device: 10^4 blocks of up to 24 MiB are 117 GiB. */
#define SUBJECT_MEMORY_BYTES ((uint64_t)512 << 30)

/* What a subject does not count. */
#define SUBJECT_UNKNOWN UINT64_MAX

/* Open device 0 under a configuration string.  Streams 1 to `streams` - 1 are made. */
void subject_open(const char *config, unsigned streams);

/* As it stands in the results: "xseg" or "PyTorch". */
const char *subject_name(void);

/* Record the history of all blocks from now on: its events, or its events with the call stack of each.
 * Returns false, with a sentence on standard error, where the subject cannot. */
enum subject_record { SUBJECT_EVENTS, SUBJECT_STACKS };
bool subject_record(enum subject_record what);

/* By what the subject takes call stacks, as a note of a row; "": nothing to say. */
const char *subject_stacks(void);

/* From private pool number `pool`, which is made when first named; 0 is the default pool. */
void *subject_alloc_in(size_t bytes, unsigned stream, unsigned pool);

/* The block is used on a stream that it was not allocated on. */
void subject_use(void *pointer, unsigned stream);

/* Register a block's memory, by functions that do nothing, until the process ends.  Returns false where the subject has
 * no such thing. */
bool subject_register(void *pointer, size_t bytes);

/* Bytes of the device that were free when it was opened. */
uint64_t subject_memory(void);

/* Work without end is queued on a stream; or all of it ends.  Where a driver has no such work, it ends at once. */
void subject_make_busy(unsigned stream, bool busy);

/* Cached memory goes back to the driver: PyTorch's empty_cache. */
void subject_empty(void);

/* Bytes of the device that are mapped now. */
uint64_t subject_reserved(void);

/* Host memory for bookkeeping, in bytes, as the subject itself counts it. */
uint64_t subject_host_bytes(void);

/* How often the subject called the driver's function of that name; microseconds that all calls would have cost. */
uint64_t subject_calls(const char *name);
uint64_t subject_driver_us(void);

#ifdef BENCH_TORCH
void *subject_alloc(size_t bytes, unsigned stream);
void subject_free(void *pointer);
#else
#include "benchmarks/subject_xseg.h"
#endif

#ifdef __cplusplus
}
#endif

#endif
