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

bool output_finish(const char *who)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    complain("%s: the output cannot be written%s%s", who, errno ? ": " : "",
             errno ? strerror(errno) : "");
    return false;
}
