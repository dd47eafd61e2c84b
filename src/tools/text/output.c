/* SPDX-License-Identifier: MIT */
#include "src/tools/text/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/text/complain.h"

void output_guard(void)
{
    /* Of a stream that was closed any use fails as before: what may be written cannot be read. */
    for (int number = 0; number <= STDERR_FILENO; number++)
        if (fcntl(number, F_GETFD) < 0)
            (void)!open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

static bool is_written(const char *name, bool fine)
{
    if (!fine)
        complain_named("%s cannot be written%s%s", name, errno ? ": " : "",
                       errno ? strerror(errno) : "");
    return fine;
}

bool output_finish(void)
{
    errno = 0;
    return is_written("the output", fflush(stdout) == 0 && !ferror(stdout));
}

bool output_open(const char *path, FILE **out, FILE **report)
{
    if (!path)
        return true;
    if (strcmp(path, "-") == 0) {
        *out = stdout;
        *report = stderr;
        return true;
    }
    *out = fopen(path, "w");
    return is_written(path, *out);
}

bool output_close(const char *path, FILE *file)
{
    bool fine;

    if (!file || file == stdout)
        return true;
    errno = 0;
    fine = !ferror(file);
    return is_written(path, fclose(file) == 0 && fine);
}

bool output_json(FILE *out, json_t *object)
{
    if (!object)
        return complain_of_memory();
    (void)json_dumpf(object, out, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    (void)fputc('\n', out);
    json_decref(object);
    return true;
}

static void keep(json_t **to, bool fine)
{
    if (fine)
        return;
    json_decref(*to);
    *to = NULL;
}

void output_json_add(json_t **to, json_t *item)
{
    keep(to, json_array_append_new(*to, item) == 0);
}

void output_json_set(json_t **to, const char *key, json_t *item)
{
    keep(to, json_object_set_new(*to, key, item) == 0);
}

json_t *output_json_number(bool is_there, uint64_t number)
{
    return is_there ? json_integer((json_int_t)number) : NULL;
}
