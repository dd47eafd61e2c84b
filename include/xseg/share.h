/* SPDX-License-Identifier: MIT */
/*
 * Sharing: device memory of one process that other processes access, and memory of one device that other devices access.
 *
 *     // The exporter sends the token and the offset to the importer.
 *     if (xseg_export(allocator, block, &token, &offset) != XSEG_OK)
 *         return 1;
 *     // The importer maps the memory; device 0 is the device that has the memory.
 *     if (xseg_import(importer, 0, &token, &base) != XSEG_OK)
 *         return 1;
 *     use((char *)base + offset);
 *     xseg_import_close(importer, base);
 *     xseg_export_close(allocator, block); // The exporter, when no importer uses the memory.
 *
 * An export covers a run: the pages under one block.  An export token names the run; it has 64 bytes, which the
 * application sends by any transport.  xseg_import() resolves the token at a socket of the exporter, so both processes
 * run as the same user on the same host, in one network namespace.  An application that has a transport exchanges raw
 * handles of the pages instead (xseg_export_handles(), xseg_import_handles()): file descriptors on one host, and fabric
 * handles between hosts.
 *
 * Importers can read and write everything on the pages of the run, also other blocks.  Memory that must stay private
 * belongs in another pool.  The pages of a pool can be exported if the pool was created for that: `exportable` of
 * struct xseg_pool_options, or of the configuration, which includes the default pool.
 *
 * Fork: as in allocator.h.  A child keeps copies of the descriptors that are open during the fork: those of raw handles,
 * and those of an importer that is being answered.  An open descriptor keeps the memory of its page allocated.
 *
 * Peer access: the driver grants access to mapped pages for each mapping; cuCtxEnablePeerAccess() does not apply to them.
 * A program or library that works on several devices, such as NCCL, calls xseg_peer_allow() once for each pair.
 */
#ifndef XSEG_SHARE_H
#define XSEG_SHARE_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Size of an export token, in bytes. */
#define XSEG_EXPORT_TOKEN_SIZE 64u

/** Version of the export token; the importer rejects other versions. */
#define XSEG_EXPORT_TOKEN_VERSION 1u

/**
 * Names a run of exported pages: the exporter, the run, and the generation of its pages (struct xseg_mapping).
 *
 * Tokens of the same pages are equal byte by byte as long as the pages stay mapped, so an importer can use the bytes as
 * the key of a cache.  A token is a capability: every process of the user that has the token can import the run.
 */
struct xseg_export_token {
    uint8_t byte[XSEG_EXPORT_TOKEN_SIZE];
};

/** Type of a raw handle of a page. */
enum xseg_handle_type {
    XSEG_HANDLE_FD =
        1, /* file descriptor, which a Unix socket carries to a process of the same host */
    XSEG_HANDLE_FABRIC = 2 /* fabric handle: bytes, also for other hosts of one NVLink fabric */
};

/** Size of a fabric handle, in bytes. */
#define XSEG_FABRIC_HANDLE_SIZE 64u

/** A raw handle of one page of a run. */
struct xseg_page_handle {
    uint64_t offset;                         /* of the page in the run, in bytes */
    uint64_t size;                           /* of the page, in bytes */
    int fd;                                  /* with XSEG_HANDLE_FD */
    uint8_t fabric[XSEG_FABRIC_HANDLE_SIZE]; /* with XSEG_HANDLE_FABRIC */
};

