/* SPDX-License-Identifier: MIT */
#include "src/tools/output/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/tools/output/complain.h"

#define LINKS 40u /* that the kernel follows */

static bool complain_of(const struct whole_file *file, int error)
{
    complain_named("%s cannot be written: %s", file->path, strerror(error));
    return false;
}

/* The descriptor of standard output or standard error, if a path leads to its file; else -1. */
static int find_stream(const struct stat *status)
{
    struct stat stream;

    for (int number = STDOUT_FILENO; number <= STDERR_FILENO; number++)
        if (fstat(number, &stream) == 0 && stream.st_dev == status->st_dev &&
            stream.st_ino == status->st_ino)
            return number;
    return -1;
}

/* Open a path that is written in place, or cannot be written.  Returns false if it is neither. */
static bool open_in_place(struct whole_file *file)
{
    struct stat status;
    int stream;

    if (stat(file->path, &status) != 0)
        return errno != ENOENT || file->path[0] == '\0';
    stream = find_stream(&status);
    if (stream < 0 && S_ISREG(status.st_mode))
        return false;
    file->descriptor =
        stream < 0 ? open(file->path, O_WRONLY | O_CLOEXEC) : fcntl(stream, F_DUPFD_CLOEXEC, 0);
    return true;
}

/* Whether a place is one of the files that are read. */
static bool is_input(const char *path, char *const *inputs, int input_count)
{
    struct stat place, input;

    if (stat(path, &place) != 0)
        return false;
    for (int i = 0; i < input_count; i++)
        if (stat(inputs[i], &input) == 0 && input.st_dev == place.st_dev &&
            input.st_ino == place.st_ino)
            return true;
    return false;
}

/* The mode that the file has so far, or that open() would have given. */
static void set_mode(const struct whole_file *file)
{
    const mode_t mask = umask(0);
    struct stat status;

    (void)umask(mask);
    (void)fchmod(file->descriptor,
                 stat(file->place, &status) == 0 ? status.st_mode & 0777 : 0666 & ~mask);
}

/* --- Interrupts. --- */

static const int interrupts[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                 SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU};

/* The temporary names of files that are being written; NULL: none. */
static const char *volatile unfinished[WHOLE_FILES];

static void remove_unfinished(int interrupt)
{
    for (size_t i = 0; i < WHOLE_FILES; i++)
        if (unfinished[i])
            (void)unlink(unfinished[i]);
    (void)raise(interrupt); /* it ends the process now */
}

/* Set how a signal is handled, unless it is ignored or handled already. */
static void handle(int number, void (*handler)(int))
{
    struct sigaction action, old;

    memset(&action, 0, sizeof(action));
    action.sa_handler = handler;
    action.sa_flags = (int)(SA_RESETHAND | SA_NODEFER);
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
        (void)sigaction(number, &action, NULL);
}

/* Remove unfinished files when a signal ends the process, and let writes to a closed pipe fail. */
static void watch_interrupts(void)
{
    for (size_t i = 0; i < sizeof(interrupts) / sizeof(interrupts[0]); i++)
        handle(interrupts[i], remove_unfinished);
    handle(SIGPIPE, SIG_IGN);
}

/* Create a file with a unique name, and record it before a signal can end the process.  Returns false with errno. */
static bool make_unfinished(struct whole_file *file)
{
    sigset_t all, before;
    size_t slot = 0;

    while (slot < WHOLE_FILES && unfinished[slot])
        slot++;
    if (slot == WHOLE_FILES) {
        errno = EMFILE;
        return false;
    }
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    file->descriptor = mkostemp(file->beside, O_CLOEXEC);
    if (file->descriptor >= 0)
        unfinished[slot] = file->beside;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return file->descriptor >= 0;
}

static void free_names(struct whole_file *file)
{
    for (size_t i = 0; i < WHOLE_FILES; i++)
        if (unfinished[i] == file->beside)
            unfinished[i] = NULL;
    free(file->place);
    free(file->beside);
    file->place = file->beside = NULL;
}

/* --- Streams that keep the first error. --- */

/* The C library's streams lose the reason of a failure that comes before fclose(). */
static ssize_t write_some(void *cookie, const char *bytes, size_t count)
{
    struct whole_file *file = cookie;
    size_t written = 0;

    while (file->error == 0 && written < count) {
        const ssize_t some = write(file->descriptor, bytes + written, count - written);

        if (some >= 0)
            written += (size_t)some;
        else if (errno != EINTR)
            file->error = errno;
    }
    errno = file->error;
    return file->error == 0 ? (ssize_t)count : 0;
}

