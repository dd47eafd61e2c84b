/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/top/publishers.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "src/tools/containers/containers.h"
#include "src/tools/output/text.h"

#define READ_ATTEMPTS 20u /* of a file that changes during a read */
#define HEADER_BYTES  offsetof(struct xseg_published, samples)
#define FILES_MAX     64u /* of one process */
#define START_FIELD   22  /* of /proc/PID/stat */

/* The link of a file descriptor in /proc/PID/fd. */
#define LINK_TARGET "/memfd:" XSEG_PUBLISHED_NAME " (deleted)"

/* --- Samples. --- */

static bool reject_sample(const char **reason, const char *error)
{
    *reason = error;
    return false;
}

static bool has_device(const struct xseg_published_sample *sample, int32_t ordinal)
{
    for (uint32_t i = 0; i < sample->device_count; i++)
        if (sample->devices[i].ordinal == ordinal)
            return true;
    return false;
}

/* Escape and terminate a label. */
static void escape_label(char label[XSEG_PUBLISHED_LABEL])
{
    char raw[XSEG_PUBLISHED_LABEL];

    memcpy(raw, label, sizeof(raw));
    raw[sizeof(raw) - 1] = '\0';
    (void)text_escape(raw, label, XSEG_PUBLISHED_LABEL);
}

static bool check_sample(struct xseg_published_sample *sample, const char **reason)
{
    if (sample->device_count > XSEG_PUBLISHED_DEVICES || sample->pool_count > XSEG_PUBLISHED_POOLS)
        return reject_sample(
            reason, "unreadable: the file has more devices or pools than the format allows");
    for (uint32_t i = 0; i < sample->device_count; i++)
        if (sample->devices[i].ordinal < 0)
            return reject_sample(reason, "unreadable: negative device ordinal");
    for (uint32_t i = 0; i < sample->pool_count; i++) {
        struct xseg_published_pool *pool = &sample->pools[i];

        if (!has_device(sample, pool->ordinal))
            return reject_sample(reason, "unreadable: pool of an unknown device");
        if (pool->kind > XSEG_PUBLISHED_OTHERS)
            return reject_sample(reason, "unreadable: pool of an unknown kind");
        escape_label(pool->label);
    }
    return true;
}

bool published_copy(const void *bytes, size_t count, struct xseg_published *header,
                    struct xseg_published_sample *sample, const char **reason)
{
    const char *from = bytes;

    if (count < HEADER_BYTES)
        return reject_sample(reason, "unreadable: the file is too short");
    memcpy(header, bytes, HEADER_BYTES);
    if (memcmp(header->magic, XSEG_PUBLISHED_MAGIC, sizeof(header->magic)) != 0)
        return reject_sample(reason, "unreadable: xseg did not write the file");
    if (header->version != XSEG_PUBLISHED_VERSION)
        return reject_sample(reason, "unreadable: another version of xseg wrote the file");
    if (header->bytes != sizeof(*header) || count < sizeof(*header))
        return reject_sample(reason, "unreadable: the file is too short");
    memcpy(sample, from + HEADER_BYTES + (header->sequence % 2) * sizeof(*sample), sizeof(*sample));
    return check_sample(sample, reason);
}

static bool read_sequence(int file, uint64_t *sequence)
{
    return pread(file, sequence, sizeof(*sequence), offsetof(struct xseg_published, sequence)) ==
           (ssize_t)sizeof(*sequence);
}

/* Read a file between two changes.  Returns the number of bytes; -1: the file changes during each read. */
static ssize_t read_unchanged(int file, void *bytes, size_t capacity)
{
    uint64_t before = 0, after = 0;

    for (unsigned i = 0; i < READ_ATTEMPTS; i++) {
        /* The copy in the kernel and the system call are no memory barriers. */
        const bool has_sequence = read_sequence(file, &before);
        atomic_thread_fence(memory_order_acquire);
        const ssize_t count = pread(file, bytes, capacity, 0);
        atomic_thread_fence(memory_order_acquire);

        if (!has_sequence || count < (ssize_t)HEADER_BYTES)
            return count < 0 ? 0 : count;
        if (read_sequence(file, &after) && before == after)
            return count;
        (void)usleep(1000);
    }
    return -1;
}

