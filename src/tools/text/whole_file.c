/* SPDX-License-Identifier: MIT */
#include "src/tools/text/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/tools/text/complain.h"

static bool complain_of(const struct whole_file *file)
{
    complain_named("%s cannot be written: %s", file->path, strerror(errno));
    return false;
}

/* Whether a place holds something that is no regular file. */
static bool is_special(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 && !S_ISREG(status.st_mode);
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

/* The mode that open() would have given. */
static void set_mode(int descriptor)
{
    const mode_t mask = umask(0);

    (void)umask(mask);
    (void)fchmod(descriptor, 0666 & ~mask);
}

/* --- Interrupts. --- */

static const int interrupts[] = {SIGINT, SIGTERM, SIGHUP};

/* The file that is being written; NULL: none. */
static const char *volatile unfinished;

static void remove_unfinished(int interrupt)
{
    if (unfinished)
        (void)unlink(unfinished);
    (void)raise(interrupt); /* it ends the process now */
}

/* Have no file left by an interrupt, unless it is ignored. */
static void watch_interrupts(void)
{
    struct sigaction action, old;

    memset(&action, 0, sizeof(action));
    action.sa_handler = remove_unfinished;
    action.sa_flags = (int)(SA_RESETHAND | SA_NODEFER);
    for (size_t i = 0; i < sizeof(interrupts) / sizeof(interrupts[0]); i++)
        if (sigaction(interrupts[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            (void)sigaction(interrupts[i], &action, NULL);
}

/* Make a file of a name that nothing else has, and note it before an interrupt can come. */
static int make_unfinished(char *name)
{
    sigset_t all, before;
    int descriptor;

    (void)sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &before);
    descriptor = mkostemp(name, O_CLOEXEC);
    if (descriptor >= 0)
        unfinished = name;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return descriptor;
}

/* --- Files. --- */

/* Open a file beside a place.  Returns false with errno. */
static bool open_beside(struct whole_file *file)
{
    int descriptor;

    file->place = realpath(file->path, NULL); /* of a file that is there; it may be a link */
    if (!file->place)
        file->place = strdup(file->path);
    if (!file->place || asprintf(&file->beside, "%s.XXXXXX", file->place) < 0) {
        file->beside = NULL;
        errno = ENOMEM;
        return false;
    }
    watch_interrupts();
    descriptor = make_unfinished(file->beside);
    if (descriptor < 0)
        return false;
    set_mode(descriptor);
    file->out = fdopen(descriptor, "w");
    if (!file->out) {
        (void)close(descriptor);
        (void)remove(file->beside);
    }
    return file->out != NULL;
}

static void free_names(struct whole_file *file)
{
    unfinished = NULL;
    free(file->place);
    free(file->beside);
}

bool whole_file_open(struct whole_file *file, const char *path, char *const *inputs,
                     int input_count)
{
    *file = (struct whole_file){.path = path};
    if (strcmp(path, "-") == 0) {
        file->out = stdout;
        return true;
    }
    if (is_special(path)) {
        file->out = fopen(path, "w");
    } else if (is_input(path, inputs, input_count)) {
        complain_named("%s is read: give another file to write", path);
        return false;
    } else {
        (void)open_beside(file);
    }
    if (file->out)
        return true;
    (void)complain_of(file);
    free_names(file);
    return false;
}

bool whole_file_close(struct whole_file *file, bool fine)
{
    bool whole;

    /* What could not be written to standard output is said at the end of the programme. */
    if (file->out == stdout)
        return fine;
    whole = !ferror(file->out);
    if ((fclose(file->out) != 0 || !whole) && fine)
        fine = complain_of(file);
    if (fine && file->beside && rename(file->beside, file->place) != 0)
        fine = complain_of(file);
    if (!fine && file->beside)
        (void)remove(file->beside);
    free_names(file);
    return fine;
}
