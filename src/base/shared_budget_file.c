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

#define MAGIC   "xseg ledger"
#define VERSION 3u /* another version has another layout */

#define HEADER_LOCK 0 /* the byte that stands for it */

/* How long, and how often, a process waits for another one that writes the header. */
#define HEADER_WAIT_NS 10000000
#define HEADER_TRIES   200u

/* How often a file that comes and goes at a path is gone after. */
#define OPEN_TRIES 100u

struct header {
    char magic[16];
    uint32_t version, reserved;
    uint64_t bytes; /* of the file */
};

_Static_assert(sizeof(struct header) == 32, "the layout is the same for all processes");

/* The process's open files, for the child of a fork. */
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

static bool is_same(const struct xseg_shared_budget_file *file, const struct stat *status)
{
    return status->st_dev == file->device && status->st_ino == file->inode;
}

bool xseg_shared_budget_file_is_intact(const struct xseg_shared_budget_file *file)
{
    struct stat status;

    return file->is_own && fstat(file->descriptor, &status) == 0 && is_same(file, &status);
}

/* Close the descriptor, if it is the ledger's still. */
static void let_go(struct xseg_shared_budget_file *file) XSEG_REQUIRES(files_lock)
{
    if (xseg_shared_budget_file_is_intact(file))
        (void)close(file->descriptor);
    file->is_own = false;
    xseg_list_remove(&file->node);
}

/* The locks are the parent's, and must end with it. */
static void after_fork_in_child(void) XSEG_RELEASES(files_lock)
{
    while (!xseg_list_is_empty(&files))
        let_go(XSEG_LIST_FIRST(&files, struct xseg_shared_budget_file, node));
    xseg_mutex_unlock(&files_lock);
}

