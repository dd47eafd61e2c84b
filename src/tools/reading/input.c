/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/input.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zstd.h>

#include "src/tools/output/progress.h"

#define FILE_BYTES ((size_t)1 << 16)
#define WINDOW_LOG 27 /* Zstandard's default limit for streams */

struct input {
    FILE *file;
    ZSTD_DCtx *zstd; /* NULL for plain contents */
    ZSTD_inBuffer raw;
    bool in_frame;
    bool is_folder;
    size_t begin_read;              /* bytes of `begin` that were returned */
    size_t begin_count;             /* bytes in `begin`; 0 before input_begin() */
    uint64_t bytes;                 /* decompressed so far */
    uint64_t file_read, file_bytes; /* bytes of the file: read so far, and its size; 0: unknown */
    char error[160];
    unsigned char begin[INPUT_BEGIN_MAX];
    char buffer[FILE_BYTES];
};

static bool fail(struct input *input, const char *message, const char *detail)
{
    snprintf(input->error, sizeof(input->error), "%s%s%s", message, detail ? ": " : "",
             detail ? detail : "");
    return false;
}

/* Read more of the file into the buffer; at the end of the file the buffer remains empty. */
static bool refill(struct input *input)
{
    errno = 0;
    size_t count = fread(input->buffer, 1, FILE_BYTES, input->file);

    if (count == 0 && ferror(input->file))
        return fail(input, "cannot be read", strerror(errno));
    input->raw = (ZSTD_inBuffer){input->buffer, count, 0};
    input->file_read += count;
    progress_update(input->file_read, input->file_bytes);
    return true;
}

static bool is_compressed(const struct input *input)
{
    const unsigned char *byte = (const unsigned char *)input->buffer;

    if (input->raw.size < 4)
        return false;
    uint32_t magic = (uint32_t)byte[0] | (uint32_t)byte[1] << 8 | (uint32_t)byte[2] << 16 |
                     (uint32_t)byte[3] << 24;
    return magic == ZSTD_MAGICNUMBER || (magic & 0xfffffff0u) == ZSTD_MAGIC_SKIPPABLE_START;
}

struct input *input_open(FILE *file)
{
    struct input *input = malloc(sizeof(*input));
    struct stat status = {0};

    if (!input)
        return NULL;
    memset(input, 0, offsetof(struct input, begin));
    input->file = file;
    (void)fstat(fileno(file), &status);
    input->is_folder = S_ISDIR(status.st_mode);
    input->file_bytes = S_ISREG(status.st_mode) ? (uint64_t)status.st_size : 0;
    if (!refill(input) || !is_compressed(input))
        return input;
    input->zstd = ZSTD_createDCtx();
    if (!input->zstd ||
        ZSTD_isError(ZSTD_DCtx_setParameter(input->zstd, ZSTD_d_windowLogMax, WINDOW_LOG))) {
        input_close(input);
        return NULL;
    }
    return input;
}

void input_close(struct input *input)
{
    if (!input)
        return;
    ZSTD_freeDCtx(input->zstd);
    free(input);
}

/* Decompress until there is output or the file ends. */
static size_t read_compressed(struct input *input, void *buffer, size_t capacity)
{
    ZSTD_outBuffer output = {buffer, capacity, 0};

    while (output.pos == 0) {
        /* The decompressor may have more output after it has consumed all input. */
        if (input->in_frame || input->raw.pos < input->raw.size) {
            size_t result = ZSTD_decompressStream(input->zstd, &output, &input->raw);

            if (ZSTD_isError(result)) {
                fail(input, "the compressed data is damaged", ZSTD_getErrorName(result));
                return 0;
            }
            input->in_frame = result != 0;
        }
        if (output.pos > 0 || input->raw.pos < input->raw.size)
            continue;
        if (!refill(input))
            return 0;
        if (input->raw.size > 0)
            continue;
        if (input->in_frame)
            fail(input, "the compressed data is truncated", NULL);
        break;
    }
    return output.pos;
}

