/* SPDX-License-Identifier: MIT */
#include "src/base/shared_budget.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/base/mutex.h"

#define MAGIC   "xseg budget"
#define VERSION 3u /* another version has another layout */

#define HEADER_LOCK 0 /* the byte of the header lock */

/* The interval and the number of attempts to acquire the header lock. */
#define HEADER_WAIT_NS 10000000
#define HEADER_TRIES   200u

/* The number of attempts to open a path at which a file is repeatedly created and removed. */
#define OPEN_TRIES 100u

struct header {
    char magic[16];
    uint32_t version, reserved;
    uint64_t bytes; /* of the file */
};

_Static_assert(sizeof(struct header) == 32, "the layout is the same for all processes");

/* The open files of the process, which a forked child closes. */
static struct xseg_mutex files_lock = {.os = PTHREAD_MUTEX_INITIALIZER, .rank = XSEG_RANK_LEAF};
static struct xseg_list files = {&files, &files};
static pthread_once_t handlers_once = PTHREAD_ONCE_INIT;
static int handlers_error;

static void before_fork(void) XSEG_ACQUIRES(files_lock)
{
    xseg_mutex_lock(&files_lock);
}

static void after_fork(void) XSEG_RELEASES(files_lock)
{
    xseg_mutex_unlock(&files_lock);
}

static bool is_same_inode(const struct xseg_shared_budget_file *file, const struct stat *status)
{
    return status->st_dev == file->device && status->st_ino == file->inode;
}

bool xseg_shared_budget_file_is_intact(const struct xseg_shared_budget_file *file)
{
    struct stat status;

    return file->is_own && fstat(file->descriptor, &status) == 0 && is_same_inode(file, &status);
}

/* Close the descriptor, if it still refers to the file. */
static void close_file(struct xseg_shared_budget_file *file) XSEG_REQUIRES(files_lock)
{
    if (xseg_shared_budget_file_is_intact(file))
        (void)close(file->descriptor);
    file->is_own = false;
    xseg_list_remove(&file->node);
}

/* The locks belong to the parent, and must end with it (BUDGET-FILE-4). */
static void after_fork_in_child(void) XSEG_RELEASES(files_lock)
{
    while (!xseg_list_is_empty(&files))
        close_file(XSEG_LIST_FIRST(&files, struct xseg_shared_budget_file, node));
    xseg_mutex_unlock(&files_lock);
}

