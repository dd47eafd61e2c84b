/* SPDX-License-Identifier: MIT */
/*
 * Sharing: memory of one process that others read and write, by file descriptor, fabric handle or text.
 *
 *     exporter                                             importer
 *     xseg_export()      header, descriptors     ---->     xseg_import()
 *     xseg_share_end()   as soon as they are sent          xseg_share_end(), at once
 *     xseg_export_close() when nobody uses it any more     xseg_import_close()
 *
 * What is shared is pages: others get all that lies on the pages of a block, beside it as well, and
 * for writing, too.  Blocks that must not be seen belong in another pool.  Memory of a pool can be
 * shared if that was said when the pool was made: `exportable` of struct xseg_pool_options, or of the
 * configuration, which makes the default pool exportable, too.  A text does for all of that where both sides
 * are of one user on one machine: xseg_export_text().
 *
 * Threads: any.  Errors: as in allocator.h.
 * Fork:    as in allocator.h.  A child has its own copy of every descriptor that was open: of shares that have not
 *          ended, and of texts.  Memory that goes back to the driver stays with the device until the child ends,
 *          executes another program, or closes them.
 */
#ifndef XSEG_SHARE_H
#define XSEG_SHARE_H

#include "xseg/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How memory is named for others. */
enum xseg_share_kind {
    XSEG_SHARE_FD = 1,    /* a file descriptor for each page, to be sent over a Unix socket */
    XSEG_SHARE_FABRIC = 2 /* a fabric handle for each page, in the header: also for other hosts */
};

/** Bytes of a fabric handle. */
#define XSEG_SHARE_FABRIC_BYTES 64u

#define XSEG_SHARE_MAGIC   "xsegshr" /* with the zero behind it, eight bytes */
#define XSEG_SHARE_VERSION 1u

/**
 * What the importer has to know, in this order and without gaps, in the byte order of the machine.
 * Behind it stand `page_count` numbers of 64 bits: the bytes of each page, by address.  With XSEG_SHARE_FABRIC a
 * fabric handle for each page stands behind these, and there are no descriptors: the header is all that travels,
 * by any way.
 *
 * Two shares with the same `exporter` and `segment` are of one segment, and `page_offset` +
 * `block_offset` is where in it.  That stays true as long as the segment is there, which is as long as
 * any block lies in it.  If `generation` is the same as well, the same memory lies there.  Descriptors
 * are new ones in each share.
 */
struct xseg_share_header {
    char magic[8];         /* XSEG_SHARE_MAGIC */
    uint32_t version;      /* XSEG_SHARE_VERSION: with another one the rest may be another, too */
    uint32_t kind;         /* enum xseg_share_kind */
    uint64_t header_bytes; /* of this and of the numbers behind it */
    uint64_t page_count;   /* also of the descriptors, or fabric handles */
    uint8_t device[16];    /* the UUID of the device that has the memory */
    uint64_t exporter;     /* drawn at random by each device of each allocator */
    int64_t process;       /* of the exporter, as it knows itself */
    uint64_t segment;
    uint64_t generation;   /* the latest of the pages; see mapping.h */
    uint64_t page_offset;  /* of the first page, in its segment */
    uint64_t block_offset; /* of the block, in the first page; a multiple of 512 */
    uint64_t block_bytes;
    uint64_t requested_bytes;
};

/** A block for others.  Set struct_bytes before it is filled in; see XSEG_SHARE_INIT. */
struct xseg_share {
    size_t struct_bytes;                    /* sizeof(struct xseg_share) */
    const struct xseg_share_header *header; /* with the numbers behind it */
    size_t header_bytes;                    /* of it */
    const int *fd;                          /* a descriptor for each page, by address */
    size_t fd_count;
};
/* clang-format off */
#define XSEG_SHARE_INIT {sizeof(struct xseg_share), NULL, 0, NULL, 0}
/* clang-format on */

