/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/top/publishers.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "src/tools/commands/top/published.h"
#include "src/tools/containers/containers.h"
#include "src/tools/output/text.h"

/* Where the link of a descriptor leads. */
#define TARGET "/memfd:" XSEG_PUBLISHED_NAME " (deleted)"

/* Files of one process that are looked at: a process may have any number. */
#define FILES_MAX 64u

#define START_FIELD 22 /* of /proc/PID/stat */

/* A process that is looked at. */
struct process {
    pid_t pid;
    int folder;            /* /proc/PID */
    ino_t seen[FILES_MAX]; /* its files so far: a descriptor may have been duplicated */
    unsigned seen_count;
};

/* --- What /proc says of a process. --- */

/* Read a small file of the process.  Returns false where there is none, or nothing in it. */
static bool read_text(const struct process *process, const char *name, char *text, size_t room)
{
    const int file = openat(process->folder, name, O_RDONLY | O_CLOEXEC);
    ssize_t bytes;

    if (file < 0)
        return false;
    bytes = read(file, text, room - 1);
    (void)close(file);
    text[bytes > 0 ? bytes : 0] = '\0';
    return bytes > 0;
}

/* When it began, in the kernel's ticks; 0 where that is not known. */
static uint64_t read_start(const struct process *process)
{
    char text[1024];
    const char *at;

    if (!read_text(process, "stat", text, sizeof(text)))
        return 0;
    at = strrchr(text, ')');
    for (int field = 2; at && field < START_FIELD; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

/* The number of a process as the process itself sees it: the last one of a line that has one for each namespace. */
static long read_own_number(const struct process *process)
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

static bool is_writer(const struct process *process, const struct xseg_published *head)
{
    return head->pid == read_own_number(process) && head->start_ticks == read_start(process) &&
           head->start_ticks != 0;
}

static void read_command(const struct process *process, char *command, size_t room)
{
    char text[64] = "";

    (void)read_text(process, "comm", text, sizeof(text));
    text[strcspn(text, "\n")] = '\0';
    (void)text_escape(text, command, room);
}

/* --- Its files. --- */

static double age_of(uint64_t time_ns)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    const double age = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - (double)time_ns * 1e-9;
    return age > 0 ? age : 0;
}

static bool add(struct publishers *publishers, const struct publisher *found)
{
    struct publisher *kept;

    if (!array_reserve((void **)&publishers->list, publishers->count, sizeof(publishers->list[0])))
        return false;
    kept = malloc(sizeof(*kept));
    if (!kept)
        return false;
    *kept = *found;
    publishers->list[publishers->count++] = kept;
    return true;
}

/*
 * Open a descriptor of another process for reading.
 *
 * The link may lead elsewhere by now, to what opening alone changes or waits for: it is looked at before it is opened.
 */
static int open_file(struct process *process, int descriptors, const char *name)
{
    const int path = openat(descriptors, name, O_PATH | O_CLOEXEC);
    char link[32];
    struct stat found;
    int file = -1;

    if (path < 0)
        return -1;
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", path);
    if (fstat(path, &found) == 0 && S_ISREG(found.st_mode))
        file = open(link, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    (void)close(path);
    for (unsigned i = 0; file >= 0 && i < process->seen_count; i++)
        if (process->seen[i] == found.st_ino) {
            (void)close(file);
            file = -1;
        }
    if (file >= 0)
        process->seen[process->seen_count++] = found.st_ino;
    return file;
}

static bool note_file(struct publishers *publishers, struct process *process, int file)
{
    struct publisher found = {.pid = process->pid};
    struct xseg_published head;
    const bool is_read = published_read(file, &head, &found.frame, &found.problem);

    if (is_read && !is_writer(process, &head))
        return true;
    read_command(process, found.command, sizeof(found.command));
    if (is_read)
        found.age = age_of(found.frame.time_ns);
    return add(publishers, &found);
}

/* Returns false without host memory. */
static bool look_at_descriptor(struct publishers *publishers, struct process *process,
                               int descriptors, const char *name)
{
    char target[sizeof(TARGET)];
    const ssize_t bytes = readlinkat(descriptors, name, target, sizeof(target));
    bool fine = true;
    int file;

    if (bytes != (ssize_t)strlen(TARGET) || memcmp(target, TARGET, strlen(TARGET)) != 0 ||
        process->seen_count == FILES_MAX)
        return true;
    file = open_file(process, descriptors, name);
    if (file >= 0) {
        fine = note_file(publishers, process, file);
        (void)close(file);
    }
    return fine;
}

static bool look_at_descriptors(struct publishers *publishers, struct process *process, DIR *folder)
{
    struct dirent *entry;
    bool fine = true;

    while (fine && (entry = readdir(folder)) != NULL)
        if (isdigit((unsigned char)entry->d_name[0]))
            fine = look_at_descriptor(publishers, process, dirfd(folder), entry->d_name);
    return fine;
}

/* Threads of the kernel, and processes that have ended, have no command line: they are not counted. */
static bool is_programme(const struct process *process)
{
    char text[2];

    return read_text(process, "cmdline", text, sizeof(text));
}

/* Returns false without host memory. */
static bool look_at_process(struct publishers *publishers, int proc, const char *name)
{
    struct process process = {.pid = (pid_t)strtol(name, NULL, 10)};
    bool fine = true;
    DIR *folder;
    int file;

    process.folder = openat(proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (process.folder < 0)
        return true;
    file = openat(process.folder, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    folder = file >= 0 ? fdopendir(file) : NULL;
    if (folder) {
        fine = look_at_descriptors(publishers, &process, folder);
        (void)closedir(folder);
    } else if (file >= 0) {
        (void)close(file);
        fine = false;
    } else if ((errno == EACCES || errno == EPERM) && is_programme(&process)) {
        publishers->hidden++;
    }
    (void)close(process.folder);
    return fine;
}

/* --- All of them. --- */

static int compare(const void *a, const void *b)
{
    const struct publisher *const *one = a, *const *other = b;

    return ((*one)->pid > (*other)->pid) - ((*one)->pid < (*other)->pid);
}

static bool look_at_all(struct publishers *publishers, DIR *proc)
{
    struct dirent *entry;
    bool fine = true;

    while (fine && (entry = readdir(proc)) != NULL)
        if (isdigit((unsigned char)entry->d_name[0]))
            fine = look_at_process(publishers, dirfd(proc), entry->d_name);
    return fine;
}

int publishers_find(struct publishers *publishers, pid_t pid)
{
    DIR *proc = opendir("/proc");
    char name[16];
    bool fine;

    *publishers = (struct publishers){.count = 0};
    if (!proc)
        return errno;
    (void)snprintf(name, sizeof(name), "%ld", (long)pid);
    fine =
        pid != 0 ? look_at_process(publishers, dirfd(proc), name) : look_at_all(publishers, proc);
    (void)closedir(proc);
    if (!fine) {
        publishers_fini(publishers);
        return ENOMEM;
    }
    if (publishers->count > 1)
        qsort(publishers->list, publishers->count, sizeof(struct publisher *), compare);
    return 0;
}

void publishers_fini(struct publishers *publishers)
{
    for (size_t i = 0; i < publishers->count; i++)
        free(publishers->list[i]);
    free(publishers->list);
    *publishers = (struct publishers){.count = 0};
}
