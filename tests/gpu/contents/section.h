/* SPDX-License-Identifier: MIT */
/*
 * Sections of gpu-contents, and the stage that each finds.
 *
 * The stage is set before the first look at the device's free memory and struck after the last: the context,
 * the compiled kernels, streams that have run one, events, reports.  So what is missing at the end is what the
 * section, or the allocator, did not give back.
 */
#ifndef XSEG_TESTS_GPU_CONTENTS_SECTION_H
#define XSEG_TESTS_GPU_CONTENTS_SECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/gpu/contents/device.h"
#include "tests/gpu/contents/kernel.h"
#include "xseg/xseg.h"

#define STREAMS 4
#define PLAYERS 2 /* threads that a section may have */

struct stage {
    unsigned seconds;
    uint64_t operations; /* to do, however long they take; 0: until the seconds are over */
    uint64_t seed;
    size_t memory;      /* bytes that the section may have of the device */
    const char *folder; /* for files */
    bool corrupts;      /* overwrite one byte behind the allocator's back */
    bool is_classic;    /* no virtual memory management, or not wanted */
    int socket;         /* of the other process, in `peer` */
    CUstream stream[STREAMS];
    CUevent event[PLAYERS];
    struct checks *checks[PLAYERS];
    uint64_t ends; /* seconds of the system's monotonic clock, in nanoseconds */
};

struct section {
    const char *name, *title;
    void (*play)(struct stage *stage);
    bool needs_vmm;
    bool is_hidden; /* the other half of a section */
};

void play_selftest(struct stage *stage);
void play_random(struct stage *stage);
void play_pause(struct stage *stage);
void play_capture(struct stage *stage);
void play_share(struct stage *stage);
void play_peer(struct stage *stage);

/* How long the section is, and the unit of that: "seconds" or "operations". */
uint64_t stage_length(const struct stage *stage);
const char *stage_unit(const struct stage *stage);

/* Whether there is time left, or an operation to do. */
bool stage_goes_on(const struct stage *stage);

/* Wait until nothing is under way on the device, and tell what checks found. */
void stage_rest(struct stage *stage);

/* An allocator on the stage's driver, whose clock moves when stage_pass_time() says so; and its end. */
struct xseg_allocator *stage_open(const char *config);
void stage_pass_time(unsigned milliseconds);
void stage_close(struct xseg_allocator *allocator);

/* The next random number of a sequence, below a bound. */
uint64_t draw(uint64_t *state, uint64_t below);

#endif
