/* SPDX-License-Identifier: MIT */
/*
 * Sharing: export and import of physical memory, IPC handles, and dma-bufs.
 *
 * Export (cuMemExportToShareableHandle).  A descriptor is the memory file of the exporter (contents.h), opened anew for
 * each export.  Its file position is the offset of the label of the memory.  The first export writes the label, which
 * contains magic number, size and properties; the contents follow it.  A fabric handle contains the process ID, the
 * descriptor number and inode of the file, and the offset; it does not keep the memory in use.
 *
 * Use by others.  Each exported descriptor locks the first byte of the label, until its last duplicate is closed in any
 * process.  The first import of the memory into a process locks label and contents until the last importing handle is
 * released.  The exporter detects locks with F_OFD_GETLK, and the memory remains charged to the exporter while there are
 * locks.  The kernel searches the locks of a file linearly, but coalesces adjacent locks of one open file.  So all imports
 * from one file use one open file (struct sim_memory_file), and imports of adjacent memory are one lock.
 *
 * IPC (cuIpcGetMemHandle, cuIpcGetEventHandle).  A handle names a process and, for memory, the location of the contents
 * in its file.  The opener gets its own addresses with the same contents, and is not charged.  Further opens return the
 * same address and count; an event of another process is always complete.
 *
 * Dma-buf (cuMemGetHandleForAddressRange).  A dma-buf is a sparse file of the size of its range, without contents, since
 * a real one cannot be mapped either.  It keeps the physical memory that its range had at its creation, but not an
 * allocation, until its last descriptor is closed, which a byte lock shows.  The link in /proc shows its name, whose last
 * number is CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID of the first page.
 *
 *     xseg-sim-dmabuf address 0x200000000 bytes 4194304 device 0 memory 12
 *
 * Invariants: physical->dmabufs counts the parts of dma-bufs with the memory.  imports[i] counts the importing handles
 * whose label is in granule i of the file.
 *
 * Locking: the machine lock; between processes the file locks above.
 */
#ifndef XSEG_SIM_SHARING_H
#define XSEG_SIM_SHARING_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_physical;

/* CU_MEM_HANDLE_TYPE_FABRIC, since CUDA 12.4. */
#define SIM_HANDLE_FABRIC 8u

/** Memory file of another process or of an import, opened once.  Reference counted. */
struct sim_memory_file {
    struct sim_memory_file *next;
    int file;
    uint64_t references, device, inode;
    uint32_t *imports; /* of each granule of the file */
    uint64_t import_capacity;
};

/** Release a memory file. */
void sim_memory_file_close(struct sim_memory_file *memory_file);

/** Get whether a descriptor of an export is open or another process has imported the memory. */
bool sim_export_is_in_use(const struct sim_physical *physical);

/** Release imported memory: unlock it after the last importing handle. */
void sim_import_release(const struct sim_physical *physical);

/**
 * Open a file of this process anew and lock a byte of it, until all duplicates of the descriptor are closed.
 *
 * Returns the descriptor, positioned at the byte, or -1 with errno.
 */
int sim_file_open_locked(int file, uint64_t byte);

/** Get whether another open file has locked one of `count` bytes. */
bool sim_file_is_locked(int file, uint64_t byte, uint64_t count);

/** Part of a dma-buf: a mapping at its creation. */
struct sim_dmabuf_part {
    struct sim_physical *physical;
    uint64_t address, bytes;
};

struct sim_dmabuf {
    struct sim_dmabuf *next;
    int file;
    uint64_t inode;
    uint64_t address, bytes;
    uint64_t allocation_id; /* 0: the range is mapped memory */
    size_t count;
    struct sim_dmabuf_part part[]; /* in address order; none for an allocation */
};

/** The first page that prevents a registration or a dma-buf, and the reason, such as "page is not mapped". */
struct sim_conflict {
    uint64_t address;
    const char *reason;
};

/**
 * Check whether a range can have a dma-buf, regardless of the setting without_dma_buf.
 *
 * @param address, bytes  multiples of the host page size; bytes is not 0.
 * @param conflict        receives the conflict on failure.
 */
CUresult sim_dmabuf_check(uint64_t address, uint64_t bytes, struct sim_conflict *conflict);

/** Get the dma-buf of a descriptor of this process, or NULL. */
const struct sim_dmabuf *sim_dmabuf_find(int file);

/** Get whether a range of a dma-buf still has the memory of its creation; otherwise the conflict. */
bool sim_dmabuf_is_current(const struct sim_dmabuf *dmabuf, uint64_t offset, uint64_t bytes,
                           struct sim_conflict *conflict);

/** Destroy the dma-bufs without open descriptors. */
void sim_dmabufs_free_unused(void);

/** Destroy all dma-bufs. */
void sim_dmabufs_destroy(void);

#endif