static void register_fork_handlers(void)
{
    handlers_error = pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

/* Advice for an error of open(). */
static const char *open_advice(int error)
{
    switch (error) {
    case ENOENT:
        return "create its directory, or use another path";
    case ELOOP:
        return "if the path is a symbolic link, use its target";
    case EACCES:
    case EPERM:
        return "allow this process to read and write the file, or use another path";
    default:
        return "use another path";
    }
}

/* Advice for an error of open(), for a process that only reads the file. */
static const char *open_to_read_advice(int error)
{
    switch (error) {
    case ENOENT:
        return "check the name, or start a process that shares this budget";
    case EACCES:
    case EPERM:
        return "allow this process to read the file";
    default:
        return open_advice(error);
    }
}

/* O_NONBLOCK, because opening a pipe would wait. */
static int open_to_read(const char *path)
{
    return open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
}

/* Open the file, or create it; -1 on failure.  O_CREAT is used only if the file does not exist: in a sticky directory that
 * every user can write, the kernel may reject O_CREAT for files of other users (fs.protected_regular). */
static int open_or_create(const char *path)
{
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;
    int descriptor = -1;

    for (unsigned tries = 0; tries < OPEN_TRIES; tries++) {
        descriptor = open(path, flags);
        if (descriptor >= 0 || errno != ENOENT)
            break;
        descriptor = open(path, flags | O_CREAT | O_EXCL, 0660);
        if (descriptor >= 0 || errno != EEXIST)
            break;
    }
    return descriptor;
}

/* Open the file, and add it to the list that fork handlers use.  Returns 0 or an errno. */
static int open_and_register(struct xseg_shared_budget_file *file,
                             int (*open_path)(const char *path)) XSEG_REQUIRES(files_lock)
{
    struct stat status;

    file->descriptor = open_path(file->path);
    if (file->descriptor < 0)
        return errno;
    if (fstat(file->descriptor, &status) != 0) {
        const int error = errno;

        (void)close(file->descriptor);
        return error;
    }
    file->device = status.st_dev;
    file->inode = status.st_ino;
    file->is_own = true;
    xseg_list_insert(&files, &file->node);
    return 0;
}

static struct flock make_flock(short type, off_t first, off_t count)
{
    struct flock lock;

    memset(&lock, 0, sizeof(lock));
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = first;
    lock.l_len = count;
    return lock;
}

static int set_lock(const struct xseg_shared_budget_file *file, short type, off_t byte)
{
    const struct flock lock = make_flock(type, byte, 1);

    if (fcntl(file->descriptor, F_OFD_SETLK, &lock) == 0)
        return 0;
    return errno == EACCES ? EAGAIN : errno;
}

int xseg_shared_budget_file_lock(const struct xseg_shared_budget_file *file, off_t byte)
{
    return set_lock(file, F_WRLCK, byte);
}

int xseg_shared_budget_file_unlock(const struct xseg_shared_budget_file *file, off_t byte)
{
    return set_lock(file, F_UNLCK, byte);
}

xseg_status xseg_shared_budget_file_fail_to_lock(const struct xseg_shared_budget_file *file,
                                                 int error)
{
    return xseg_fail(
        XSEG_ERR_FILE,
        "shared budget file cannot be locked, \"%s\" (%s); use a path on a local file system",
        file->path, strerror(error));
}

/* Check that kind, mode and links are those of a shared budget file. */
static xseg_status check_kind(const struct xseg_shared_budget_file *file, const struct stat *status)
{
    if (!S_ISREG(status->st_mode))
        return xseg_fail(XSEG_ERR_FILE,
                         "shared budget file is not a regular file, \"%s\"; use another path",
                         file->path);
    if ((status->st_mode & S_IWOTH) != 0)
        return xseg_fail(XSEG_ERR_FILE,
                         "shared budget file is writable by every user, \"%s\"; remove that "
                         "permission, or use another path",
                         file->path);
    if (status->st_nlink > 1)
        return xseg_fail(XSEG_ERR_FILE,
                         "shared budget file has a second name (a hard link), \"%s\"; remove the "
                         "other name, or use another path",
                         file->path);
    return XSEG_OK;
}

static bool is_valid_header(const struct header *header, const struct stat *status)
{
    return memcmp(header->magic, MAGIC, sizeof(MAGIC)) == 0 && header->version == VERSION &&
           header->bytes == (uint64_t)XSEG_SHARED_BUDGET_FILE_BYTES &&
           status->st_size == XSEG_SHARED_BUDGET_FILE_BYTES;
}

static xseg_status fail_to_read(const struct xseg_shared_budget_file *file, int error)
{
    return xseg_fail(XSEG_ERR_FILE,
                     "shared budget file cannot be read, \"%s\" (%s); use another path", file->path,
                     strerror(error));
}

/* Read the header, zeros if the file is empty, and then the status: after a valid header, the size is final. */
static xseg_status read_header(const struct xseg_shared_budget_file *file, struct header *header,
                               struct stat *status)
{
    memset(header, 0, sizeof(*header));
    const ssize_t bytes_read = pread(file->descriptor, header, sizeof(*header), 0);
    const int error = errno;
    const bool has_status = fstat(file->descriptor, status) == 0;
    const xseg_status checked = has_status ? check_kind(file, status) : XSEG_OK;
    if (checked != XSEG_OK)
        return checked;
    if (has_status && bytes_read >= 0)
        return XSEG_OK;
    return fail_to_read(file, has_status ? error : errno);
}

static bool is_zeroed(const unsigned char *bytes, size_t count)
{
    return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* Whether the file consists of zeros, and is not larger than a shared budget file.  The header's page is read last. */
static xseg_status check_blank(const struct xseg_shared_budget_file *file,
                               const struct stat *status, bool *is_blank)
{
    unsigned char bytes[XSEG_SHARED_BUDGET_FILE_HEADER];
    const off_t step = (off_t)sizeof(bytes);

    *is_blank = status->st_size <= XSEG_SHARED_BUDGET_FILE_BYTES;
    for (off_t end = status->st_size; *is_blank && end > 0;) {
        const off_t offset = (end - 1) / step * step;
        const ssize_t bytes_read = pread(file->descriptor, bytes, sizeof(bytes), offset);

        if (bytes_read < 0)
            return fail_to_read(file, errno);
        *is_blank = is_zeroed(bytes, (size_t)bytes_read);
        end = offset;
    }
    return XSEG_OK;
}

static xseg_status fail_invalid(const struct xseg_shared_budget_file *file,
                                const struct header *header, const struct stat *status)
{
    if (memcmp(header->magic, MAGIC, sizeof(MAGIC)) != 0)
        return xseg_fail(XSEG_ERR_FILE,
                         "file is not a shared budget file and remains unchanged, \"%s\"; use "
                         "another path",
                         file->path);
    if (header->version != VERSION)
        return xseg_fail(
            XSEG_ERR_FILE,
            "version of the shared budget file does not match, %u in \"%s\" and %u in this "
            "library; "
            "remove the file when no process uses it, use another path, or use one version of the "
            "library",
            header->version, file->path, VERSION);
    return xseg_fail(XSEG_ERR_FILE,
                     "size of the shared budget file is wrong, %lld bytes instead of %lld in "
                     "\"%s\"; remove the file when no process uses it, or use another path",
                     (long long)status->st_size, (long long)XSEG_SHARED_BUDGET_FILE_BYTES,
                     file->path);
}

/* Set mode and size of a file of zeros.  Only the owner can change the mode.  Returns 0 or an errno. */
static int allocate_file(const struct xseg_shared_budget_file *file, const struct stat *status)
{
    if (status->st_uid == geteuid() && fchmod(file->descriptor, 0660) != 0)
        return errno;
    return posix_fallocate(file->descriptor, 0, XSEG_SHARED_BUDGET_FILE_BYTES);
}

/* Complete a file of zeros that has its size.  Returns 0 or an errno. */
static int write_header(const struct xseg_shared_budget_file *file)
{
    const struct header header = {
        .magic = MAGIC,
        .version = VERSION,
        .bytes = (uint64_t)XSEG_SHARED_BUDGET_FILE_BYTES,
    };

    errno = ENOSPC;
    return pwrite(file->descriptor, &header, sizeof(header), 0) == (ssize_t)sizeof(header) ? 0
                                                                                           : errno;
}

/* Determine whether the file has no header yet.  Returns XSEG_OK only if the file is valid, or can be initialized.  Without
 * the header lock, the function can fail while another process initializes the file. */
static xseg_status inspect_file(const struct xseg_shared_budget_file *file, struct stat *status,
                                bool *is_incomplete)
{
    struct header header;
    bool is_blank = false;

    xseg_status checked = read_header(file, &header, status);
    if (checked != XSEG_OK)
        return checked;
    *is_incomplete = !is_valid_header(&header, status);
    if (*is_incomplete)
        checked = check_blank(file, status, &is_blank);
    if (checked != XSEG_OK)
        return checked;
    return !*is_incomplete || is_blank ? XSEG_OK : fail_invalid(file, &header, status);
}

/* Initialize a file, under the header lock, unless another process has done that.  The size is set first, and the file is
 * checked again, because programs that do not use the locks can write to it at any time (BUDGET-FILE-6). */
static xseg_status initialize_file(const struct xseg_shared_budget_file *file)
{
    struct stat status;
    bool is_incomplete = false;

    xseg_status checked = inspect_file(file, &status, &is_incomplete);
    if (checked != XSEG_OK || !is_incomplete)
        return checked;
    int error = allocate_file(file, &status);
    if (error == 0) {
        checked = inspect_file(file, &status, &is_incomplete);
        if (checked != XSEG_OK)
            return checked;
        error = write_header(file);
    }
    if (error == 0)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_FILE,
                     "shared budget file cannot be created, \"%s\" (%s); free %lld bytes on its "
                     "file system, or use another path",
                     file->path, strerror(error), (long long)XSEG_SHARED_BUDGET_FILE_BYTES);
}

static xseg_status wait_and_initialize(const struct xseg_shared_budget_file *file)
{
    const struct timespec wait = {.tv_nsec = HEADER_WAIT_NS};
    int error = xseg_shared_budget_file_lock(file, HEADER_LOCK);

    for (unsigned tries = 1; error == EAGAIN && tries < HEADER_TRIES; tries++) {
        (void)nanosleep(&wait, NULL);
        error = xseg_shared_budget_file_lock(file, HEADER_LOCK);
    }
    if (error == EAGAIN)
        return xseg_fail(XSEG_ERR_BUSY,
                         "shared budget file is being created by another process, \"%s\"; continue "
                         "or end that process if it is stopped, and try again",
                         file->path);
    if (error != 0)
        return xseg_shared_budget_file_fail_to_lock(file, error);
    const xseg_status initialized = initialize_file(file);
    (void)xseg_shared_budget_file_unlock(file, HEADER_LOCK);
    return initialized;
}

/* A valid header needs no lock, because it never changes (BUDGET-FILE-1); an invalid one may be incomplete. */
static xseg_status check_header(const struct xseg_shared_budget_file *file)
{
    struct header header;
    struct stat status;

    const xseg_status checked = read_header(file, &header, &status);
    if (checked != XSEG_OK)
        return checked;
    return is_valid_header(&header, &status) ? XSEG_OK : wait_and_initialize(file);
}

/* As check_header(), but without writing. */
static xseg_status check_header_to_read(const struct xseg_shared_budget_file *file)
{
    struct stat status;
    bool is_incomplete = false;

    xseg_status checked = inspect_file(file, &status, &is_incomplete);
    /* Another process may have written the header between the reads; a second check sees it. */
    if (checked != XSEG_OK)
        checked = inspect_file(file, &status, &is_incomplete);
    if (checked != XSEG_OK || !is_incomplete)
        return checked;
    return xseg_fail(XSEG_ERR_BUSY, "shared budget file is still being created, \"%s\"; try again",
                     file->path);
}

/* Find the locks in [first, end) that other processes hold.  F_OFD_GETLK returns an arbitrary lock of the range, so the
 * ranges on both sides of it are searched recursively. */
static int find_held_in_range(const struct xseg_shared_budget_file *file, off_t base, off_t first,
                              off_t end, uint64_t *held)
{
    if (first >= end)
        return 0;
    struct flock lock = make_flock(F_WRLCK, first, end - first);
    if (fcntl(file->descriptor, F_OFD_GETLK, &lock) != 0)
        return errno;
    if (lock.l_type == F_UNLCK)
        return 0;
    const off_t held_start = lock.l_start > first ? lock.l_start : first;
    const off_t lock_end = lock.l_start + lock.l_len;
    const off_t held_end = lock.l_len == 0 || lock_end > end ? end : lock_end;
    if (held_start >= held_end)
        return EIO; /* that lock is not in the range */
    for (off_t byte = held_start; byte < held_end; byte++)
        *held |= UINT64_C(1) << (byte - base);
    const int error = find_held_in_range(file, base, first, held_start, held);
    return error != 0 ? error : find_held_in_range(file, base, held_end, end, held);
}

/* The functions that open and check a file, and return the advice if open() fails. */
struct open_mode {
    int (*open)(const char *path);
    const char *(*advise)(int error);
    xseg_status (*check)(const struct xseg_shared_budget_file *file);
};

static xseg_status open_checked(struct xseg_shared_budget_file *file, const char *path,
                                const struct open_mode *mode)
{
    const size_t length = strlen(path);

    memset(file, 0, sizeof(*file));
    if (length == 0 || length >= sizeof(file->path))
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "path of the shared budget file is %s, %zu bytes; use 1 to %u",
                         length == 0 ? "empty" : "too long", length, XSEG_SHARED_BUDGET_PATH - 1);
    memcpy(file->path, path, length);
    (void)pthread_once(&handlers_once, register_fork_handlers);
    if (handlers_error != 0)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, fork handlers");
    xseg_mutex_lock(&files_lock);
    const int error = open_and_register(file, mode->open);
    xseg_mutex_unlock(&files_lock);
    if (error != 0)
        return xseg_fail(XSEG_ERR_FILE, "shared budget file cannot be opened, \"%s\" (%s); %s",
                         file->path, strerror(error), mode->advise(error));
    const xseg_status checked = mode->check(file);
    if (checked != XSEG_OK)
        xseg_shared_budget_file_close(file);
    return checked;
}