/**
 * Export the pages under a live block, and write the token that names them.
 *
 * Each call needs one xseg_export_close().  Until then the pages are retained as by a pin: they are not unmapped, moved
 * or paused, also after the block is freed.  Importers of a freed block then access the block that reuses its memory.
 * Pages that were ever exported are not moved to another pool.  After the last close the pages can be released to the
 * driver; importers keep the memory, and the device has less free memory until they close their imports.
 *
 * The first call for a device starts a thread, which runs until xseg_close() and handles no signals.  It answers
 * importers at an abstract Unix socket: it makes descriptors for the request and closes them.  xseg_close() waits up to
 * 2 seconds for an importer that is being answered.
 *
 * @param ptr     the start of a live block of an expandable segment, in an exportable pool.
 * @param token   receives the token.
 * @param offset  receives the offset of the block in the run, in bytes; may be NULL.  The importer needs it as well.
 *
 * @return XSEG_ERR_NOT_ALLOCATED     no live block starts at ptr.
 *         XSEG_ERR_UNSUPPORTED  the block's pool is not exportable, or the segment is classic.
 *         XSEG_ERR_PAUSED       the block's pool is paused.
 *         XSEG_ERR_FILE         no socket or random number is available; see `ulimit -n`.
 *         XSEG_ERR_HOST_MEMORY  also: no thread can be created.
 *         XSEG_ERR_BUSY         another call has claimed memory at ptr, or the run has 2^32 - 1 exports.
 *         On an error nothing is exported.
 * Threads: any; waits for a growth or trim of the device.
 * Cost: no driver call, but for the UUID of the device the first time.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_export(struct xseg_allocator *allocator, void *ptr,
                                                struct xseg_export_token *token, uint64_t *offset);

/**
 * Export the pages under a live block, and make a raw handle for each page.
 *
 * Retains the pages as xseg_export() does, and needs one xseg_export_close(); starts no thread.  The caller owns the
 * file descriptors, which are closed on exec, and closes them as soon as they are sent: an open descriptor keeps the
 * memory of its page allocated.  A fabric handle does not: importers map the memory before the export is closed.
 *
 * @param ptr       as for xseg_export().
 * @param type      XSEG_HANDLE_FD; or XSEG_HANDLE_FABRIC, where the driver makes fabric handles (the first exportable
 *                  pool of a device probes that).
 * @param handles   receives the handles, in the order of the addresses; NULL to query the count: nothing is exported.
 * @param capacity  elements of handles; 0 with NULL.
 * @param count     receives the number of pages, also if capacity is too small.
 * @param offset    receives the offset of the block in the run, in bytes; may be NULL.
 *
 * @return As xseg_export().
 *         XSEG_ERR_UNSUPPORTED  also: the device has no fabric handles.
 *         XSEG_ERR_ARGUMENT     also: capacity is too small.
 *         XSEG_ERR_DRIVER       also: the driver makes no descriptor; see `ulimit -n`
 *         On an error nothing is exported, and no descriptor is left open.
 * Threads: any; waits for a growth or trim of the device.
 * Cost: one export per page.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_export_handles(struct xseg_allocator *allocator, void *ptr,
                                                        enum xseg_handle_type type,
                                                        struct xseg_page_handle *handles,
                                                        size_t capacity, size_t *count,
                                                        uint64_t *offset);

/**
 * Close one export of an address, the oldest: once for each xseg_export() and xseg_export_handles().  The block may
 * have been freed.  Importers keep what they have mapped.  A token is valid until all exports of its run are closed.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  ptr is not exported.
 * Threads: any; waits for a growth or trim of the device.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_export_close(struct xseg_allocator *allocator, void *ptr);

/**
 * Map a run that another process exports, into a range of addresses of exactly its size.  The exporter may be the
 * calling process.
 *
 * Imported memory is not a block of this allocator: it is not in the statistics of blocks and of reserved bytes, only
 * in imported_bytes, and not in walks.
 *
 * @param device  CUDA ordinal, in this process, of the device that has the memory.
 * @param token   as xseg_export() wrote it.
 * @param base    receives the address of the run; the block is at `base` plus the offset that xseg_export() returned.
 *
 * @return XSEG_ERR_ARGUMENT     the token is malformed or of another version; the memory is on another device.
 *         XSEG_ERR_FILE         the exporter does not answer within 10 seconds: it has ended, has closed its allocator,
 *                               or runs as another user or in another network namespace.  Or this process cannot
 *                               open as many descriptors as there are pages (`ulimit -n`).
 *         XSEG_ERR_NOT_ALLOCATED     the exporter has closed the export.
 *         XSEG_ERR_UNSUPPORTED  the device has no virtual memory management.
 *         XSEG_ERR_DRIVER       also: the exporter's driver made no descriptor.
 *         XSEG_ERR_NO_ADDRESSES, XSEG_ERR_NO_MEMORY  as xseg_alloc()
 *         On an error nothing has changed.
 * Threads: any; waits for the exporter, and for a growth or trim of the device.
 * Cost: one reserve; one import, map and release per page, and an export in the exporter; one set-access (one per
 *       page where the driver requires that).  The first call queries the UUID of the device.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_import(struct xseg_allocator *allocator, int device,
                                                const struct xseg_export_token *token, void **base);

/**
 * Map a run by the raw handles of its pages.  Otherwise as xseg_import().
 *
 * @param device   CUDA ordinal, in this process, of the device that has the memory; with XSEG_HANDLE_FABRIC, of the
 *                 device that uses it.
 * @param handles  in the order of their offsets, without gaps; the caller closes the descriptors afterwards.
 *
 * @return as xseg_import().
 *         XSEG_ERR_ARGUMENT  a size or an offset does not fit its neighbors or the device's granularity; a descriptor
 *                            is not open.
 *         XSEG_ERR_DRIVER    also: a handle is not one of device memory
 *         On an error nothing has changed.
 * Cost: as xseg_import(), without the exporter.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_import_handles(struct xseg_allocator *allocator,
                                                        int device, enum xseg_handle_type type,
                                                        const struct xseg_page_handle *handles,
                                                        size_t count, void **base);

/**
 * Unmap an imported run.  Does not wait for streams: synchronize the streams that used the memory first.  A mapping
 * that the driver does not remove is retried at the next trim.
 *
 * @param base  as xseg_import() or xseg_import_handles() returned it.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  nothing is imported at base.
 *         XSEG_ERR_BUSY      a capture is active on the device
 * Threads: any; waits for a growth or trim of the device.
 * Cost: one unmap (one per page where the driver requires that), one address-free.
 */
