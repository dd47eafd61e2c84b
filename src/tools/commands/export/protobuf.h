/* SPDX-License-Identifier: MIT */
/*
 * A message in the wire format of Protocol Buffers, which is built field by field
 * (https://protobuf.dev/programming-guides/encoding/).
 *
 * Fields are numbers, texts and messages.  A number is a varint: groups of seven bits, the lowest first.  A text or a
 * message has its length before it.  The library for C (protobuf-c) is not used: it would need the whole schema compiled
 * in, and a tree of objects for each message.
 *
 * Locking: none; a message belongs to one thread.
 */
#ifndef TOOLS_PROTOBUF_H
#define TOOLS_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct protobuf {
    unsigned char *bytes; /* [count], the message so far */
    size_t count, room;
    bool failed; /* host memory ran out: the message is not whole */
};

/* Add a field.  A negative number of a field of type int64 is cast to uint64_t. */
void protobuf_number(struct protobuf *message, unsigned field, uint64_t number);
void protobuf_text(struct protobuf *message, unsigned field, const char *text);

/* Begin a field that is a message, and end the one that began at a place; in between all fields are that message's. */
size_t protobuf_begin(struct protobuf *message, unsigned field);
void protobuf_end(struct protobuf *message, size_t place);

/* Write the message, and begin with the next one. */
void protobuf_write(struct protobuf *message, FILE *out);

void protobuf_fini(struct protobuf *message);

#endif