static int close_descriptor(void *cookie)
{
    struct whole_file *file = cookie;

    if (close(file->descriptor) != 0 && file->error == 0)
        file->error = errno;
    return file->error == 0 ? 0 : -1;
}

/* Returns false with errno. */
static bool open_stream(struct whole_file *file)
{
    static const cookie_io_functions_t functions = {.write = write_some, .close = close_descriptor};

    file->out = fopencookie(file, "w", functions);
    if (!file->out) {
        (void)close(file->descriptor);
        errno = ENOMEM;
    }
    return file->out != NULL;
}

/* --- Files. --- */

/* Whether another open file goes to the same place. */
static bool is_taken(const char *place)
{
    const size_t length = strlen(place);

    for (size_t i = 0; i < WHOLE_FILES; i++)
        if (unfinished[i] && strncmp(unfinished[i], place, length) == 0 &&
            unfinished[i][length] == '.' && strlen(unfinished[i]) == length + sizeof(".XXXXXX") - 1)
            return true;
    return false;
}

/* A name in the folder of a path, which is the name itself if it begins with `/`; NULL without host memory. */
static char *name_beside(const char *path, const char *name)
{
    const char *const slash = strrchr(path, '/');
    const size_t length = slash ? (size_t)(slash - path) + 1 : 0;
    char *start = length > 0 ? strndup(path, length) : strdup(".");
    char *folder = start ? realpath(start, NULL) : NULL, *place = NULL;

    if (name[0] == '/')
        place = strdup(name);
    else if (start && asprintf(&place, "%s/%s", folder ? folder : start, name) < 0)
        place = NULL;
    free(folder);
    free(start);
    return place;
}

/* A path without symbolic links, also of a file that is not there yet; NULL without host memory. */
static char *find_place(const char *path)
{
    char *place = realpath(path, NULL);
    char target[PATH_MAX];
    ssize_t length;

    if (place)
        return place;
    place = name_beside(path, strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
    /* Links to a file that is not there. */
    for (unsigned links = 0; place && links < LINKS; links++) {
        length = readlink(place, target, sizeof(target) - 1);
        if (length <= 0)
            break;
        char *link = place;

        target[length] = '\0';
        place = name_beside(link, target);
        free(link);
    }
    return place;
}

/* Open a file beside a place.  Returns false with errno. */
static bool open_beside(struct whole_file *file)
{
    file->place = find_place(file->path);
    if (!file->place || asprintf(&file->beside, "%s.XXXXXX", file->place) < 0) {
        file->beside = NULL;
        errno = ENOMEM;
        return false;
    }
    if (is_taken(file->place)) {
        errno = EBUSY; /* two options name it */
        return false;
    }
    if (!make_unfinished(file))
        return false;
    set_mode(file);
    return true;
}

bool whole_file_open(struct whole_file *file, const char *path, char *const *inputs,
                     int input_count)
{
    bool fine;

    *file = (struct whole_file){.path = path, .descriptor = -1};
    if (strcmp(path, "-") == 0) {
        file->out = stdout;
        return true;
    }
    watch_interrupts();
    if (open_in_place(file)) {
        fine = file->descriptor >= 0;
    } else if (is_input(path, inputs, input_count)) {
        complain_named("%s is read: give another file to write", path);
        return false;
    } else {
        fine = open_beside(file);
    }
    if (fine && open_stream(file))
        return true;
    (void)complain_of(file, errno);
    if (file->beside && file->descriptor >= 0)
        (void)unlink(file->beside);
    free_names(file);
    return false;
}

bool whole_file_open_second(struct whole_file *file, const char *path, char *const *inputs,
                            int input_count, FILE **report)
{
    *file = (struct whole_file){.path = path};
    if (!path)
        return true;
    if (strcmp(path, "-") == 0)
        *report = stderr;
    return whole_file_open(file, path, inputs, input_count);
}

bool whole_file_close(struct whole_file *file, bool fine)
{
    /* What could not be written to standard output is said at the end of the programme. */
    if (!file->out || file->out == stdout)
        return fine;
    if (fclose(file->out) != 0 && file->error == 0)
        file->error = errno;
    if (file->error == 0 && fine && file->beside && rename(file->beside, file->place) != 0)
        file->error = errno;
    if (file->error != 0)
        fine = complain_of(file, file->error);
    if (!fine && file->beside)
        (void)unlink(file->beside);
    free_names(file);
    file->out = NULL;
    return fine;
}
