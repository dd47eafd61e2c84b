/* SPDX-License-Identifier: MIT */
#include "src/tools/lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define INPUT_BYTES  ((size_t)1 << 16)
#define BUFFER_BYTES ((size_t)1 << 18)
#define WINDOW_LOG   27 /* Zstandard's own limit for streams unless asked for more */

struct lines {
    FILE *file;
    ZSTD_DCtx *zstd; /* NULL for plain text */
    ZSTD_inBuffer input;
    bool in_frame;
    bool ended; /* no more text comes */
    uint64_t number;
    uint64_t text_bytes;
    size_t begin, end; /* text in buffer that is not handed out */
    char problem[160];
    char in[INPUT_BYTES];
    char buffer[BUFFER_BYTES];
};

static bool fail(struct lines *lines, const char *sentence, const char *detail)
{
    snprintf(lines->problem, sizeof(lines->problem), "%s%s%s", sentence, detail ? ": " : "",
             detail ? detail : "");
    return false;
}

/* Read more of the file into the input buffer; at its end the buffer stays empty. */
static bool read_input(struct lines *lines)
{
    errno = 0;
    size_t count = fread(lines->in, 1, INPUT_BYTES, lines->file);

    if (count == 0 && ferror(lines->file))
        return fail(lines, "cannot be read", strerror(errno));
    lines->input = (ZSTD_inBuffer){lines->in, count, 0};
    return true;
}

static bool is_compressed(const struct lines *lines)
{
    const unsigned char *byte = (const unsigned char *)lines->in;

    if (lines->input.size < 4)
        return false;
    uint32_t magic = (uint32_t)byte[0] | (uint32_t)byte[1] << 8 | (uint32_t)byte[2] << 16 |
                     (uint32_t)byte[3] << 24;
    return magic == ZSTD_MAGICNUMBER || (magic & 0xfffffff0u) == ZSTD_MAGIC_SKIPPABLE_START;
}

struct lines *lines_open(FILE *file)
{
    struct lines *lines = malloc(sizeof(*lines));

    if (!lines)
        return NULL;
    memset(lines, 0, offsetof(struct lines, in));
    lines->file = file;
    if (!read_input(lines) || !is_compressed(lines))
        return lines;
    lines->zstd = ZSTD_createDCtx();
    if (!lines->zstd ||
        ZSTD_isError(ZSTD_DCtx_setParameter(lines->zstd, ZSTD_d_windowLogMax, WINDOW_LOG))) {
        lines_close(lines);
        return NULL;
    }
    return lines;
}

void lines_close(struct lines *lines)
{
    if (!lines)
        return;
    ZSTD_freeDCtx(lines->zstd);
    free(lines);
}

/* Decompress into the room behind `end`, until something comes out or the file ends. */
static bool refill_compressed(struct lines *lines)
{
    ZSTD_outBuffer output = {lines->buffer, BUFFER_BYTES, lines->end};

    while (output.pos == lines->end) {
        /* A frame may still hold text when all its input has been taken. */
        if (lines->in_frame || lines->input.pos < lines->input.size) {
            size_t rest = ZSTD_decompressStream(lines->zstd, &output, &lines->input);

            if (ZSTD_isError(rest))
                return fail(lines, "the compressed data is damaged", ZSTD_getErrorName(rest));
            lines->in_frame = rest != 0;
        }
        if (output.pos > lines->end || lines->input.pos < lines->input.size)
            continue;
        if (!read_input(lines))
            return false;
        if (lines->input.size > 0)
            continue;
        if (lines->in_frame)
            return fail(lines, "the compressed data ends too early; the file was cut", NULL);
        lines->ended = true;
        return true;
    }
    lines->text_bytes += output.pos - lines->end;
    lines->end = output.pos;
    return true;
}

static bool refill_plain(struct lines *lines)
{
    if (lines->input.pos == lines->input.size && !read_input(lines))
        return false;

    size_t count = lines->input.size - lines->input.pos;
    size_t room = BUFFER_BYTES - lines->end;

    if (count == 0) {
        lines->ended = true;
        return true;
    }
    if (count > room)
        count = room;
    memcpy(lines->buffer + lines->end, lines->in + lines->input.pos, count);
    lines->input.pos += count;
    lines->text_bytes += count;
    lines->end += count;
    return true;
}

/* Bring more text behind what is left over. */
static bool refill(struct lines *lines)
{
    size_t left = lines->end - lines->begin;

    if (left > LINES_LONGEST)
        return fail(lines, "the line is longer than 16384 bytes", NULL);
    memmove(lines->buffer, lines->buffer + lines->begin, left);
    lines->begin = 0;
    lines->end = left;
    if (!(lines->zstd ? refill_compressed(lines) : refill_plain(lines)))
        return false;
    if (lines->text_bytes > LINES_TEXT)
        return fail(lines, "the text is longer than 4 GiB", NULL);
    return true;
}

enum lines_state lines_next(struct lines *lines, char **text)
{
    lines->number++;
    if (lines->problem[0])
        return LINES_BAD;
    for (;;) {
        char *start = lines->buffer + lines->begin;
        size_t left = lines->end - lines->begin;
        char *newline = left ? memchr(start, '\n', left) : NULL;

        if (newline) {
            size_t length = (size_t)(newline - start);

            if (length > LINES_LONGEST)
                fail(lines, "the line is longer than 16384 bytes", NULL);
            else if (memchr(start, '\0', length))
                fail(lines, "the line holds a NUL byte", NULL);
            if (lines->problem[0])
                return LINES_BAD;
            *newline = '\0';
            *text = start;
            lines->begin += length + 1;
            return LINES_NEXT;
        }
        if (lines->ended && left == 0)
            return LINES_END;
        if (lines->ended)
            fail(lines, "the file ends in the middle of a line", NULL);
        else
            refill(lines);
        if (lines->problem[0])
            return LINES_BAD;
    }
}

uint64_t lines_number(const struct lines *lines)
{
    return lines->number;
}

const char *lines_problem(const struct lines *lines)
{
    return lines->problem;
}
