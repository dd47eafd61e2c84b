/* SPDX-License-Identifier: MIT */
#include "src/base/pickle_writer.h"

#include <string.h>

#include "src/base/check.h"
#include "src/base/string_util.h"

#define BATCH 1000u /* items per opcode, as in Python's pickles */

/* Opcodes of Python's Lib/pickletools.py. */
enum {
    PROTO = 0x80,
    STOP = '.',
    MARK = '(',
    EMPTY_DICT = '}',
    SETITEMS = 'u',
    EMPTY_LIST = ']',
    APPENDS = 'e',
    TUPLE2 = 0x86,
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    BININT = 'J',
    BININT1 = 'K',
    BININT2 = 'M',
    LONG1 = 0x8a,
    BINFLOAT = 'G',
    SHORT_BINUNICODE = 0x8c,
    BINUNICODE = 'X',
    MEMOIZE = 0x94,
    BINGET = 'h',
    LONG_BINGET = 'j'
};

static void put_byte(struct xseg_pickle_writer *pickle, unsigned char byte)
{
    xseg_file_writer_write_byte(pickle->file, byte);
}

/* Write a little-endian number. */
static void put_number(struct xseg_pickle_writer *pickle, uint64_t number, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        put_byte(pickle, (unsigned char)(number >> 8 * i));
}

static struct xseg_pickle_level *innermost_level(struct xseg_pickle_writer *pickle)
{
    XSEG_ASSERT(pickle->depth > 0);
    return &pickle->level[pickle->depth - 1];
}

void xseg_pickle_begin(struct xseg_pickle_writer *pickle, struct xseg_file_writer *file,
                       const char *const *strings)
{
    memset(pickle, 0, sizeof(*pickle));
    pickle->file = file;
    pickle->strings = strings;
    put_byte(pickle, PROTO);
    put_byte(pickle, 4);
}

bool xseg_pickle_end(struct xseg_pickle_writer *pickle)
{
    XSEG_ASSERT(pickle->depth == 0);
    put_byte(pickle, STOP);
    return xseg_file_writer_flush(pickle->file);
}

/* --- Items. --- */

/* Begin an item of the innermost dictionary or list, and a new batch after every BATCH items. */
static void begin_item(struct xseg_pickle_writer *pickle)
{
    struct xseg_pickle_level *level = innermost_level(pickle);
    const uint64_t items = level->items++;

    if (items % BATCH != 0)
        return;
    if (items > 0)
        put_byte(pickle, level->is_dict ? SETITEMS : APPENDS);
    put_byte(pickle, MARK);
}

/* Begin a value: the whole pickle, the value of a key, or an item of a list. */
static void begin_value(struct xseg_pickle_writer *pickle)
{
    if (pickle->depth > 0 && !innermost_level(pickle)->is_dict)
        begin_item(pickle);
}

static void open_level(struct xseg_pickle_writer *pickle, bool is_dict)
{
    begin_value(pickle);
    put_byte(pickle, is_dict ? EMPTY_DICT : EMPTY_LIST);
    XSEG_ASSERT(pickle->depth < XSEG_PICKLE_MAX_DEPTH);
    pickle->level[pickle->depth++] = (struct xseg_pickle_level){.is_dict = is_dict};
}

void xseg_pickle_open_dict(struct xseg_pickle_writer *pickle)
{
    open_level(pickle, true);
}

void xseg_pickle_open_list(struct xseg_pickle_writer *pickle)
{
    open_level(pickle, false);
}

void xseg_pickle_close(struct xseg_pickle_writer *pickle)
{
    const struct xseg_pickle_level level = *innermost_level(pickle);

    pickle->depth--;
    if (level.items > 0)
        put_byte(pickle, level.is_dict ? SETITEMS : APPENDS);
}

/* --- The memo. --- */

uint32_t xseg_pickle_memoize(struct xseg_pickle_writer *pickle)
{
    put_byte(pickle, MEMOIZE);
    return ++pickle->memo_count;
}

static void put_reference(struct xseg_pickle_writer *pickle, uint32_t memo)
{
    XSEG_ASSERT(memo > 0 && memo <= pickle->memo_count);
    if (memo <= 256) {
        put_byte(pickle, BINGET);
        put_number(pickle, memo - 1, 1);
    } else {
        put_byte(pickle, LONG_BINGET);
        put_number(pickle, memo - 1, 4);
    }
}

void xseg_pickle_reference(struct xseg_pickle_writer *pickle, uint32_t memo)
{
    begin_value(pickle);
    put_reference(pickle, memo);
}

/* --- Strings. --- */

/* Write a string; each byte that is not valid UTF-8 becomes a question mark. */
static void put_utf8(struct xseg_pickle_writer *pickle, const unsigned char *text, size_t length)
{
    for (size_t offset = 0; offset < length;) {
        const size_t bytes = xseg_utf8_measure(text + offset, length - offset);

        if (bytes == 0)
            put_byte(pickle, '?');
        else
            xseg_file_writer_write(pickle->file, text + offset, bytes);
        offset += bytes == 0 ? 1 : bytes;
    }
}

