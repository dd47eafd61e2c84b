/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES ((size_t)1 << 18)

struct lines {
    struct input *input;
    bool ended; /* no more text comes */
    uint64_t number;
    size_t begin, end; /* text in buffer that is not handed out */
    const char *problem;
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

/* Bring more text behind what is left over. */
static void refill(struct lines *lines)
{
    size_t left = lines->end - lines->begin;

    if (left > LINES_LONGEST) {
        lines->problem = "the line is longer than 16384 bytes";
        return;
    }
    memmove(lines->buffer, lines->buffer + lines->begin, left);
    lines->begin = 0;
    lines->end = left + input_read(lines->input, lines->buffer + left, BUFFER_BYTES - left);
    lines->ended = lines->end == left;
    lines->problem = input_problem(lines->input);
}

enum lines_state lines_next(struct lines *lines, char **text)
{
    lines->number++;
    if (lines->problem)
        return LINES_BAD;
    for (;;) {
        char *start = lines->buffer + lines->begin;
        size_t left = lines->end - lines->begin;
        char *newline = left ? memchr(start, '\n', left) : NULL;

        if (newline) {
            size_t length = (size_t)(newline - start);

            if (length > LINES_LONGEST)
                lines->problem = "the line is longer than 16384 bytes";
            else if (memchr(start, '\0', length))
                lines->problem = "the line holds a NUL byte";
            if (lines->problem)
                return LINES_BAD;
            *newline = '\0';
            *text = start;
            lines->begin += length + 1;
            return LINES_NEXT;
        }
        if (lines->ended && left == 0)
            return LINES_END;
        if (lines->ended)
            lines->problem = "the file ends in the middle of a line";
        else
            refill(lines);
        if (lines->problem)
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
