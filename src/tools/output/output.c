/* SPDX-License-Identifier: MIT */
#include "src/tools/output/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/tools/output/message.h"

static void (*initial_sigxfsz_handler)(int);

void output_init(void)
{
    /* The replacement cannot be used: standard input cannot be read, standard output and error cannot be written. */
    for (int number = 0; number <= STDERR_FILENO; number++)
        if (fcntl(number, F_GETFD) < 0)
            (void)!open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    initial_sigxfsz_handler = signal(SIGXFSZ, SIG_IGN);
}

int output_execute(const char *program, char **arguments)
{
    int error;

    (void)signal(SIGXFSZ, initial_sigxfsz_handler);
    (void)execvp(program, arguments);
    error = errno;
    (void)signal(SIGXFSZ, SIG_IGN);
    return error;
}

/* The errno of the first failed flush of standard output.  A later flush succeeds, since the C library has discarded
 * the data. */
static int flush_error;

bool output_flush(FILE *file)
{
    if (fflush(file) != 0) {
        if (file == stdout && flush_error == 0)
            flush_error = errno;
        return false;
    }
    return !ferror(file);
}

bool output_finish(void)
{
    if (output_flush(stdout))
        return true;
    message_error("the output cannot be written%s%s", flush_error ? ": " : "",
                  flush_error ? strerror(flush_error) : "");
    return false;
}

bool output_json(FILE *out, json_t *object)
{
    if (!object)
        return message_out_of_memory();
    (void)json_dumpf(object, out, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    (void)fputc('\n', out);
    json_decref(object);
    return true;
}

static void release_on_failure(json_t **to, bool success)
{
    if (success)
        return;
    json_decref(*to);
    *to = NULL;
}

void output_json_add(json_t **to, json_t *item)
{
    release_on_failure(to, json_array_append_new(*to, item) == 0);
}

void output_json_set(json_t **to, const char *key, json_t *item)
{
    release_on_failure(to, json_object_set_new(*to, key, item) == 0);
}

json_t *output_json_number(bool exists, uint64_t number)
{
    return exists ? json_integer((json_int_t)number) : NULL;
}

#define LINKS_MAX 40u /* as in the kernel */

static bool report_error(const struct output_file *file, int error)
{
    message_error("%s cannot be written: %s", file->path, strerror(error));
    return false;
}

/* Find the descriptor, standard output or standard error, that has a file; -1: neither. */
static int find_standard_stream(const struct stat *status)
{
    struct stat stream;

    for (int number = STDOUT_FILENO; number <= STDERR_FILENO; number++)
        if (fstat(number, &stream) == 0 && stream.st_dev == status->st_dev &&
            stream.st_ino == status->st_ino)
            return number;
    return -1;
}

/* Open a path that is not a regular file.  Returns false if the path can be replaced by a regular file. */
static bool open_directly(struct output_file *file)
{
    struct stat status;
    int stream;

    if (stat(file->path, &status) != 0)
        return errno != ENOENT || file->path[0] == '\0';
    stream = find_standard_stream(&status);
    if (stream < 0 && S_ISREG(status.st_mode))
        return false;
    file->descriptor =
        stream < 0 ? open(file->path, O_WRONLY | O_CLOEXEC) : fcntl(stream, F_DUPFD_CLOEXEC, 0);
    return true;
}

/* Get whether a path is one of the input files. */
static bool is_input(const char *path, char *const *inputs, int input_count)
{
    struct stat target, input;

    if (stat(path, &target) != 0)
        return false;
    for (int i = 0; i < input_count; i++)
        if (stat(inputs[i], &input) == 0 && input.st_dev == target.st_dev &&
            input.st_ino == target.st_ino)
            return true;
    return false;
}

/* Set the mode of the previous file, or the mode that open() would set. */
static void set_mode(const struct output_file *file)
{
    const mode_t mask = umask(0);
    struct stat status;

    (void)umask(mask);
    (void)fchmod(file->descriptor,
                 stat(file->target, &status) == 0 ? status.st_mode & 0777 : 0666 & ~mask);
}

/* --- Signals. --- */

static const int fatal_signals[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                    SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU};

/* The paths of temporary files, for the signal handler. */
static const char *volatile temporaries[OUTPUT_FILES];

static void remove_temporaries(int number)
{
    for (size_t i = 0; i < OUTPUT_FILES; i++)
        if (temporaries[i])
            (void)unlink(temporaries[i]);
    (void)raise(number); /* SA_RESETHAND: the default action ends the process */
}

/* Set the handler of a signal that has the default action. */
static void set_handler(int number, void (*handler)(int))
{
    struct sigaction action, old;

    memset(&action, 0, sizeof(action));
    action.sa_handler = handler;
    action.sa_flags = (int)(SA_RESETHAND | SA_NODEFER);
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
        (void)sigaction(number, &action, NULL);
}

static void install_handlers(void)
{
    for (size_t i = 0; i < sizeof(fatal_signals) / sizeof(fatal_signals[0]); i++)
        set_handler(fatal_signals[i], remove_temporaries);
    set_handler(SIGPIPE, SIG_IGN);
}

/* Create the temporary file with signals blocked, so that the handler removes each file that exists.  Returns false
 * with errno. */
static bool create_temporary(struct output_file *file)
{
    sigset_t all, old_mask;
    size_t slot = 0;

    while (slot < OUTPUT_FILES && temporaries[slot])
        slot++;
    if (slot == OUTPUT_FILES) {
        errno = EMFILE;
        return false;
    }
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &old_mask);
    file->descriptor = mkostemp(file->temporary, O_CLOEXEC);
    if (file->descriptor >= 0)
        temporaries[slot] = file->temporary;
    (void)pthread_sigmask(SIG_SETMASK, &old_mask, NULL);
    return file->descriptor >= 0;
}

