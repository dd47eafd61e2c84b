/* SPDX-License-Identifier: MIT */
/*
 * An encoder for the wire format of Protocol Buffers (https://protobuf.dev/programming-guides/encoding/).
 *
 * Fields are numbers, strings and messages.  A number is a varint: groups of seven bits, the lowest first.  A string or a
 * message follows its length.  protobuf-c is not used, because it requires the complete schema, and a tree of objects for
 * each message.
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
    unsigned char *bytes; /* [count] */
    size_t count, capacity;
    bool failed; /* host allocation failure: the message is incomplete */
};

/* Add a field.  A negative number of a field of type int64 is cast to uint64_t. */
void protobuf_number(struct protobuf *message, unsigned field, uint64_t number);
void protobuf_text(struct protobuf *message, unsigned field, const char *text);

/* Begin a field that is a message.  Returns its position, for protobuf_end(); the fields in between belong to the message. */
size_t protobuf_begin(struct protobuf *message, unsigned field);
void protobuf_end(struct protobuf *message, size_t position);

/* Write the message, and begin the next one. */
void protobuf_write(struct protobuf *message, FILE *out);

void protobuf_fini(struct protobuf *message);

#endif