xseg_status xseg_shared_budget_file_open(struct xseg_shared_budget_file *file, const char *path)
{
    static const struct open_mode for_sharing = {open_or_create, open_advice, check_header};

    return open_checked(file, path, &for_sharing);
}

xseg_status xseg_shared_budget_file_open_to_read(struct xseg_shared_budget_file *file,
                                                 const char *path)
{
    static const struct open_mode for_reading = {open_to_read, open_to_read_advice,
                                                 check_header_to_read};

    return open_checked(file, path, &for_reading);
}

void xseg_shared_budget_file_close(struct xseg_shared_budget_file *file)
{
    if (!file->is_own)
        return;
    xseg_mutex_lock(&files_lock);
    close_file(file);
    xseg_mutex_unlock(&files_lock);
}

/* Whether the path still leads to the file.  True for a relative path, which depends on the working directory, and if a
 * directory of the path cannot be searched. */
static bool is_path_intact(const struct xseg_shared_budget_file *file)
{
    struct stat status;

    if (file->path[0] != '/')
        return true;
    if (lstat(file->path, &status) == 0)
        return is_same_inode(file, &status);
    return errno != ENOENT && errno != ENOTDIR;
}

/* Check the descriptor, and the status of the file. */
static xseg_status check_status(const struct xseg_shared_budget_file *file, struct stat *status)
{
    if (fstat(file->descriptor, status) != 0 || !is_same_inode(file, status))
        return xseg_fail(XSEG_ERR_FILE,
                         "descriptor %d of the shared budget file has been closed by the program, "
                         "\"%s\"; close only descriptors that the program has opened",
                         file->descriptor, file->path);
    if (status->st_nlink == 0)
        return xseg_fail(XSEG_ERR_FILE, "shared budget file has been removed, \"%s\"", file->path);
    return check_kind(file, status);
}