bool published_read(int file, struct xseg_published *header, struct xseg_published_sample *sample,
                    const char **reason)
{
    struct xseg_published *bytes = malloc(sizeof(*bytes));
    bool success = false;

    if (!bytes)
        return reject_sample(reason, "unreadable: out of host memory");
    const ssize_t count = read_unchanged(file, bytes, sizeof(*bytes));
    if (count < 0)
        (void)reject_sample(reason, "unreadable: the file changes faster than it can be read");
    else
        success = published_copy(bytes, (size_t)count, header, sample, reason);
    free(bytes);
    return success;
}

/* --- Processes. --- */

struct process {
    pid_t pid;
    int folder;              /* /proc/PID */
    ino_t inodes[FILES_MAX]; /* of the files read so far, because descriptors can be duplicates */
    unsigned inode_count;
};

/* Read the beginning of a file in /proc/PID.  Returns false if the file does not exist or is empty. */
static bool read_text(const struct process *process, const char *name, char *text, size_t capacity)
{
    const int file = openat(process->folder, name, O_RDONLY | O_CLOEXEC);
    ssize_t bytes;

    if (file < 0)
        return false;
    bytes = read(file, text, capacity - 1);
    (void)close(file);
    text[bytes > 0 ? bytes : 0] = '\0';
    return bytes > 0;
}

