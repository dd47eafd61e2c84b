/* SPDX-License-Identifier: MIT */
/*
 * Sharing: device memory of one process that other processes access, and memory of one device that other devices
 * access.
 *
 *     // The exporter sends the token and the offset to the importer.
 *     if (xseg_export(allocator, block, &token, &offset) != XSEG_OK)
 *         return 1;
 *     // The importer maps the memory.  Device 0 is the device that has the memory.
 *     if (xseg_import(importer, 0, &token, &base) != XSEG_OK)
 *         return 1;
 *     use((char *)base + offset);
 *     xseg_import_close(importer, base);
 *     xseg_export_close(allocator, block); // The exporter closes the export when no importer uses the memory.
 *
 * Terms:
 *   run         the contiguous pages that contain one block; an export covers a run.
 *   token       64 bytes that identify a run, or all pages of a segment.  The application sends the token by any
 *               transport.
 *   raw handle  a file descriptor or a fabric handle of one page.  The application sends the handle.
 *
 * xseg_import() connects to a socket of the exporter.  Both processes therefore run as the same user on the same host,
 * in one network namespace.  An application that has its own transport can exchange raw handles instead
 * (xseg_export_handles(), xseg_import_handles()): file descriptors on one host, and fabric handles between hosts.
 *
 * An importer can read and write all memory of the pages of a run, also other blocks.  Allocate memory that must stay
 * private from another pool.  Pages can be exported if their pool was created exportable: by `exportable` of struct
 * xseg_pool_options, or by the key exportable, which includes the default pool.
 *
 * Fork: as in allocator.h.  A child has copies of all descriptors that are open during the fork: those of raw handles,
 * and those that the exporter sends to an importer at this moment.  An open descriptor keeps the memory of its page
 * allocated.
 *
 * Peer access: the driver grants other devices access to pages for each mapping, and cuCtxEnablePeerAccess() does not
 * apply to them.  A program or library that works on several devices, such as NCCL, calls xseg_peer_allow() once for
 * each ordered pair of devices.
 */
#ifndef XSEG_SHARE_H
#define XSEG_SHARE_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Size of an export token, in bytes. */
#define XSEG_EXPORT_TOKEN_SIZE 64u

/** Version of the export token; xseg_import() rejects other versions. */
#define XSEG_EXPORT_TOKEN_VERSION 1u

/**
 * An export token: it identifies the exporter, a run of exported pages, and the generation of the pages (struct
 * xseg_mapping).
 *
 * Tokens of the same pages are equal byte by byte as long as the pages stay mapped, so an importer can use the bytes as
 * the key of a cache.  A token is a capability: every process of the user that has the token can import the run.
 */
struct xseg_export_token {
    uint8_t byte[XSEG_EXPORT_TOKEN_SIZE];
};

/** Type of a raw handle of a page. */
enum xseg_handle_type {
    XSEG_HANDLE_FD = 1,    /* file descriptor, for processes of one host (Unix socket) */
    XSEG_HANDLE_FABRIC = 2 /* fabric handle, also for other hosts of one NVLink fabric */
};

/** Size of a fabric handle, in bytes. */
#define XSEG_FABRIC_HANDLE_SIZE 64u

/** A raw handle of one page of a run. */
struct xseg_page_handle {
    uint64_t offset;                         /* offset of the page in the run, in bytes */
    uint64_t size;                           /* size of the page, in bytes */
    int fd;                                  /* XSEG_HANDLE_FD: descriptor; otherwise -1 */
    uint8_t fabric[XSEG_FABRIC_HANDLE_SIZE]; /* XSEG_HANDLE_FABRIC: handle */
};

