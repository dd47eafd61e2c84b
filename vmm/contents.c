/* SPDX-License-Identifier: MIT */
#include "vmm/contents.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/base/mutex.h"

/* The maximum size of a pinned buffer: a small part of the memory of a host.  The value was not
 * measured. */
#define MAX_BUFFER_BYTES XSEG_GIB

/* The size of the buffer of a file: large enough that the disk, not the copy, limits the
 * throughput.  The value was not measured. */
#define FILE_BUFFER_BYTES (64 * XSEG_MIB)

/* Size and alignment of the smallest hole in the file: the block size of most file systems. */
#define BLOCK_BYTES 4096u

static xseg_status fail_file_operation(const struct xseg_contents *contents, const char *operation)
{
    return xseg_fail(XSEG_ERR_FILE, "file cannot be %s, \"%s\", %s", operation, contents->path,
                     errno != 0 ? strerror(errno) : "file has been truncated");
}

/* --- Pinned memory. --- */

/* Free all buffers.  The caller holds the device memory lock. */
static void free_buffers(struct xseg_contents *contents)
{
    XSEG_ASSERT(contents->buffers == 0 || xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (size_t i = 0; i < contents->buffers; i++)
        (void)xseg_unreleased_release(contents->unreleased,
                                      (struct xseg_unreleased){XSEG_UNRELEASED_HOST,
                                                               (uintptr_t)contents->buffer[i],
                                                               contents->buffer_bytes, 0});
    free(contents->buffer);
    contents->buffer = NULL;
    contents->buffers = 0;
}

/* Allocate the buffers.  After a failure the buffers that were allocated remain: their release can
 * add a record to `unreleased`, and the caller does not hold the device memory lock. */
static xseg_status alloc_buffers(struct xseg_contents *contents, uint64_t bytes)
{
    const size_t count = (size_t)((bytes + contents->buffer_bytes - 1) / contents->buffer_bytes);

    XSEG_ASSERT(contents->buffers == 0);
    free(contents->buffer);
    contents->buffer = calloc(count, sizeof(*contents->buffer));
    if (contents->buffer == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY,
                         "out of host memory, table of pinned buffers for %" PRIu64 " bytes",
                         bytes);
    for (size_t i = 0; i < count; i++) {
        const xseg_status status = xseg_driver_host_alloc(
            contents->context, xseg_min(contents->buffer_bytes, bytes - i * contents->buffer_bytes),
            &contents->buffer[i]);

        if (status != XSEG_OK)
            return status;
        contents->buffers = i + 1;
    }
    return XSEG_OK;
}

/* --- The file. --- */

/* Open the directory of the path, and set the name of the file.  O_PATH requires no read
 * permission. */
static int open_directory(struct xseg_contents *contents)
{
    char *slash = strrchr(contents->path, '/');
    const char *folder = slash == NULL ? "." : slash == contents->path ? "/" : contents->path;

    contents->name = slash == NULL ? contents->path : slash + 1;
    if (folder == contents->path)
        *slash = '\0';
    const int directory = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder == contents->path)
        *slash = '/';
    return directory;
}

/* Create the file.  Later operations find the file through its directory, because after a chdir()
 * or a rename of a directory the path may lead to another file. */
