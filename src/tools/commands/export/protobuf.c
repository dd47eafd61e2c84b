/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/export/protobuf.h"

#include <stdlib.h>
#include <string.h>

#define VARINT_MAX 10u /* bytes of a 64-bit number */

/* The wire type: the lower three bits of the key of a field. */
enum wire_type { WIRE_VARINT = 0, WIRE_LENGTH = 2 };

static bool reserve_bytes(struct protobuf *message, size_t bytes)
{
    size_t capacity = message->capacity ? message->capacity : 256;
    unsigned char *grown;

    if (message->failed || message->capacity - message->count >= bytes)
        return !message->failed;
    while (capacity - message->count < bytes)
        capacity *= 2;
    grown = realloc(message->bytes, capacity);
    if (!grown) {
        message->failed = true;
        return false;
    }
    message->bytes = grown;
    message->capacity = capacity;
    return true;
}

static size_t put_varint(unsigned char *to, uint64_t number)
{
    size_t count = 0;

    for (; number >= 0x80; number >>= 7)
        to[count++] = (unsigned char)(number | 0x80);
    to[count++] = (unsigned char)number;
    return count;
}

static void add_varint(struct protobuf *message, uint64_t number)
{
    if (reserve_bytes(message, VARINT_MAX))
        message->count += put_varint(message->bytes + message->count, number);
}

static void add_key(struct protobuf *message, unsigned field, enum wire_type type)
{
    add_varint(message, (uint64_t)field << 3 | type);
}

void protobuf_number(struct protobuf *message, unsigned field, uint64_t number)
{
    add_key(message, field, WIRE_VARINT);
    add_varint(message, number);
}

void protobuf_text(struct protobuf *message, unsigned field, const char *text)
{
    const size_t bytes = strlen(text);

    add_key(message, field, WIRE_LENGTH);
    add_varint(message, bytes);
    if (!reserve_bytes(message, bytes))
        return;
    memcpy(message->bytes + message->count, text, bytes);
    message->count += bytes;
}

size_t protobuf_begin(struct protobuf *message, unsigned field)
{
    add_key(message, field, WIRE_LENGTH);
    return message->count;
}

void protobuf_end(struct protobuf *message, size_t position)
{
    unsigned char length[VARINT_MAX];
    size_t bytes;

    if (message->failed)
        return;
    bytes = put_varint(length, message->count - position);
    if (!reserve_bytes(message, bytes))
        return;
    memmove(message->bytes + position + bytes, message->bytes + position,
            message->count - position);
    memcpy(message->bytes + position, length, bytes);
    message->count += bytes;
}

void protobuf_write(struct protobuf *message, FILE *out)
{
    if (!message->failed && message->count > 0)
        (void)fwrite(message->bytes, 1, message->count, out);
    message->count = 0;
}

void protobuf_fini(struct protobuf *message)
{
    free(message->bytes);
    *message = (struct protobuf){0};
}