static size_t read_plain(struct input *input, void *to, size_t capacity)
{
    if (input->raw.pos == input->raw.size && !refill(input))
        return 0;

    size_t count = input->raw.size - input->raw.pos;

    if (count > capacity)
        count = capacity;
    memcpy(to, input->buffer + input->raw.pos, count);
    input->raw.pos += count;
    return count;
}

/* Read the bytes after `begin`. */
static size_t read_next(struct input *input, void *to, size_t capacity)
{
    size_t count = 0;

    if (input->error[0])
        return 0;
    count = input->zstd ? read_compressed(input, to, capacity) : read_plain(input, to, capacity);
    input->bytes += count;
    if (input->bytes <= INPUT_MAX)
        return count;
    fail(input, "the decompressed file exceeds 4 GiB", NULL);
    return 0;
}

size_t input_read(struct input *input, void *to, size_t capacity)
{
    size_t count = input->begin_count - input->begin_read;

    if (count == 0)
        return read_next(input, to, capacity);
    if (count > capacity)
        count = capacity;
    memcpy(to, input->begin + input->begin_read, count);
    input->begin_read += count;
    return count;
}

size_t input_begin(struct input *input, const unsigned char **bytes)
{
    size_t count = 0;

    *bytes = input->begin;
    if (input->begin_count == 0 && input->bytes == 0) {
        do {
            input->begin_count += count;
            count = read_next(input, input->begin + input->begin_count,
                              sizeof(input->begin) - input->begin_count);
        } while (count > 0 && input->begin_count + count < sizeof(input->begin));
        input->begin_count += count;
    }
    return input->begin_count;
}

int input_peek(struct input *input)
{
    const unsigned char *bytes;

    return input_begin(input, &bytes) > 0 ? bytes[0] : -1;
}

const char *input_error(const struct input *input)
{
    return input->error[0] ? input->error : NULL;
}

bool input_is_folder(const struct input *input)
{
    return input->is_folder;
}

#define BUFFER_BYTES ((size_t)1 << 18)

struct lines {
    struct input *input;
    bool ended; /* no more data follows */
    uint64_t number;
    size_t begin, end; /* data in the buffer that was not returned */
    const char *error;
    char buffer[BUFFER_BYTES];
};

struct lines *lines_open(struct input *input)
{
    struct lines *lines = malloc(sizeof(*lines));

    if (!lines)
        return NULL;
    memset(lines, 0, offsetof(struct lines, buffer));
    lines->input = input;
    return lines;
}

void lines_close(struct lines *lines)
{
    free(lines);
}

/* Move the remaining data to the front, and read more data. */
static void refill_lines(struct lines *lines)
{
    size_t remaining = lines->end - lines->begin;

    if (remaining > LINES_MAX) {
        lines->error = "the line is longer than 16384 bytes";
        return;
    }
    memmove(lines->buffer, lines->buffer + lines->begin, remaining);
    lines->begin = 0;
    lines->end =
        remaining + input_read(lines->input, lines->buffer + remaining, BUFFER_BYTES - remaining);
    lines->ended = lines->end == remaining;
    lines->error = input_error(lines->input);
}

enum lines_state lines_next(struct lines *lines, char **text)
{
    lines->number++;
    if (lines->error)
        return LINES_BAD;
    for (;;) {
        char *start = lines->buffer + lines->begin;
        size_t remaining = lines->end - lines->begin;
        char *newline = remaining ? memchr(start, '\n', remaining) : NULL;

        if (newline) {
            size_t length = (size_t)(newline - start);

            if (length > LINES_MAX)
                lines->error = "the line is longer than 16384 bytes";
            else if (memchr(start, '\0', length))
                lines->error = "the line contains a NUL byte";
            if (lines->error)
                return LINES_BAD;
            *newline = '\0';
            *text = start;
            lines->begin += length + 1;
            return LINES_NEXT;
        }
        if (lines->ended && remaining == 0)
            return LINES_END;
        if (lines->ended)
            lines->error = "the file ends in the middle of a line";
        else
            refill_lines(lines);
        if (lines->error)
            return LINES_BAD;
    }
}

uint64_t lines_number(const struct lines *lines)
{
    return lines->number;
}

const char *lines_error(const struct lines *lines)
{
    return lines->error;
}
