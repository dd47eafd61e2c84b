/* SPDX-License-Identifier: MIT */
#include "src/tools/output/output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/output/complain.h"

void output_guard(void)
{
    /* Of a stream that was closed any use fails as before: what may be written cannot be read. */
    for (int number = 0; number <= STDERR_FILENO; number++)
        if (fcntl(number, F_GETFD) < 0)
            (void)!open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    (void)signal(SIGXFSZ, SIG_IGN);
}

/* The errno of the first flush of standard output that failed: after a failure the C library has nothing left to flush. */
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
    complain_named("the output cannot be written%s%s", flush_error ? ": " : "",
                   flush_error ? strerror(flush_error) : "");
    return false;
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