/* Get the start time in clock ticks since boot; 0: unknown. */
static uint64_t read_start(const struct process *process)
{
    char contents[1024];
    const char *at;

    if (!read_text(process, "stat", contents, sizeof(contents)))
        return 0;
    at = strrchr(contents, ')');
    for (int field = 2; at && field < START_FIELD; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

/* Get the process ID in the innermost PID namespace, the last ID of the line NSpid. */
static long read_namespace_pid(const struct process *process)
{
    char text[4096], *line, *end;

    if (!read_text(process, "status", text, sizeof(text)))
        return -1;
    line = strstr(text, "\nNSpid:");
    if (!line)
        return process->pid;
    end = strchr(line + 1, '\n');
    if (end)
        *end = '\0';
    end = strrchr(line, '\t');
    return end ? strtol(end, NULL, 10) : -1;
}

static bool is_writer(const struct process *process, const struct xseg_published *header)
{
    return header->pid == read_namespace_pid(process) &&
           header->start_ticks == read_start(process) && header->start_ticks != 0;
}

static void read_command(const struct process *process, char *command, size_t capacity)
{
    char text[64] = "";

    (void)read_text(process, "comm", text, sizeof(text));
    text[strcspn(text, "\n")] = '\0';
    (void)text_escape(text, command, capacity);
}

/* --- Files of a process. --- */

static double age_of(uint64_t time_ns)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    const double age = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - (double)time_ns * 1e-9;
    return age > 0 ? age : 0;
}

static bool add_publisher(struct publishers *publishers, const struct publisher *found)
{
    struct publisher *copy;

    if (!array_reserve((void **)&publishers->list, publishers->count, sizeof(publishers->list[0])))
        return false;
    copy = malloc(sizeof(*copy));
    if (!copy)
        return false;
    *copy = *found;
    publishers->list[publishers->count++] = copy;
    return true;
}

/* Open a file descriptor of another process for reading.  The file can have been replaced, for example by a device or a FIFO
 * for which open() has side effects or blocks, so its type is checked with O_PATH first. */
static int open_file(struct process *process, int descriptors, const char *name)
{
    const int path = openat(descriptors, name, O_PATH | O_CLOEXEC);
    char link[32];
    struct stat status;
    int file = -1;

    if (path < 0)
        return -1;
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", path);
    if (fstat(path, &status) == 0 && S_ISREG(status.st_mode))
        file = open(link, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    (void)close(path);
    for (unsigned i = 0; file >= 0 && i < process->inode_count; i++)
        if (process->inodes[i] == status.st_ino) {
            (void)close(file);
            file = -1;
        }
    if (file >= 0)
        process->inodes[process->inode_count++] = status.st_ino;
    return file;
}

static bool add_file(struct publishers *publishers, struct process *process, int file)
{
    struct publisher found = {.pid = process->pid};
    struct xseg_published header;
    const bool is_read = published_read(file, &header, &found.sample, &found.error);

    if (is_read && !is_writer(process, &header))
        return true;
    read_command(process, found.command, sizeof(found.command));
    if (is_read)
        found.age = age_of(found.sample.time_ns);
    return add_publisher(publishers, &found);
}

/* Returns false on host allocation failure. */
static bool read_descriptor(struct publishers *publishers, struct process *process, int descriptors,
                            const char *name)
{
    char target[sizeof(LINK_TARGET)];
    const ssize_t bytes = readlinkat(descriptors, name, target, sizeof(target));
    bool success = true;
    int file;

    if (bytes != (ssize_t)strlen(LINK_TARGET) ||
        memcmp(target, LINK_TARGET, strlen(LINK_TARGET)) != 0 || process->inode_count == FILES_MAX)
        return true;
    file = open_file(process, descriptors, name);
    if (file >= 0) {
        success = add_file(publishers, process, file);
        (void)close(file);
    }
    return success;
}

static bool read_descriptors(struct publishers *publishers, struct process *process, DIR *folder)
{
    struct dirent *entry;
    bool success = true;

    while (success && (entry = readdir(folder)) != NULL)
        if (isdigit((unsigned char)entry->d_name[0]))
            success = read_descriptor(publishers, process, dirfd(folder), entry->d_name);
    return success;
}

/* Kernel threads and zombies have no command line. */
static bool is_user_process(const struct process *process)
{
    char text[2];

    return read_text(process, "cmdline", text, sizeof(text));
}

/* Returns false on host allocation failure. */
static bool read_process(struct publishers *publishers, int proc, const char *name)
{
    struct process process = {.pid = (pid_t)strtol(name, NULL, 10)};
    bool success = true;
    DIR *folder;
    int file;

    process.folder = openat(proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (process.folder < 0)
        return true;
    file = openat(process.folder, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    folder = file >= 0 ? fdopendir(file) : NULL;
    if (folder) {
        success = read_descriptors(publishers, &process, folder);
        (void)closedir(folder);
    } else if (file >= 0) {
        (void)close(file);
        success = false;
    } else if ((errno == EACCES || errno == EPERM) && is_user_process(&process)) {
        publishers->hidden++;
    }
    (void)close(process.folder);
    return success;
}

/* --- All processes. --- */

static int compare_pids(const void *a, const void *b)
{
    const struct publisher *const *first = a, *const *second = b;

    return ((*first)->pid > (*second)->pid) - ((*first)->pid < (*second)->pid);
}

static bool read_all(struct publishers *publishers, DIR *proc)
{
    struct dirent *entry;
    bool success = true;

    while (success && (entry = readdir(proc)) != NULL)
        if (isdigit((unsigned char)entry->d_name[0]))
            success = read_process(publishers, dirfd(proc), entry->d_name);
    return success;
}

int publishers_find(struct publishers *publishers, pid_t pid)
{
    DIR *proc = opendir("/proc");
    char name[16];
    bool success;

    *publishers = (struct publishers){.count = 0};
    if (!proc)
        return errno;
    (void)snprintf(name, sizeof(name), "%ld", (long)pid);
    success = pid != 0 ? read_process(publishers, dirfd(proc), name) : read_all(publishers, proc);
    (void)closedir(proc);
    if (!success) {
        publishers_fini(publishers);
        return ENOMEM;
    }
    if (publishers->count > 1)
        qsort(publishers->list, publishers->count, sizeof(struct publisher *), compare_pids);
    return 0;
}

void publishers_fini(struct publishers *publishers)
{
    for (size_t i = 0; i < publishers->count; i++)
        free(publishers->list[i]);
    free(publishers->list);
    *publishers = (struct publishers){.count = 0};
}