static void add_handlers(void)
{
    handlers_error = pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

/* What to do about an error of open(). */
static const char *advise(int error)
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

/* The advice for an error of open(), for a process that only reads the file. */
static const char *advise_reader(int error)
{
    switch (error) {
    case ENOENT:
        return "check the name, or start a process that shares this budget";
    case EACCES:
    case EPERM:
        return "allow this process to read the file";
    default:
        return advise(error);
    }
}

/* A pipe would keep the reader waiting. */
static int open_to_read(const char *path)
{
    return open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
}

/* Open the file, made if there is none; -1 on failure.  O_CREAT is for new files alone: in a sticky folder of all
 * users the kernel may refuse it for files of others (fs.protected_regular), whose group this process may be in. */
static int open_or_make(const char *path)
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

/* Open the file where a fork sees it.  Returns 0 or an errno. */
static int open_listed(struct xseg_shared_budget_file *file, int (*opens)(const char *path))
    XSEG_REQUIRES(files_lock)
{
    struct stat status;

    file->descriptor = opens(file->path);
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

static struct flock lock_of(short type, off_t first, off_t count)
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
    const struct flock lock = lock_of(type, byte, 1);

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

/* Whether this is a file that may be a ledger, as far as fstat() tells. */
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

static bool is_whole(const struct header *header, const struct stat *status)
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

/* Read the header, of zeros where the file has none.  The status is later than the header, so a header that is there
 * finds the file at its size. */
static xseg_status look(const struct xseg_shared_budget_file *file, struct header *header,
                        struct stat *status)
{
    memset(header, 0, sizeof(*header));
    const ssize_t got = pread(file->descriptor, header, sizeof(*header), 0);
    const int error = errno;
    const bool has_status = fstat(file->descriptor, status) == 0;
    const xseg_status checked = has_status ? check_kind(file, status) : XSEG_OK;
    if (checked != XSEG_OK)
        return checked;
    if (has_status && got >= 0)
        return XSEG_OK;
    return fail_to_read(file, has_status ? error : errno);
}

static bool is_zeros(const unsigned char *bytes, size_t count)
{
    return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* Whether the file has nothing but zeros, and not more of them than a ledger has bytes.  The beginning, where the header
 * will be, is read last. */
static xseg_status find_blank(const struct xseg_shared_budget_file *file, const struct stat *status,
                              bool *is_blank)
{
    unsigned char bytes[XSEG_SHARED_BUDGET_FILE_HEADER];
    const off_t step = (off_t)sizeof(bytes);

    *is_blank = status->st_size <= XSEG_SHARED_BUDGET_FILE_BYTES;
    for (off_t end = status->st_size; *is_blank && end > 0;) {
        const off_t at = (end - 1) / step * step;
        const ssize_t got = pread(file->descriptor, bytes, sizeof(bytes), at);

        if (got < 0)
            return fail_to_read(file, errno);
        *is_blank = is_zeros(bytes, (size_t)got);
        end = at;
    }
    return XSEG_OK;
}

static xseg_status refuse(const struct xseg_shared_budget_file *file, const struct header *header,
                          const struct stat *status)
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

/* Give a file of zeros its mode and size.  Only its owner can change its mode.  Returns 0 or an errno. */
static int make_room(const struct xseg_shared_budget_file *file, const struct stat *status)
{
    if (status->st_uid == geteuid() && fchmod(file->descriptor, 0660) != 0)
        return errno;
    return posix_fallocate(file->descriptor, 0, XSEG_SHARED_BUDGET_FILE_BYTES);
}

/* Make a ledger of a file of zeros that has its size.  Returns 0 or an errno. */
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

/* Whether the file is still to become a ledger.  Returns XSEG_OK only if it is one, or can become one.  Without the header
 * lock a file may be refused in the moment in which another process makes it a ledger. */
static xseg_status judge(const struct xseg_shared_budget_file *file, struct stat *status,
                         bool *is_unmade)
{
    struct header header;
    bool is_blank = false;

    xseg_status judged = look(file, &header, status);
    if (judged != XSEG_OK)
        return judged;
    *is_unmade = !is_whole(&header, status);
    if (*is_unmade)
        judged = find_blank(file, status, &is_blank);
    if (judged != XSEG_OK)
        return judged;
    return !*is_unmade || is_blank ? XSEG_OK : refuse(file, &header, status);
}

/* Look again at a file without a valid header, now under the header lock, and make a ledger of it if no process has.  Room is
 * made first, and the file checked once more, as a program that knows no locks may write to it at any time (LEDGER-6). */
static xseg_status make_or_refuse(const struct xseg_shared_budget_file *file)
{
    struct stat status;
    bool is_unmade = false;

    xseg_status judged = judge(file, &status, &is_unmade);
    if (judged != XSEG_OK || !is_unmade)
        return judged;
    int error = make_room(file, &status);
    if (error == 0) {
        judged = judge(file, &status, &is_unmade);
        if (judged != XSEG_OK)
            return judged;
        error = write_header(file);
    }
    if (error == 0)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_FILE,
                     "shared budget file cannot be created, \"%s\" (%s); free %lld bytes on its "
                     "file system, or use another path",
                     file->path, strerror(error), (long long)XSEG_SHARED_BUDGET_FILE_BYTES);
}

static xseg_status finish(const struct xseg_shared_budget_file *file)
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
    const xseg_status made = make_or_refuse(file);
    (void)xseg_shared_budget_file_unlock(file, HEADER_LOCK);
    return made;
}

/* A header that is valid needs no lock, because it does not change (LEDGER-1); one that is not may be half written. */
static xseg_status check_header(const struct xseg_shared_budget_file *file)
{
    struct header header;
    struct stat status;

    const xseg_status looked = look(file, &header, &status);
    if (looked != XSEG_OK)
        return looked;
    return is_whole(&header, &status) ? XSEG_OK : finish(file);
}

/* As check_header(), where nothing may be written. */
static xseg_status check_to_read(const struct xseg_shared_budget_file *file)
{
    struct stat status;
    bool is_unmade = false;

    xseg_status judged = judge(file, &status, &is_unmade);
    /* Where a header came between the two reads, it is there now. */
    if (judged != XSEG_OK)
        judged = judge(file, &status, &is_unmade);
    if (judged != XSEG_OK || !is_unmade)
        return judged;
    return xseg_fail(XSEG_ERR_BUSY, "shared budget file is still being created, \"%s\"; try again",
                     file->path);
}

/* Note which locks from `first` on, up to `end`, others have.  The kernel names one of those in the range, any; so the
 * rest is asked for on both sides of it. */
static int find_held(const struct xseg_shared_budget_file *file, off_t base, off_t first, off_t end,
                     uint64_t *held)
{
    if (first >= end)
        return 0;
    struct flock lock = lock_of(F_WRLCK, first, end - first);
    if (fcntl(file->descriptor, F_OFD_GETLK, &lock) != 0)
        return errno;
    if (lock.l_type == F_UNLCK)
        return 0;
    const off_t from = lock.l_start > first ? lock.l_start : first;
    const off_t behind = lock.l_start + lock.l_len;
    const off_t to = lock.l_len == 0 || behind > end ? end : behind;
    if (from >= to)
        return EIO; /* that lock is not in the range */
    for (off_t byte = from; byte < to; byte++)
        *held |= UINT64_C(1) << (byte - base);
    const int error = find_held(file, base, first, from, held);
    return error != 0 ? error : find_held(file, base, to, end, held);
}

/* What a file is opened for decides how: an errno of open() is followed by advice, a file by a check. */
struct purpose {
    int (*open)(const char *path);
    const char *(*advise)(int error);
    xseg_status (*check)(const struct xseg_shared_budget_file *file);
};

static xseg_status open_checked(struct xseg_shared_budget_file *file, const char *path,
                                const struct purpose *purpose)
{
    const size_t length = strlen(path);

    memset(file, 0, sizeof(*file));
    if (length == 0 || length >= sizeof(file->path))
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "path of the shared budget file is %s, %zu bytes; use 1 to %u",
                         length == 0 ? "empty" : "too long", length, XSEG_SHARED_BUDGET_PATH - 1);
    memcpy(file->path, path, length);
    (void)pthread_once(&handlers_once, add_handlers);
    if (handlers_error != 0)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, fork handlers");
    xseg_mutex_lock(&files_lock);
    const int error = open_listed(file, purpose->open);
    xseg_mutex_unlock(&files_lock);
    if (error != 0)
        return xseg_fail(XSEG_ERR_FILE, "shared budget file cannot be opened, \"%s\" (%s); %s",
                         file->path, strerror(error), purpose->advise(error));
    const xseg_status checked = purpose->check(file);
    if (checked != XSEG_OK)
        xseg_shared_budget_file_close(file);
    return checked;
}