/* Set the error message for a file that was valid before, of whose header `bytes_read` bytes were read. */
static xseg_status fail_replaced(const struct xseg_shared_budget_file *file,
                                 const struct header *header, size_t bytes_read,
                                 const struct stat *status)
{
    const bool has_magic = memcmp(header->magic, MAGIC, xseg_min(bytes_read, sizeof(MAGIC))) == 0;

    if (status->st_size == XSEG_SHARED_BUDGET_FILE_BYTES || !has_magic)
        return fail_invalid(file, header, status);
    return xseg_fail(
        XSEG_ERR_FILE,
        "size of the shared budget file has changed to %lld bytes, \"%s\"; remove the file",
        (long long)status->st_size, file->path);
}

xseg_status xseg_shared_budget_file_check(const struct xseg_shared_budget_file *file)
{
    struct header header = {.version = 0};
    struct stat status;

    if (!file->is_own)
        return xseg_fail(XSEG_ERR_FORKED,
                         "shared budget file is closed, or belongs to the parent process");
    const bool is_intact = is_path_intact(file);
    const xseg_status checked = check_status(file, &status);
    if (checked != XSEG_OK)
        return checked;
    if (!is_intact)
        return xseg_fail(XSEG_ERR_FILE, "shared budget file has been renamed or replaced, \"%s\"",
                         file->path);
    const ssize_t bytes_read = pread(file->descriptor, &header, sizeof(header), 0);
    if (bytes_read < 0)
        return fail_to_read(file, errno);
    return is_valid_header(&header, &status)
               ? XSEG_OK
               : fail_replaced(file, &header, (size_t)bytes_read, &status);
}

int xseg_shared_budget_file_find_held(const struct xseg_shared_budget_file *file, off_t byte,
                                      unsigned count, uint64_t *held)
{
    *held = 0;
    return find_held_in_range(file, byte, byte, byte + (off_t)count, held);
}
