/* SPDX-License-Identifier: MIT */
/*
 * A scene: a fresh simulated machine with an allocator on it, and the blocks that the test holds.
 *
 * scene_close() frees what is held, closes the allocator and expects that the simulator finds
 * nothing left behind, so every test that uses a scene is a leak test, too.
 */
#ifndef XSEG_TESTS_SCENE_H
#define XSEG_TESTS_SCENE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "xseg/sim.h"
#include "xseg/xseg.h"

/* Sanitizers have host memory of their own for each piece: figures of it say nothing with them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SCENE_IS_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SCENE_IS_SANITIZED true
#endif
#endif
#ifndef SCENE_IS_SANITIZED
#define SCENE_IS_SANITIZED false
#endif

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* CUDA's own tag of a CUgraph or cudaGraph_t. */
struct CUgraph_st;

/* The path of the simulator that this program is linked with. */
const char *scene_driver(void);

/* A fresh machine and an allocator on it; fails the test if either cannot be had. */
struct xseg_allocator *scene_open(const char *config);
struct xseg_allocator *scene_open_on(const struct xseg_sim_settings *settings, const char *config);

/* What an allocator has said in its log, but for information: how many lines, and the last one. */
struct scene_heard {
    char line[512];
    unsigned lines;
};

/* An allocator on the machine as it is, whose lines are heard; config may be NULL. */
struct xseg_allocator *scene_open_heard(const char *config, struct scene_heard *heard);

/* As scene_open_on(), with an allocator that goes by the machine's clock; settings may be NULL. */
struct xseg_allocator *scene_open_with_clock(const struct xseg_sim_settings *settings,
                                             const char *config);

/* The machine's clock, for struct xseg_options. */
uint64_t scene_clock(void *context);

/* The allocator alone, on the machine as it is. */
xseg_status scene_try_open(const char *config, struct xseg_allocator **out);

/* Close, and expect success and no leaks. */
void scene_close(struct xseg_allocator *allocator);

/* Allocate on device 0 and expect success. */
void *scene_alloc(struct xseg_allocator *allocator, size_t bytes, xseg_stream stream);

/* As scene_alloc(), from a pool; and without an expectation, on the default stream. */
void *scene_alloc_in(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                     xseg_stream stream);
xseg_status scene_try_alloc_in(struct xseg_allocator *allocator, struct xseg_pool *pool,
                               size_t bytes, void **out);

/* Free and expect success. */
void scene_free(struct xseg_allocator *allocator, void *ptr);

/* empty_cache: trim everything with waiting. */
void scene_empty_cache(struct xseg_allocator *allocator);

/* Statistics of device 0. */
struct xseg_statistics scene_stats(struct xseg_allocator *allocator);

/* The block at an address, which must be in a segment. */
struct xseg_block_info scene_block(struct xseg_allocator *allocator, const void *address);

/* A new stream of device 0, in its primary context, which is held until the stream is destroyed. */
xseg_stream scene_stream(void);
void scene_stream_destroy(xseg_stream stream);

/* What is queued on `stream` from now on runs after what is queued on `other` by now; in a capture
 * of `other`, `stream` joins it.  Either may be NULL. */
void scene_stream_wait(xseg_stream stream, xseg_stream other);

/* Queue work that touches a whole block, and ends when somebody waits for it or the test says so;
 * or capture it. */
void scene_work(struct xseg_allocator *allocator, xseg_stream stream, const void *ptr);

/* The same for any memory of device 0. */
void scene_work_at(xseg_stream stream, const void *address, uint64_t bytes);

/* A private pool of device 0, held once. */
struct xseg_pool *scene_pool(struct xseg_allocator *allocator);

/* A pool with a callback at its end: its handle can be used after the last release as long as the pool has memory. */
struct xseg_pool *scene_watched_pool(struct xseg_allocator *allocator);

/*
 * A capture, told to the library and begun on the driver, in global mode: the one that bears least.
 * Its end expects that nothing has spoilt it, and gives the graph to the caller.
 */
void scene_capture_begin(struct xseg_pool *pool, xseg_stream stream);
struct CUgraph_st *scene_capture_end(struct xseg_pool *pool, xseg_stream stream);
void scene_graph_destroy(struct CUgraph_st *graph);

/* How many descriptors this process has open. */
unsigned scene_open_files(void);

/* Expect a status, and a word in the error text. */
void scene_expect_error(xseg_status got, xseg_status want, const char *word);

#endif
