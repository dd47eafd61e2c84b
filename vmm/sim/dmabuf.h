/* SPDX-License-Identifier: MIT */
/*
 * dma-bufs: descriptors of address ranges, which others register.
 *
 * A dma-buf is a sparse file as long as its range.  The name of the file, which the link in /proc shows, is:
 *
 *     xseg-sim-dmabuf address 0x200000000 bytes 4194304 device 0 memory 12
 *
 * where the last is the number of the first memory (CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID).  It has no contents,
 * since a real one cannot be mapped either.  While a descriptor of it is open anywhere, it keeps the
 * physical memory that the range had when it was made.
 *
 * Invariants: physical->dmabufs counts the pieces that keep it.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_DMABUF_H
#define XSEG_SIM_DMABUF_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_physical;

/* What one mapping has of the range. */
struct sim_dmabuf_piece {
    struct sim_physical *physical;
    uint64_t address, bytes;
};

struct sim_dmabuf {
    struct sim_dmabuf *next;
    int file;       /* the simulator's own, which tells whether others hold it still */
    uint64_t inode; /* of the file */
    uint64_t address, bytes;
    uint64_t number; /* of the allocation; 0: the range is mapped memory */
    size_t count;
    struct sim_dmabuf_piece piece[]; /* by rising address; none of an allocation */
};

/** The first page that prevents a registration or a dma-buf, and the reason, such as "page is not mapped". */
struct sim_gap {
    uint64_t address;
    const char *why;
};

/**
 * Whether a range could have a dma-buf, had the machine any.
 *
 * @param address, bytes  multiples of the host's page size; bytes is not 0
 * @param gap             written when it is refused
 */
CUresult sim_dmabuf_check(uint64_t address, uint64_t bytes, struct sim_gap *gap);

/** The dma-buf of a descriptor; NULL if it is none of this process's. */
const struct sim_dmabuf *sim_dmabuf_find(int file);

/** Whether a part of the range has the memory still that it had.  Returns: false with a gap */
bool sim_dmabuf_is_current(const struct sim_dmabuf *dmabuf, uint64_t offset, uint64_t bytes,
                           struct sim_gap *gap);

/** End those of which no descriptor is open any more. */
void sim_dmabufs_settle(void);

/** End all, for the end of the machine. */
void sim_dmabufs_end(void);

#endif