static xseg_status create_file(struct xseg_contents *contents, const char *path)
{
    contents->path = strdup(path);
    if (contents->path == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, file name");
    errno = 0;
    contents->directory = open_directory(contents);
    if (contents->directory < 0)
        return fail_file_operation(contents, "created");
    contents->file = openat(contents->directory, contents->name,
                            O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (contents->file >= 0 && ftruncate(contents->file, (off_t)contents->bytes) == 0)
        return XSEG_OK;
    return fail_file_operation(contents, "created");
}

/* Whether the name still leads to the created file.  The file is open, so no other file has its
 * inode number. */
static bool is_created_file(const struct xseg_contents *contents)
{
    struct stat created, current;

    return fstat(contents->file, &created) == 0 &&
           fstatat(contents->directory, contents->name, &current, AT_SYMLINK_NOFOLLOW) == 0 &&
           created.st_dev == current.st_dev && created.st_ino == current.st_ino;
}

static void remove_file(struct xseg_contents *contents)
{
    if (contents->file >= 0) {
        if (is_created_file(contents))
            (void)unlinkat(contents->directory, contents->name, 0);
        (void)close(contents->file);
    }
    if (contents->directory >= 0)
        (void)close(contents->directory);
    contents->file = contents->directory = -1;
    free(contents->path);
    contents->path = NULL;
    contents->name = NULL;
}

static xseg_status write_all(struct xseg_contents *contents, const char *data, uint64_t bytes,
                             uint64_t offset)
{
    while (bytes > 0) {
        errno = 0;
        const ssize_t bytes_written = pwrite(contents->file, data, bytes, (off_t)offset);

        if (bytes_written < 0 && errno == EINTR)
            continue;
        if (bytes_written <= 0)
            return fail_file_operation(contents, "written");
        data += bytes_written;
        offset += (uint64_t)bytes_written;
        bytes -= (uint64_t)bytes_written;
    }
    return XSEG_OK;
}

static xseg_status read_all(struct xseg_contents *contents, char *buffer, uint64_t bytes,
                            uint64_t offset)
{
    while (bytes > 0) {
        errno = 0;
        const ssize_t bytes_read = pread(contents->file, buffer, bytes, (off_t)offset);

        if (bytes_read < 0 && errno == EINTR)
            continue;
        if (bytes_read <= 0)
            return fail_file_operation(contents, "read");
        buffer += bytes_read;
        offset += (uint64_t)bytes_read;
        bytes -= (uint64_t)bytes_read;
    }
    return XSEG_OK;
}

static bool is_zero(const char *block, uint64_t bytes)
{
    return block[0] == 0 && memcmp(block, block + 1, bytes - 1) == 0;
}

/* Return the size of the extent at `at` that has only blocks of zeros, or only blocks with data. */
static uint64_t measure_extent(const char *buffer, uint64_t at, uint64_t bytes, bool *is_hole)
{
    uint64_t end = at + xseg_min(BLOCK_BYTES, bytes - at);

    *is_hole = is_zero(buffer + at, end - at);
    while (end < bytes) {
        const uint64_t block = xseg_min(BLOCK_BYTES, bytes - end);

        if (is_zero(buffer + end, block) != *is_hole)
            break;
        end += block;
    }
    return end - at;
}

static xseg_status write_buffer(struct xseg_contents *contents, uint64_t offset, uint64_t bytes)
{
    const char *buffer = contents->buffer[0];
    xseg_status status = XSEG_OK;
    bool is_hole = false;

    for (uint64_t at = 0, length; status == XSEG_OK && at < bytes; at += length) {
        length = measure_extent(buffer, at, bytes, &is_hole);
        if (!is_hole)
            status = write_all(contents, buffer + at, length, offset + at);
    }
    return status;
}

static xseg_status save_to_file(struct xseg_contents *contents, uint64_t offset, uint64_t address,
                                uint64_t bytes)
{
    xseg_status status = XSEG_OK;

    for (uint64_t at = 0; status == XSEG_OK && at < bytes; at += FILE_BUFFER_BYTES) {
        const uint64_t chunk = xseg_min(FILE_BUFFER_BYTES, bytes - at);

        status = xseg_driver_copy_to_host(contents->context, contents->buffer[0], address + at,
                                          chunk, contents->stream);
        if (status == XSEG_OK)
            status = xseg_contents_wait(contents);
        if (status == XSEG_OK)
            status = write_buffer(contents, offset + at, chunk);
    }
    return status;
}

/* Find the next extent of the file with data from *offset on: set *offset to its start, and return
 * its end.  A file system without SEEK_DATA reports one extent of data. */
static uint64_t find_data(const struct xseg_contents *contents, uint64_t *offset, uint64_t end)
{
    const off_t data = lseek(contents->file, (off_t)*offset, SEEK_DATA);

    if (data < 0 && errno == ENXIO)
        *offset = end;
    else if (data >= 0)
        *offset = xseg_min((uint64_t)data, end);
    const off_t hole = *offset < end ? lseek(contents->file, (off_t)*offset, SEEK_HOLE) : -1;
    return hole < 0 ? end : xseg_min((uint64_t)hole, end);
}

/* Read an extent of the file to its position in the buffer, and queue its copy to the device. */
static xseg_status load_data(struct xseg_contents *contents, uint64_t window, uint64_t offset,
                             uint64_t end, uint64_t address)
{
    char *buffer = (char *)contents->buffer[0] + (offset - window);
    const xseg_status status = read_all(contents, buffer, end - offset, offset);

    return status == XSEG_OK
               ? xseg_driver_copy_from_host(contents->context, address + (offset - window), buffer,
                                            end - offset, contents->stream)
               : status;
}

static xseg_status load_window(struct xseg_contents *contents, uint64_t offset, uint64_t address,
                               uint64_t bytes)
{
    const uint64_t end = offset + bytes;
    uint64_t at = offset, extent_end = find_data(contents, &at, end);
    xseg_status status = XSEG_OK;

    if (at != offset || extent_end != end)
        status = xseg_driver_fill(contents->context, address, bytes, 0, contents->stream);
    while (status == XSEG_OK && at < end) {
        status = load_data(contents, offset, at, extent_end, address);
        at = extent_end;
        extent_end = find_data(contents, &at, end);
    }
    return status == XSEG_OK ? xseg_contents_wait(contents) : status;
}

/* Check that the file was not truncated, because missing bytes would be loaded as zeros. */
static xseg_status check_file_length(struct xseg_contents *contents)
{
    struct stat info = {0};

    errno = 0;
    return fstat(contents->file, &info) == 0 && (uint64_t)info.st_size >= contents->bytes
               ? XSEG_OK
               : fail_file_operation(contents, "read");
}

static xseg_status load_from_file(struct xseg_contents *contents, uint64_t offset, uint64_t address,
                                  uint64_t bytes)
{
    xseg_status status = check_file_length(contents);

    for (uint64_t at = 0; status == XSEG_OK && at < bytes; at += FILE_BUFFER_BYTES)
        status = load_window(contents, offset + at, address + at,
                             xseg_min(FILE_BUFFER_BYTES, bytes - at));
    return status;
}

/* --- Open, close and copy. --- */

xseg_status xseg_contents_open(struct xseg_contents *contents,
                               struct xseg_unreleased_list *unreleased, xseg_stream stream,
                               enum xseg_keep keep, const char *path, uint64_t bytes)
{
    const bool has_file = keep == XSEG_KEEP_FILE;
    xseg_status status = XSEG_OK;

    *contents = (struct xseg_contents){
        .context = unreleased->context,
        .unreleased = unreleased,
        .stream = stream,
        .keep = keep,
        .bytes = bytes,
        .buffer_bytes = has_file ? FILE_BUFFER_BYTES : MAX_BUFFER_BYTES,
        .directory = -1,
        .file = -1,
    };
    if (has_file)
        status = create_file(contents, path);
    return status == XSEG_OK ? alloc_buffers(contents, has_file ? FILE_BUFFER_BYTES : bytes)
                             : status;
}

void xseg_contents_close(struct xseg_contents *contents)
{
    free_buffers(contents);
    remove_file(contents);
}

xseg_status xseg_contents_save(struct xseg_contents *contents, uint64_t offset, uint64_t address,
                               uint64_t bytes)
{
    xseg_status status = XSEG_OK;

    if (contents->keep == XSEG_KEEP_FILE)
        return save_to_file(contents, offset, address, bytes);
    for (uint64_t at = 0, chunk; status == XSEG_OK && at < bytes; at += chunk) {
        char *buffer = contents->buffer[(offset + at) / MAX_BUFFER_BYTES];

        chunk = xseg_min(MAX_BUFFER_BYTES - (offset + at) % MAX_BUFFER_BYTES, bytes - at);
        status =
            xseg_driver_copy_to_host(contents->context, buffer + (offset + at) % MAX_BUFFER_BYTES,
                                     address + at, chunk, contents->stream);
    }
    return status;
}

xseg_status xseg_contents_load(struct xseg_contents *contents, uint64_t offset, uint64_t address,
                               uint64_t bytes)
{
    xseg_status status = XSEG_OK;

    if (contents->keep == XSEG_KEEP_FILE)
        return load_from_file(contents, offset, address, bytes);
    for (uint64_t at = 0, chunk; status == XSEG_OK && at < bytes; at += chunk) {
        const char *buffer = contents->buffer[(offset + at) / MAX_BUFFER_BYTES];

        chunk = xseg_min(MAX_BUFFER_BYTES - (offset + at) % MAX_BUFFER_BYTES, bytes - at);
        status = xseg_driver_copy_from_host(contents->context, address + at,
                                            buffer + (offset + at) % MAX_BUFFER_BYTES, chunk,
                                            contents->stream);
    }
    return status;
}

xseg_status xseg_contents_wait(struct xseg_contents *contents)
{
    return xseg_driver_stream_synchronize(contents->context, contents->stream);
}

void xseg_contents_release_buffer(struct xseg_contents *contents)
{
    if (contents->keep == XSEG_KEEP_FILE)
        free_buffers(contents);
}

xseg_status xseg_contents_acquire_buffer(struct xseg_contents *contents)
{
    return contents->keep == XSEG_KEEP_FILE && contents->buffers == 0
               ? alloc_buffers(contents, FILE_BUFFER_BYTES)
               : XSEG_OK;
}