static void release_paths(struct output_file *file)
{
    for (size_t i = 0; i < OUTPUT_FILES; i++)
        if (temporaries[i] == file->temporary)
            temporaries[i] = NULL;
    free(file->target);
    free(file->temporary);
    file->target = file->temporary = NULL;
}

/* --- Streams.  They record the first error: stdio loses the errno of a write before fclose(). --- */

static ssize_t write_all(void *cookie, const char *bytes, size_t count)
{
    struct output_file *file = cookie;
    size_t written = 0;

    while (file->error == 0 && written < count) {
        const ssize_t count_written = write(file->descriptor, bytes + written, count - written);

        if (count_written >= 0)
            written += (size_t)count_written;
        else if (errno != EINTR)
            file->error = errno;
    }
    errno = file->error;
    return file->error == 0 ? (ssize_t)count : 0;
}

static int close_descriptor(void *cookie)
{
    struct output_file *file = cookie;

    if (close(file->descriptor) != 0 && file->error == 0)
        file->error = errno;
    return file->error == 0 ? 0 : -1;
}

/* Returns false with errno. */
static bool open_stream(struct output_file *file)
{
    static const cookie_io_functions_t functions = {.write = write_all, .close = close_descriptor};

    file->out = fopencookie(file, "w", functions);
    if (!file->out) {
        (void)close(file->descriptor);
        errno = ENOMEM;
    }
    return file->out != NULL;
}

/* --- Files. --- */

/* Get whether another open file has the same target. */
static bool is_open(const char *target)
{
    const size_t length = strlen(target);

    for (size_t i = 0; i < OUTPUT_FILES; i++)
        if (temporaries[i] && strncmp(temporaries[i], target, length) == 0 &&
            temporaries[i][length] == '.' &&
            strlen(temporaries[i]) == length + sizeof(".XXXXXX") - 1)
            return true;
    return false;
}

/* Make the path of `name` in the folder of `path`; NULL if out of host memory. */
static char *path_in_folder(const char *path, const char *name)
{
    const char *const slash = strrchr(path, '/');
    const size_t length = slash ? (size_t)(slash - path) + 1 : 0;
    char *start = length > 0 ? strndup(path, length) : strdup(".");
    char *folder = start ? realpath(start, NULL) : NULL, *target = NULL;

    if (name[0] == '/')
        target = strdup(name);
    else if (start && asprintf(&target, "%s/%s", folder ? folder : start, name) < 0)
        target = NULL;
    free(folder);
    free(start);
    return target;
}

/* Resolve symbolic links, also if the file does not exist; NULL if out of host memory. */
static char *resolve_target(const char *path)
{
    char *target = realpath(path, NULL);
    char link_target[PATH_MAX];
    ssize_t length;

    if (target)
        return target;
    target = path_in_folder(path, strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
    for (unsigned links = 0; target && links < LINKS_MAX; links++) {
        length = readlink(target, link_target, sizeof(link_target) - 1);
        if (length <= 0)
            break;
        char *link = target;

        link_target[length] = '\0';
        target = path_in_folder(link, link_target);
        free(link);
    }
    return target;
}

/* Returns false with errno. */
static bool open_temporary(struct output_file *file)
{
    file->target = resolve_target(file->path);
    if (!file->target || asprintf(&file->temporary, "%s.XXXXXX", file->target) < 0) {
        file->temporary = NULL;
        errno = ENOMEM;
        return false;
    }
    if (is_open(file->target)) {
        errno = EBUSY; /* two options name the same file */
        return false;
    }
    if (!create_temporary(file))
        return false;
    set_mode(file);
    return true;
}

bool output_file_open(struct output_file *file, const char *path, char *const *inputs,
                      int input_count)
{
    bool success;

    *file = (struct output_file){.path = path, .descriptor = -1};
    if (strcmp(path, "-") == 0) {
        file->out = stdout;
        return true;
    }
    install_handlers();
    if (open_directly(file)) {
        success = file->descriptor >= 0;
    } else if (is_input(path, inputs, input_count)) {
        message_error("%s is an input file; choose another output file", path);
        return false;
    } else {
        success = open_temporary(file);
    }
    if (success && open_stream(file))
        return true;
    (void)report_error(file, errno);
    if (file->temporary && file->descriptor >= 0)
        (void)unlink(file->temporary);
    release_paths(file);
    return false;
}

bool output_file_open_second(struct output_file *file, const char *path, char *const *inputs,
                             int input_count, FILE **report)
{
    *file = (struct output_file){.path = path};
    if (!path)
        return true;
    if (strcmp(path, "-") == 0)
        *report = stderr;
    return output_file_open(file, path, inputs, input_count);
}

bool output_file_close(struct output_file *file, bool is_complete)
{
    /* output_finish() reports errors of standard output. */
    if (!file->out || file->out == stdout)
        return is_complete;
    if (fclose(file->out) != 0 && file->error == 0)
        file->error = errno;
    if (file->error == 0 && is_complete && file->temporary &&
        rename(file->temporary, file->target) != 0)
        file->error = errno;
    if (file->error != 0)
        is_complete = report_error(file, file->error);
    if (!is_complete && file->temporary)
        (void)unlink(file->temporary);
    release_paths(file);
    file->out = NULL;
    return is_complete;
}