/**
 * Share a live block: say what others need to import it.
 *
 * From here until as many calls of xseg_export_close(), the pages beneath the block are held as by a
 * pin: they are not given back, moved or paused, even when the block is freed.  The importers of a
 * freed block then see the block that takes its place.  Pages that were ever exported never go to
 * another pool.  When they go back to the driver, importers keep the memory, and the device is without
 * it until they are done.
 *
 * @param ptr   the start of a live block of an expandable segment, in a pool that is exportable
 * @param kind  XSEG_SHARE_FD; or XSEG_SHARE_FABRIC, for hosts that one NVLink fabric connects, where the driver
 *              makes such handles (the first exportable pool of a device tries it).  They hold no memory:
 *              importers have to map it before the export is closed and the memory goes back
 * @param out   the header and the descriptors, which are closed on exec; the caller ends it with
 *              xseg_share_end(), which may be as soon as they are sent: open descriptors hold memory
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_NOT_LIVE     no live block starts at ptr
 *          XSEG_ERR_UNSUPPORTED  the block's pool is not exportable, the segment is classic, or the device
 *                                has no fabric handles
 *          XSEG_ERR_PAUSED       the block's pool is paused
 *          XSEG_ERR_DRIVER       the driver gives no descriptor; see `ulimit -n`
 *          XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY, XSEG_ERR_BUSY (exported 2^32 - 1 times already),
 *          XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 *          On an error nothing has changed, and no descriptor is left open.
 * Threads: any; waits for growths and trims of the device
 * Cost:    one export a page; the device's UUID the first time.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_export(struct xseg_allocator *allocator, void *ptr,
                                                enum xseg_share_kind kind, struct xseg_share *out);

/**
 * Take an export back, once for each xseg_export() and xseg_export_text() of that address.  The block may be
 * gone; others may still use the memory, and keep it.
 *
 * Of several exports of one address those by xseg_export() end first, then those by text, of each the oldest: as
 * long as any export of a text is open, that text is good.
 *
 * Returns: XSEG_OK, XSEG_ERR_NOT_LIVE (nothing is exported there), XSEG_ERR_ARGUMENT, XSEG_ERR_FORKED
 * Threads: any; waits for growths and trims of the device
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_export_close(struct xseg_allocator *allocator, void *ptr);

/**
 * End a share that xseg_export() or xseg_share_receive() filled in: descriptors are closed, and host
 * memory freed.  The share is as XSEG_SHARE_INIT then.  One of NULL, or without anything in it, is fine.
 */
XSEG_API void xseg_share_end(struct xseg_share *share);

/**
 * Map the memory of a share into this process; into addresses of exactly its pages.  It may be the
 * process that exported it.
 *
 * Imported memory is nobody's block: it is not in the statistics of blocks and of reserved bytes, only in
 * imported_bytes, and not in walks.
 *
 * @param device  CUDA ordinal, here, of the device that has the memory; with XSEG_SHARE_FABRIC, of the one that
 *                uses it
 * @param share   as it was received; not changed, and not needed any more afterwards.  The header may lie
 *                in memory that others write to: it is copied once, and only the copy is looked at
 * @param out     the block; xseg_import_close() ends it
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_ARGUMENT     the header is foreign, of another version, too short, or contradicts
 *                                itself or the number of descriptors: the block has to be aligned to
 *                                512 bytes, and to lie on each of the pages and on nothing else; a
 *                                descriptor is not open; the memory is another device's
 *          XSEG_ERR_UNSUPPORTED  the device has no virtual memory management
 *          XSEG_ERR_NO_ADDRESSES, XSEG_ERR_NO_MEMORY, XSEG_ERR_HOST_MEMORY
 *          XSEG_ERR_DRIVER       also: a descriptor stands for something else
 *          XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 *          On an error nothing has changed.
 * Threads: any; waits for growths and trims of the device
 * Cost:    one reserve; one import, map and release a page; one set-access (one a page where the driver
 *          wants that); the device's UUID the first time.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_import(struct xseg_allocator *allocator, int device,
                                                const struct xseg_share *share, void **out);

/**
 * Unmap imported memory.  Nobody is waited for: synchronise first the streams that used it.  What the
 * driver does not take back is tried again at the next trim.
 *
 * @param ptr  what xseg_import() gave
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_NOT_LIVE  nothing is imported there
 *          XSEG_ERR_BUSY      a capture is under way on the device
 *          XSEG_ERR_ARGUMENT, XSEG_ERR_FORKED
 * Threads: any; waits for growths and trims of the device
 * Cost:    one unmap (one a page where the driver wants that), one address-free.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_import_close(struct xseg_allocator *allocator, void *ptr);

/** Room for any text of xseg_export_text(), the zero behind it included. */
#define XSEG_SHARE_TEXT_BYTES 128u