static void put_string(struct xseg_pickle_writer *pickle, const char *text, size_t length)
{
    XSEG_ASSERT(length <= UINT32_MAX);
    put_byte(pickle, length < 256 ? SHORT_BINUNICODE : BINUNICODE);
    put_number(pickle, length, length < 256 ? 1 : 4);
    put_utf8(pickle, (const unsigned char *)text, length);
}

void xseg_pickle_string(struct xseg_pickle_writer *pickle, const char *text, size_t length)
{
    begin_value(pickle);
    put_string(pickle, text, length);
}

static void put_interned(struct xseg_pickle_writer *pickle, unsigned string)
{
    const char *text = pickle->strings[string];

    XSEG_ASSERT(string < XSEG_PICKLE_MAX_INTERNED && text != NULL);
    if (pickle->string_memo[string] != 0) {
        put_reference(pickle, pickle->string_memo[string]);
        return;
    }
    put_string(pickle, text, strlen(text));
    pickle->string_memo[string] = xseg_pickle_memoize(pickle);
}

void xseg_pickle_interned(struct xseg_pickle_writer *pickle, unsigned string)
{
    begin_value(pickle);
    put_interned(pickle, string);
}

void xseg_pickle_key(struct xseg_pickle_writer *pickle, unsigned string)
{
    XSEG_ASSERT(innermost_level(pickle)->is_dict);
    begin_item(pickle);
    put_interned(pickle, string);
}

/* --- Numbers. --- */

/* The bytes of a number in two's complement. */
static unsigned signed_size(int64_t number)
{
    unsigned bytes = 1;

    while (bytes < 8 &&
           (number < -((int64_t)1 << (8 * bytes - 1)) || number >= (int64_t)1 << (8 * bytes - 1)))
        bytes++;
    return bytes;
}

static void put_integer(struct xseg_pickle_writer *pickle, int64_t number)
{
    if (number >= 0 && number < 1 << 8) {
        put_byte(pickle, BININT1);
        put_number(pickle, (uint64_t)number, 1);
    } else if (number >= 0 && number < 1 << 16) {
        put_byte(pickle, BININT2);
        put_number(pickle, (uint64_t)number, 2);
    } else if (number >= INT32_MIN && number <= INT32_MAX) {
        put_byte(pickle, BININT);
        put_number(pickle, (uint64_t)number, 4);
    } else {
        const unsigned bytes = signed_size(number);

        put_byte(pickle, LONG1);
        put_byte(pickle, (unsigned char)bytes);
        put_number(pickle, (uint64_t)number, bytes);
    }
}

void xseg_pickle_int(struct xseg_pickle_writer *pickle, int64_t number)
{
    begin_value(pickle);
    put_integer(pickle, number);
}

void xseg_pickle_uint(struct xseg_pickle_writer *pickle, uint64_t number)
{
    xseg_pickle_int(pickle, number > INT64_MAX ? INT64_MAX : (int64_t)number);
}

void xseg_pickle_float(struct xseg_pickle_writer *pickle, double number)
{
    uint64_t bits;

    begin_value(pickle);
    memcpy(&bits, &number, sizeof(bits));
    put_byte(pickle, BINFLOAT);
    put_number(pickle, __builtin_bswap64(bits), 8);
}

void xseg_pickle_bool(struct xseg_pickle_writer *pickle, bool value)
{
    begin_value(pickle);
    put_byte(pickle, value ? NEWTRUE : NEWFALSE);
}

void xseg_pickle_pair(struct xseg_pickle_writer *pickle, uint64_t first, uint64_t second)
{
    begin_value(pickle);
    put_integer(pickle, first > INT64_MAX ? INT64_MAX : (int64_t)first);
    put_integer(pickle, second > INT64_MAX ? INT64_MAX : (int64_t)second);
    put_byte(pickle, TUPLE2);
}

/* --- Savepoints. --- */

struct xseg_pickle_savepoint xseg_pickle_savepoint(const struct xseg_pickle_writer *pickle)
{
    return (struct xseg_pickle_savepoint){
        .offset = xseg_file_writer_offset(pickle->file),
        .memo_count = pickle->memo_count,
        .items = pickle->depth == 0 ? 0 : pickle->level[pickle->depth - 1].items,
        .depth = pickle->depth,
    };
}

bool xseg_pickle_rollback(struct xseg_pickle_writer *pickle,
                          const struct xseg_pickle_savepoint *savepoint)
{
    XSEG_ASSERT(pickle->depth >= savepoint->depth);
    if (!xseg_file_writer_truncate(pickle->file, savepoint->offset))
        return false;
    pickle->memo_count = savepoint->memo_count;
    pickle->depth = savepoint->depth;
    if (pickle->depth > 0)
        innermost_level(pickle)->items = savepoint->items;
    for (unsigned i = 0; i < XSEG_PICKLE_MAX_INTERNED; i++)
        if (pickle->string_memo[i] > savepoint->memo_count)
            pickle->string_memo[i] = 0;
    return true;
}