/**
 * Export the run of an allocated block by a token.
 *
 * Each call needs one xseg_export_close().  Until then the pages are not unmapped, moved or paused, also after the
 * block is freed.  If the block is freed, importers access the block that reuses its memory.  Pages that were exported
 * once are never moved to another pool.  After the last close the pages can be released to the driver.  Importers keep
 * the memory, and the device has less free memory until they close their imports.
 *
 * The first call for a device starts a thread, which runs until xseg_close() and handles no signals.  The thread
 * answers importers at an abstract Unix socket: it creates the descriptors of a request, sends them, and closes them.
 * xseg_close() waits up to 2 seconds for an answer in progress.
 *
 * @param ptr     start of an allocated block of an expandable segment, in an exportable pool.
 * @param token   receives the token.
 * @param offset  receives the offset of the block in the run, in bytes; may be NULL.  The importer needs it as well.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  no allocated block starts at ptr.
 *         XSEG_ERR_UNSUPPORTED    the pages of the block are not exportable, or the segment is classic.
 *         XSEG_ERR_PAUSED         the pool of the block is paused.
 *         XSEG_ERR_FILE           no socket or random number is available; see `ulimit -n`.
 *         XSEG_ERR_HOST_MEMORY    also: no thread can be created.
 *         XSEG_ERR_BUSY           another call has claimed memory at ptr, or a page has 2^32 - 1 exports.
 *         An error leaves nothing exported.
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call, except a query of the device's UUID by the first call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_export(struct xseg_allocator *allocator, void *ptr,
                                                struct xseg_export_token *token, uint64_t *offset);

/**
 * Export all memory that is mapped in a segment by one token.
 *
 * The call is the counterpart of cudaIpcGetMemHandle() for expandable memory: an importer maps the whole segment, so
 * one token serves all blocks in it, also cached ones.  The address of any block in the importer is the imported
 * address plus the distance of the block from `address` here.
 *
 * There is no close.  The pages that are mapped now are retained, as by xseg_export(), until xseg_pool_release()
 * releases the last reference to their pool, xseg_pool_pause() pauses the pool, or xseg_close().  Importers stay
 * connected until they close their imports or exit, and xseg_pool_pause() fails while an importer is connected.
 *
 * Tokens of one address are equal byte by byte as long as the same pages are mapped.  When the segment has grown, a
 * new token covers the additional pages, and earlier tokens stay valid for the earlier ones.
 *
 * @param address  an address of an expandable segment of an exportable pool, not after the last mapped page.  It need
 *                 not be mapped: CU_POINTER_ATTRIBUTE_RANGE_START_ADDR of a block is the base of its segment.
 * @param token    receives the token.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  the address is not in a segment, or no page at or after it is mapped.
 *         XSEG_ERR_UNSUPPORTED    the pages are not exportable, the segment is classic, or the pool has been released.
 *         XSEG_ERR_PAUSED         the pool is paused.
 *         XSEG_ERR_FILE, XSEG_ERR_HOST_MEMORY, XSEG_ERR_BUSY  as for xseg_export().
 *         An error leaves nothing exported that was not exported before.
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call, except a query of the device's UUID by the first call; O(granules of the segment).
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_export_segment(struct xseg_allocator *allocator,
                                                        const void *address,
                                                        struct xseg_export_token *token);

/**
 * Export the run of an allocated block by a raw handle for each page.
 *
 * The call retains the pages as xseg_export() does, needs one xseg_export_close(), and starts no thread.
 *
 * The caller owns the file descriptors, which are closed on exec.  Close each descriptor when it has been sent: an open
 * descriptor keeps the memory of its page allocated.  A fabric handle does not keep memory, so importers must map the
 * memory before the export is closed.
 *
 * @param ptr       as for xseg_export().
 * @param type      type of the handles.
 * @param handles   receives the handles, in the order of the addresses.  NULL: nothing is exported, and the call
 *                  returns the count.
 * @param capacity  number of elements of handles; 0 with NULL.
 * @param count     receives the number of pages, also if capacity is too small.
 * @param offset    receives the offset of the block in the run, in bytes; may be NULL.
 *
 * @return the statuses of xseg_export().
 *         XSEG_ERR_UNSUPPORTED  also: XSEG_HANDLE_FABRIC, and the device has no fabric handles.
 *         XSEG_ERR_ARGUMENT     also: capacity is too small.
 *         XSEG_ERR_DRIVER       also: the driver cannot create a handle; for descriptors see `ulimit -n`.
 *         An error leaves nothing exported and no descriptor open.  The contents of handles are undefined then.
 * Threads: any; waits for the device memory lock.
 * Cost: one export per page.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_export_handles(struct xseg_allocator *allocator, void *ptr,
                                                        enum xseg_handle_type type,
                                                        struct xseg_page_handle *handles,
                                                        size_t capacity, size_t *count,
                                                        uint64_t *offset);

/**
 * Close the oldest open export of a block: once for each xseg_export() and xseg_export_handles().
 *
 * The block may have been freed.  Importers keep their mappings.  A token is valid until all exports of its run are
 * closed.
 *
 * @param ptr  address that was exported.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  ptr is not exported.
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_export_close(struct xseg_allocator *allocator, void *ptr);

/**
 * Map a run that another process exports, in a VA range of exactly the size of the run.
 *
 * A token of xseg_export_segment() maps the whole segment: `base` receives the address that corresponds to the exported
 * address.  The parts of the segment without pages stay unmapped.  A second import of the same pages returns the same
 * memory and counts; each import needs an xseg_import_close().
 *
 * The exporter may be the calling process.  Imported memory is not a block of this allocator: statistics contain it
 * only in imported_bytes, and walks do not report it.  Close each import before xseg_close(), which otherwise returns
 * XSEG_ERR_BUSY.
 *
 * @param device  CUDA ordinal, in this process, of the device that has the memory; for a segment, of the device that
 *                uses the memory, which may be another one with a peer connection.
 * @param token   token that xseg_export() or xseg_export_segment() wrote.
 * @param base    receives the address of the run.  The address of the block is `base` plus the offset that
 *                xseg_export() returned.
 *
 * @return XSEG_ERR_ARGUMENT       also: the token is malformed or of another version, or the run is on another device.
 *         XSEG_ERR_FILE           the exporter does not answer within 10 seconds: it has ended, has closed its
 *                                 allocator, or runs as another user or in another network namespace.  Also: this
 *                                 process cannot open one descriptor per page (`ulimit -n`).
 *         XSEG_ERR_NOT_ALLOCATED  the exporter has closed the export.
 *         XSEG_ERR_UNSUPPORTED    the device has no virtual memory management.
 *         XSEG_ERR_DRIVER         also: the driver of the exporter cannot create a descriptor, or the segment is on a
 *                                 device without a peer connection.
 *         XSEG_ERR_NO_ADDRESSES   the driver has no VA range left.
 *         XSEG_ERR_NO_MEMORY      the driver has no memory for the mappings.
 *         An error leaves nothing imported.
 * Threads: any; waits for the exporter, and for the device memory lock.
 * Cost: one reserve; one import, map and release per page, and an export in the exporter; one set-access (one per page,
 *       if the driver requires that).  The first call queries the UUID of the device.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_import(struct xseg_allocator *allocator, int device,
                                                const struct xseg_export_token *token, void **base);

/**
 * Map a run by the raw handles of its pages.  Otherwise as xseg_import().
 *
 * @param device   CUDA ordinal, in this process: with XSEG_HANDLE_FD the device that has the memory, with
 *                 XSEG_HANDLE_FABRIC the device that uses the memory.
 * @param type     type of the handles.
 * @param handles  handles in the order of their offsets, without gaps.  The caller closes the descriptors afterwards.
 * @param count    number of handles, not 0.
 * @param base     receives the address of the run.
 *
 * @return the statuses of xseg_import(), except those of the exporter.
 *         XSEG_ERR_ARGUMENT  also: a size or an offset does not fit the previous handles or the device's granularity,
 *                            or a descriptor is not open.
 *         XSEG_ERR_DRIVER    also: a handle is not a handle of device memory.
 *         An error leaves nothing imported.
 * Threads: any; waits for the device memory lock.
 * Cost: as xseg_import(), without the exporter.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_import_handles(struct xseg_allocator *allocator,
                                                        int device, enum xseg_handle_type type,
                                                        const struct xseg_page_handle *handles,
                                                        size_t count, void **base);

/**
 * Unmap an imported run.
 *
 * The call waits for no stream: synchronize the streams that used the memory first.  If the driver does not remove a
 * mapping, the next trim retries it.
 *
 * @param base  address that xseg_import() or xseg_import_handles() returned.  The memory of a segment that was imported
 *              several times is unmapped by the last close.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  no memory is imported at base.
 *         XSEG_ERR_BUSY           a capture is active on the device.
 * Threads: any; waits for the device memory lock.
 * Cost: one unmap (one per page, if the driver requires that); one address-free.
 */
