/* SPDX-License-Identifier: MIT */
#include "src/base/output.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "src/base/check.h"

void xseg_output_init(struct xseg_output *output, int file)
{
    const off_t origin = lseek(file, 0, SEEK_CUR);

    output->file = file;
    output->error = 0;
    output->origin = origin < 0 ? 0 : (uint64_t)origin;
    output->sent = 0;
    output->filled = 0;
}

static void send(struct xseg_output *output, const unsigned char *bytes, size_t count)
{
    while (count > 0 && output->error == 0) {
        const ssize_t sent = write(output->file, bytes, count);

        if (sent < 0 && errno != EINTR)
            output->error = errno;
        if (sent <= 0)
            continue;
        bytes += sent;
        count -= (size_t)sent;
        output->sent += (uint64_t)sent;
    }
}

bool xseg_output_flush(struct xseg_output *output)
{
    const uint64_t place = xseg_output_place(output);

    send(output, output->buffer, output->filled);
    output->filled = 0;
    /* What is dropped behind an error counts, so that places do not go back. */
    output->sent = place;
    return output->error == 0;
}

void xseg_output_write(struct xseg_output *output, const void *bytes, size_t count)
{
    const unsigned char *from = bytes;

    XSEG_ASSERT(output->filled <= XSEG_OUTPUT_BUFFER);
    while (count > 0) {
        const size_t room = XSEG_OUTPUT_BUFFER - output->filled;
        const size_t some = count < room ? count : room;

        memcpy(output->buffer + output->filled, from, some);
        output->filled += some;
        from += some;
        count -= some;
        if (output->filled == XSEG_OUTPUT_BUFFER)
            (void)xseg_output_flush(output);
    }
}

bool xseg_output_rewind(struct xseg_output *output, uint64_t place)
{
    XSEG_ASSERT(place <= xseg_output_place(output));
    if (place >= output->sent) {
        output->filled = (size_t)(place - output->sent);
        return true;
    }
    const off_t at = (off_t)(output->origin + place);
    if (lseek(output->file, at, SEEK_SET) < 0)
        return false;
    if (ftruncate(output->file, at) != 0) {
        (void)lseek(output->file, 0, SEEK_END);
        return false;
    }
    output->sent = place;
    output->filled = 0;
    return true;
}
