/* SPDX-License-Identifier: MIT */
/* Sections of gpu-contents, and their common stage, which exists during both measurements of free memory: a difference is a
 * leak of the section or the allocator. */
#ifndef XSEG_TESTS_GPU_CONTENTS_SECTION_H
#define XSEG_TESTS_GPU_CONTENTS_SECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/gpu/contents/device.h"
#include "tests/gpu/contents/kernel.h"
#include "xseg/xseg.h"

#define STREAMS 4
#define PLAYERS 2 /* maximum threads of a section */

struct stage {
    unsigned seconds;
    uint64_t operations; /* their number, independent of time; 0: until the seconds have elapsed */
    uint64_t seed;
    size_t memory;      /* bytes of the device that the section may use */
    const char *folder; /* for files */
    bool corrupts;      /* overwrite one byte, bypassing the allocator */
    bool is_classic;    /* virtual memory management is unsupported or disabled */
    int socket;         /* of the other process, in `peer` */
    CUstream stream[STREAMS];
    CUevent event[PLAYERS];
    struct checks *checks[PLAYERS];
    uint64_t ends;          /* nanoseconds of the monotonic clock */
    uint64_t draws, blocks; /* of stage_block() */
};

struct section {
    const char *name, *title;
    void (*play)(struct stage *stage);
    bool needs_vmm;
    bool is_hidden; /* the second process of a section */
};

void play_selftest(struct stage *stage);
void play_random(struct stage *stage);
void play_pause(struct stage *stage);
void play_capture(struct stage *stage);
void play_share(struct stage *stage);
void play_peer(struct stage *stage);

/* The length of the section, and its unit: "seconds" or "operations". */
uint64_t stage_length(const struct stage *stage);
const char *stage_unit(const struct stage *stage);

bool stage_has_time(const struct stage *stage);

/* Wait until the device is idle, and report the differences that checks found. */
void stage_rest(struct stage *stage);

/* An allocator on the stage's driver with a clock that stage_pass_time() advances; and its close. */
struct xseg_allocator *stage_open(const char *config);
void stage_pass_time(unsigned milliseconds);
void stage_close(struct xseg_allocator *allocator);

/* Allocate a block of a pool (NULL: none) on a stream of the stage, with random contents; and free it. */
struct piece stage_block(struct stage *stage, struct xseg_allocator *allocator,
                         struct xseg_pool *pool, unsigned stream, size_t bytes);
void stage_free(struct xseg_allocator *allocator, const struct piece *piece);

uint64_t draw(uint64_t *state, uint64_t below);

#endif