XSEG_API xseg_status xseg_import_close(struct xseg_allocator *allocator, void *base);

/* --- Peer access. --- */

/**
 * Allow one device to read and write all memory of the allocator on another device.
 *
 * Access covers all pools and imports, memory that is mapped later, and paused pools when they resume, until
 * xseg_close().  It is one-way: call the function again with the devices exchanged for the other direction.  For
 * classic segments peer access is enabled from the peer's primary context to the owner's; it stays enabled after
 * xseg_close(), since other code of the process can rely on it.  Pools with memory functions are not covered.
 *
 * Both devices are opened if necessary.  A repeated call for a pair has no effect.
 *
 * @param owner  CUDA ordinal of the device that has the memory.
 * @param peer   CUDA ordinal of the device that accesses it.
 *
 * @return XSEG_ERR_UNSUPPORTED  the devices have no peer connection, or the maximum number of peers is reached.
 *         XSEG_ERR_BUSY         another thread pauses or resumes a pool of the owner.
 *         XSEG_ERR_ARGUMENT     also: both devices are the same.
 *         On an error the access is rolled back.  If the driver rejects the rollback, the message says so, and the peer
 *         keeps access to some memory until that memory is unmapped.
 * Threads: any; waits for a growth or trim of the owner.
 * Cost: two driver calls, and one set-access per run of adjacent pages (per page, where the driver requires that).
 *       Later growths make no additional call, but each set-access names one device more.
 */
XSEG_API xseg_status xseg_peer_allow(struct xseg_allocator *allocator, int owner, int peer);

#ifdef __cplusplus
}
#endif

#endif
