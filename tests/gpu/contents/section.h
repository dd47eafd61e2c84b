/* SPDX-License-Identifier: MIT */
/* Sections of gpu-contents, and their common environment.  The environment exists during both measurements of free memory, so
 * a difference is a leak of the section or the allocator. */
#ifndef XSEG_TESTS_GPU_CONTENTS_SECTION_H
#define XSEG_TESTS_GPU_CONTENTS_SECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/gpu/contents/device.h"
#include "tests/gpu/contents/kernel.h"
#include "xseg/xseg.h"

#define STREAMS     4
#define MAX_THREADS 2 /* maximum threads of a section */

struct section_env {
    unsigned seconds;
    uint64_t operations; /* number of operations; 0: until the seconds have elapsed */
    uint64_t seed;
    size_t memory;      /* bytes of the device that the section may use */
    const char *folder; /* for files */
    bool corrupts_byte; /* overwrite one byte of a block, which the checks must detect */
    bool is_classic;    /* virtual memory management is unsupported or disabled */
    int socket;         /* of the other process, in `peer` */
    CUstream stream[STREAMS];
    CUevent event[MAX_THREADS];
    struct checks *checks[MAX_THREADS];
    uint64_t deadline_ns;  /* on the monotonic clock */
    uint64_t random_state; /* of random_below() */
    uint64_t block_count;  /* blocks of section_alloc() */
};

struct section {
    const char *name, *title;
    void (*run)(struct section_env *env);
    bool needs_vmm;
    bool is_hidden; /* the second process of a section */
};

void run_selftest(struct section_env *env);
void run_random(struct section_env *env);
void run_pause(struct section_env *env);
void run_capture(struct section_env *env);
void run_share(struct section_env *env);
void run_peer(struct section_env *env);

/* The length of the section, and its unit: "seconds" or "operations". */
uint64_t section_length(const struct section_env *env);
const char *section_unit(const struct section_env *env);

bool section_has_time(const struct section_env *env);

/* Synchronize the device, and report the differences that checks found. */
void section_synchronize(struct section_env *env);

/* Open an allocator with a clock that section_advance_clock() advances; and close it. */
struct xseg_allocator *section_open_allocator(const char *config);
void section_advance_clock(unsigned milliseconds);
void section_close_allocator(struct xseg_allocator *allocator);

/* Allocate a block of a pool (NULL: none) on a stream of the environment, and choose a random seed; and free it. */
struct buffer section_alloc(struct section_env *env, struct xseg_allocator *allocator,
                            struct xseg_pool *pool, unsigned stream, size_t bytes);
void section_free(struct xseg_allocator *allocator, const struct buffer *buffer);

/* A random number from 0 to `below` - 1. */
uint64_t random_below(uint64_t *state, uint64_t below);

#endif