/**
 * Share a live block by a text.  The text is all that an importer needs, if it runs on the same machine and as the
 * same user: no descriptors have to be sent to it.  The text is printable ASCII.  It is a key: every process of the
 * user that has it can import the block.
 *
 * A text is an export, as those of xseg_export() are.  Each call of this function needs an xseg_export_close(), and
 * after the last of them the text is refused.  As long as the block does not change, exporting it again gives the
 * same text.  Until the last close the memory stays, and this process has a descriptor open for each page, and one
 * more.
 *
 * An importer takes the descriptors out of this process.  Some systems refuse that (ptrace_scope, containers,
 * seccomp); there the importer asks a thread of this process, at an abstract Unix socket.  The first text of an
 * allocator starts that thread, and no other function does.  It answers processes of the same user only, calls no
 * driver, and handles no signals.  It runs until xseg_close(), which waits for a request that is being answered, 4
 * seconds at most.
 *
 * @param ptr     as for xseg_export(); exportable:True makes the default pool's memory exportable
 * @param text    where the text goes; NULL to ask for `needed` alone, and nothing is exported
 * @param bytes   size of text: XSEG_SHARE_TEXT_BYTES do; 0 with NULL
 * @param needed  NULL; or set to the bytes of the text, the zero behind it included.  Where no text was written it is
 *                set to XSEG_SHARE_TEXT_BYTES, which is enough for any text
 *
 * Returns: XSEG_OK; as xseg_export();
 *          XSEG_ERR_ARGUMENT     also: text is too small
 *          XSEG_ERR_FILE         the system gives no descriptor, memory file or socket; see `ulimit -n`
 *          XSEG_ERR_HOST_MEMORY  also: it gives no thread
 *          On an error nothing has changed, but the thread may have been started.
 * Threads: any; waits for growths and trims of the device
 * Cost:    one export a page; the device's UUID the first time.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_export_text(struct xseg_allocator *allocator, void *ptr,
                                                     char *text, size_t bytes, size_t *needed);

/**
 * Import what a text shares.  The descriptors are taken out of the exporter with pidfd_getfd(); where the system
 * refuses that, its socket is asked, and waited for as by xseg_share_receive().  A text of a process that has
 * ended, or closed the export, is refused, also if the number of the process or of a descriptor is another one's
 * by now.
 *
 * @param device  as for xseg_import()
 * @param text    what xseg_export_text() wrote, all of it
 * @param out     as for xseg_import()
 *
 * Returns: XSEG_OK; as xseg_import();
 *          XSEG_ERR_ARGUMENT  also: it is no such text, and which part of it is wrong
 *          XSEG_ERR_FILE      the exporter has ended, has closed the export, is another user's or in another
 *                             container; or it is late, or the descriptors are too many (`ulimit -n`)
 *          On an error nothing has changed.
 * Threads: any; waits for growths and trims of the device
 * Cost:    as xseg_import().
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_import_text(struct xseg_allocator *allocator, int device,
                                                     const char *text, void **out);

/**
 * Send a share over a Unix stream socket (AF_UNIX, SOCK_STREAM), or receive one, in as many messages as
 * its descriptors need.  Nothing of it refers to the device.
 *
 * The other side is waited for, but not for ever: the whole call gives up after the time that the socket's
 * SO_SNDTIMEO (send) or SO_RCVTIMEO (receive) names, or after 10 seconds where none is set.  That holds
 * for sockets that do not block as well.  A share of more pages than its block can lie on, or of more
 * descriptors than the process may have, is refused as soon as its header has come, before room is made
 * for it.
 *
 * @param out  ended by xseg_share_end(); its descriptors are new ones, closed on exec
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_FILE      the socket broke or ended, the other side is late, or the descriptors are
 *                             too many (`ulimit -n`); what else the socket carries is of no use then
 *          XSEG_ERR_ARGUMENT  what came is no share, or one of another version; also as xseg_import()
 *          XSEG_ERR_HOST_MEMORY
 *          On an error `out` is as it was, and no descriptor is left open.
 * Threads: any; one at a time for each socket and direction.
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_share_send(int socket, const struct xseg_share *share);
XSEG_API XSEG_NODISCARD xseg_status xseg_share_receive(int socket, struct xseg_share *out);

#ifdef __cplusplus
}
#endif

#endif
