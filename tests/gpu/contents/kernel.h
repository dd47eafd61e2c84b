/* SPDX-License-Identifier: MIT */
/*
 * Kernels: work on a stream that writes, checks or copies the pattern, or that takes time.
 *
 * On a GPU, the kernels are those of tests/gpu/kernels.ptx, compiled by the driver.  The simulator runs no kernels: a
 * kernel is work that accesses the memory and takes virtual time, followed by a host function on the stream, which
 * processes the bytes that the simulator stores.
 *
 * Functions do not wait for the device unless documented: a block is freed, or its memory trimmed, while its kernels
 * run.
 *
 * A check writes a report, which is read after the check has completed: at the latest when its entry in the ring is
 * reused, or in checks_wait().  Differences are reported through the journal.
 *
 * Thread safety: any thread; each thread has its own `struct checks`.
 */
#ifndef XSEG_TESTS_GPU_CONTENTS_KERNEL_H
#define XSEG_TESTS_GPU_CONTENTS_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "tests/gpu/contents/device.h"
#include "tests/gpu/contents/pattern.h"

/* Memory, and the pattern that it contains or will contain. */
struct buffer {
    CUdeviceptr address; /* a multiple of 8 */
    size_t bytes;
    uint64_t seed, mask;
    uint64_t block; /* its index, for messages */
};

/* Returns NULL, or the reason why the kernels cannot run on this host. */
const char *kernel_load(void);
void kernel_unload(void);

void kernel_write(CUstream stream, const struct buffer *buffer);

/* Copy a buffer, each word XOR a mask. */
void kernel_copy(CUstream stream, CUdeviceptr to, const struct buffer *from, uint64_t mask);

void kernel_spin(CUstream stream, unsigned microseconds);

struct checks;

struct checks *checks_create(void);
void checks_destroy(struct checks *checks);

void kernel_check(struct checks *checks, CUstream stream, const struct buffer *buffer);

void checks_wait(struct checks *checks);

/* Check, wait and return the result without reporting it. */
struct pattern_report kernel_check_now(struct checks *checks, CUstream stream,
                                       const struct buffer *buffer);

/* Report a difference, or words that were not compared. */
void kernel_report(const struct buffer *buffer, const struct pattern_report *report);

/* Graphs of captured kernels.  The simulator cannot run a graph: a launch queues its kernels again. */
struct graph;

struct graph *graph_begin(CUstream stream);
void graph_end(struct graph *graph);
void graph_launch(struct graph *graph, CUstream stream);
void graph_free(struct graph *graph);

#endif