XSEG_API xseg_status xseg_import_close(struct xseg_allocator *allocator, void *base);

/* --- Peer access. --- */

/**
 * Allow one device to read and write all memory of the allocator on another device.
 *
 * Access is in one direction: call the function again with the devices exchanged for the other direction.  It covers
 * all pools and imports, memory that is mapped later, and paused pools when they resume, until xseg_close().  It does
 * not cover pools with memory functions.
 *
 * For classic segments the call enables peer access from the peer's primary context to the owner's.  This access stays
 * enabled after xseg_close(), since other code of the process can rely on it.
 *
 * The call opens both devices.  A repeated call for a pair has no effect.
 *
 * @param owner  CUDA ordinal of the device that has the memory.
 * @param peer   CUDA ordinal of the device that accesses it.
 *
 * @return XSEG_ERR_UNSUPPORTED  the devices have no peer connection, or the maximum number of peers is reached.
 *         XSEG_ERR_BUSY         another thread pauses or resumes a pool of the owner.
 *         XSEG_ERR_ARGUMENT     also: both devices are the same.
 *         On an error the access is rolled back.  If the driver rejects the rollback, the message states this, and the
 *         peer keeps access to some memory until that memory is unmapped.
 * Threads: any; waits for the device memory lock of the owner.
 * Cost: two driver calls, and one set-access per run of adjacent pages (one per page, if the driver requires that).
 *       Later growths make no additional call, but each set-access names one device more.
 */
XSEG_API xseg_status xseg_peer_allow(struct xseg_allocator *allocator, int owner, int peer);

#ifdef __cplusplus
}
#endif

#endif