xseg_status xseg_shared_budget_file_open(struct xseg_shared_budget_file *file, const char *path)
{
    static const struct purpose to_share = {open_or_make, advise, check_header};

    return open_checked(file, path, &to_share);
}

xseg_status xseg_shared_budget_file_open_to_read(struct xseg_shared_budget_file *file,
                                                 const char *path)
{
    static const struct purpose to_look = {open_to_read, advise_reader, check_to_read};

    return open_checked(file, path, &to_look);
}

void xseg_shared_budget_file_close(struct xseg_shared_budget_file *file)
{
    if (!file->is_own)
        return;
    xseg_mutex_lock(&files_lock);
    let_go(file);
    xseg_mutex_unlock(&files_lock);
}

/* Whether the path leads to the file.  Only an absolute path tells: a relative one depends on the working directory.  A
 * folder that this process may no longer search proves nothing. */
static bool is_at_path(const struct xseg_shared_budget_file *file)
{
    struct stat status;

    if (file->path[0] != '/')
        return true;
    if (lstat(file->path, &status) == 0)
        return is_same(file, &status);
    return errno != ENOENT && errno != ENOTDIR;
}

/* Check the descriptor and what fstat() reports. */
static xseg_status check_status(const struct xseg_shared_budget_file *file, struct stat *status)
{
    if (fstat(file->descriptor, status) != 0 || !is_same(file, status))
        return xseg_fail(XSEG_ERR_FILE,
                         "descriptor %d of the shared budget file has been closed by the program, "
                         "\"%s\"; close only descriptors that the program has opened",
                         file->descriptor, file->path);
    if (status->st_nlink == 0)
        return xseg_fail(XSEG_ERR_FILE, "shared budget file has been removed, \"%s\"", file->path);
    return check_kind(file, status);
}

/* Fail for a file that was a ledger, of whose header `got` bytes are there. */
static xseg_status fail_foreign(const struct xseg_shared_budget_file *file,
                                const struct header *header, size_t got, const struct stat *status)
{
    const bool is_magic = memcmp(header->magic, MAGIC, xseg_min(got, sizeof(MAGIC))) == 0;

    if (status->st_size == XSEG_SHARED_BUDGET_FILE_BYTES || !is_magic)
        return refuse(file, header, status);
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
    const bool is_there = is_at_path(file);
    const xseg_status checked = check_status(file, &status);
    if (checked != XSEG_OK)
        return checked;
    if (!is_there)
        return xseg_fail(XSEG_ERR_FILE, "shared budget file has been renamed or replaced, \"%s\"",
                         file->path);
    const ssize_t got = pread(file->descriptor, &header, sizeof(header), 0);
    if (got < 0)
        return fail_to_read(file, errno);
    return is_whole(&header, &status) ? XSEG_OK : fail_foreign(file, &header, (size_t)got, &status);
}

int xseg_shared_budget_file_find_held(const struct xseg_shared_budget_file *file, off_t byte,
                                      unsigned count, uint64_t *held)
{
    *held = 0;
    return find_held(file, byte, byte, byte + (off_t)count, held);
}
