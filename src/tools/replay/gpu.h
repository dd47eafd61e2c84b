/* SPDX-License-Identifier: MIT */
/*
 * The driver calls of the replay itself: streams, an event with which one stream waits for another, and captures.
 *
 * The driver is loaded by name, so the tool needs no driver to start and no driver header to build.  The calls use
 * the primary context of device 0, which is current on the calling thread between gpu_open() and gpu_close().
 *
 * Locking: none; one thread makes all calls.
 */
#ifndef TOOLS_GPU_H
#define TOOLS_GPU_H

#include <stdbool.h>
#include <stddef.h>

struct gpu;
struct CUstream_st;

/* A driver is identified by the path or name of its library, as in xseg_options.driver.  GPU_SIMULATED is the
 * simulator of simulator.h, with its clock and settings; the same library by its path is an ordinary driver. */
#define GPU_SIMULATED NULL

/* Get the driver of a value of --driver: NULL (no option) and "sim" are GPU_SIMULATED, "cuda" is the driver of this
 * host. */
const char *gpu_driver_of(const char *text);

/* Get the library of a driver; NULL: GPU_SIMULATED before simulator_open(). */
const char *gpu_library(const char *driver);

/* Open device 0 of a driver.  Returns NULL with an error message in `error`. */
struct gpu *gpu_open(const char *driver, char *error, size_t error_bytes);

/* Destroy the streams and release the context.  NULL has no effect. */
void gpu_close(struct gpu *gpu);

/* Each function below returns false if a driver call fails. */

/* Create a stream that does not synchronize with the default stream; gpu_close() destroys it. */
bool gpu_stream(struct gpu *gpu, struct CUstream_st **out);

/* Query whether all work on a stream is complete. */
bool gpu_query(struct gpu *gpu, struct CUstream_st *stream, bool *out);

/* Wait for a stream that is not captured, or, without a capture, for the context. */
bool gpu_synchronize(struct gpu *gpu, struct CUstream_st *stream);
bool gpu_synchronize_all(struct gpu *gpu);

/* Let `stream` wait for the work that is queued on `awaited`. */
bool gpu_wait(struct gpu *gpu, struct CUstream_st *stream, struct CUstream_st *awaited);

/* Query whether a stream is being captured. */
bool gpu_is_captured(struct gpu *gpu, struct CUstream_st *stream, bool *out);

/* Begin a capture in global mode; end it and destroy its graph. */
bool gpu_capture_begin(struct gpu *gpu, struct CUstream_st *stream);
bool gpu_capture_end(struct gpu *gpu, struct CUstream_st *stream);

/* Queue a write of `bytes` bytes to device memory. */
bool gpu_write(struct gpu *gpu, struct CUstream_st *stream, void *address, size_t bytes);

#endif
