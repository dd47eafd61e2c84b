/* SPDX-License-Identifier: MIT */
#include "src/base/pickle_writer.h"

#include <string.h>

#include "src/base/check.h"
#include "src/base/string_util.h"

#define BATCH 1000u /* items that one opcode takes, as in Python's pickles */

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

static void put(struct xseg_pickle_writer *document, unsigned char byte)
{
    xseg_file_writer_write_byte(document->output, byte);
}

/* A little-endian number. */
static void put_number(struct xseg_pickle_writer *document, uint64_t number, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        put(document, (unsigned char)(number >> 8 * i));
}

static struct xseg_pickle_level *top(struct xseg_pickle_writer *document)
{
    XSEG_ASSERT(document->depth > 0);
    return &document->level[document->depth - 1];
}

void xseg_pickle_begin(struct xseg_pickle_writer *document, struct xseg_file_writer *output,
                       const char *const *words)
{
    memset(document, 0, sizeof(*document));
    document->output = output;
    document->words = words;
    put(document, PROTO);
    put(document, 4);
}

bool xseg_pickle_end(struct xseg_pickle_writer *document)
{
    XSEG_ASSERT(document->depth == 0);
    put(document, STOP);
    return xseg_file_writer_flush(document->output);
}

/* --- Items. --- */

/* Begin an item of the innermost dictionary or list, and a batch every BATCH items. */
static void begin_item(struct xseg_pickle_writer *document)
{
    struct xseg_pickle_level *level = top(document);
    const uint64_t items = level->items++;

    if (items % BATCH != 0)
        return;
    if (items > 0)
        put(document, level->is_dict ? SETITEMS : APPENDS);
    put(document, MARK);
}

/* Begin a value: the whole document, what a key stands for, or an item of a list. */
static void begin_value(struct xseg_pickle_writer *document)
{
    if (document->depth > 0 && !top(document)->is_dict)
        begin_item(document);
}

static void open_level(struct xseg_pickle_writer *document, bool is_dict)
{
    begin_value(document);
    put(document, is_dict ? EMPTY_DICT : EMPTY_LIST);
    XSEG_ASSERT(document->depth < XSEG_PICKLE_MAX_DEPTH);
    document->level[document->depth++] = (struct xseg_pickle_level){.is_dict = is_dict};
}

void xseg_pickle_open_dict(struct xseg_pickle_writer *document)
{
    open_level(document, true);
}

void xseg_pickle_open_list(struct xseg_pickle_writer *document)
{
    open_level(document, false);
}

void xseg_pickle_close(struct xseg_pickle_writer *document)
{
    const struct xseg_pickle_level level = *top(document);

    document->depth--;
    if (level.items > 0)
        put(document, level.is_dict ? SETITEMS : APPENDS);
}

/* --- Names. --- */

uint32_t xseg_pickle_memoize(struct xseg_pickle_writer *document)
{
    put(document, MEMOIZE);
    return ++document->memos;
}

static void get(struct xseg_pickle_writer *document, uint32_t memo)
{
    XSEG_ASSERT(memo > 0 && memo <= document->memos);
    if (memo <= 256) {
        put(document, BINGET);
        put_number(document, memo - 1, 1);
    } else {
        put(document, LONG_BINGET);
        put_number(document, memo - 1, 4);
    }
}

void xseg_pickle_reference(struct xseg_pickle_writer *document, uint32_t memo)
{
    begin_value(document);
    get(document, memo);
}

/* --- Texts. --- */

/* Write text with what is not UTF-8 as question marks, one for each byte. */
static void put_text(struct xseg_pickle_writer *document, const unsigned char *text, size_t length)
{
    for (size_t at = 0; at < length;) {
        const size_t bytes = xseg_utf8_measure(text + at, length - at);

        if (bytes == 0)
            put(document, '?');
        else
            xseg_file_writer_write(document->output, text + at, bytes);
        at += bytes == 0 ? 1 : bytes;
    }
}

static void put_string(struct xseg_pickle_writer *document, const char *text, size_t length)
{
    XSEG_ASSERT(length <= UINT32_MAX);
    put(document, length < 256 ? SHORT_BINUNICODE : BINUNICODE);
    put_number(document, length, length < 256 ? 1 : 4);
    put_text(document, (const unsigned char *)text, length);
}

void xseg_pickle_string(struct xseg_pickle_writer *document, const char *text, size_t length)
{
    begin_value(document);
    put_string(document, text, length);
}

static void put_word(struct xseg_pickle_writer *document, unsigned word)
{
    const char *text = document->words[word];

    XSEG_ASSERT(word < XSEG_PICKLE_MAX_INTERNED && text != NULL);
    if (document->word_memo[word] != 0) {
        get(document, document->word_memo[word]);
        return;
    }
    put_string(document, text, strlen(text));
    document->word_memo[word] = xseg_pickle_memoize(document);
}

void xseg_pickle_interned(struct xseg_pickle_writer *document, unsigned word)
{
    begin_value(document);
    put_word(document, word);
}

void xseg_pickle_key(struct xseg_pickle_writer *document, unsigned word)
{
    XSEG_ASSERT(top(document)->is_dict);
    begin_item(document);
    put_word(document, word);
}

/* --- Numbers. --- */

/* How many bytes a number takes in two's complement. */
static unsigned measure_number(int64_t number)
{
    unsigned bytes = 1;

    while (bytes < 8 &&
           (number < -((int64_t)1 << (8 * bytes - 1)) || number >= (int64_t)1 << (8 * bytes - 1)))
        bytes++;
    return bytes;
}

static void put_integer(struct xseg_pickle_writer *document, int64_t number)
{
    if (number >= 0 && number < 1 << 8) {
        put(document, BININT1);
        put_number(document, (uint64_t)number, 1);
    } else if (number >= 0 && number < 1 << 16) {
        put(document, BININT2);
        put_number(document, (uint64_t)number, 2);
    } else if (number >= INT32_MIN && number <= INT32_MAX) {
        put(document, BININT);
        put_number(document, (uint64_t)number, 4);
    } else {
        const unsigned bytes = measure_number(number);

        put(document, LONG1);
        put(document, (unsigned char)bytes);
        put_number(document, (uint64_t)number, bytes);
    }
}

void xseg_pickle_int(struct xseg_pickle_writer *document, int64_t number)
{
    begin_value(document);
    put_integer(document, number);
}

void xseg_pickle_uint(struct xseg_pickle_writer *document, uint64_t number)
{
    xseg_pickle_int(document, number > INT64_MAX ? INT64_MAX : (int64_t)number);
}

void xseg_pickle_float(struct xseg_pickle_writer *document, double number)
{
    uint64_t bits;

    begin_value(document);
    memcpy(&bits, &number, sizeof(bits));
    put(document, BINFLOAT);
    put_number(document, __builtin_bswap64(bits), 8);
}

void xseg_pickle_bool(struct xseg_pickle_writer *document, bool value)
{
    begin_value(document);
    put(document, value ? NEWTRUE : NEWFALSE);
}

void xseg_pickle_pair(struct xseg_pickle_writer *document, uint64_t first, uint64_t second)
{
    begin_value(document);
    put_integer(document, first > INT64_MAX ? INT64_MAX : (int64_t)first);
    put_integer(document, second > INT64_MAX ? INT64_MAX : (int64_t)second);
    put(document, TUPLE2);
}

/* --- Marks. --- */

struct xseg_pickle_savepoint xseg_pickle_savepoint(const struct xseg_pickle_writer *document)
{
    return (struct xseg_pickle_savepoint){
        .place = xseg_file_writer_offset(document->output),
        .memos = document->memos,
        .items = document->depth == 0 ? 0 : document->level[document->depth - 1].items,
        .depth = document->depth,
    };
}

bool xseg_pickle_rollback(struct xseg_pickle_writer *document,
                          const struct xseg_pickle_savepoint *mark)
{
    XSEG_ASSERT(document->depth >= mark->depth);
    if (!xseg_file_writer_truncate(document->output, mark->place))
        return false;
    document->memos = mark->memos;
    document->depth = mark->depth;
    if (document->depth > 0)
        top(document)->items = mark->items;
    for (unsigned i = 0; i < XSEG_PICKLE_MAX_INTERNED; i++)
        if (document->word_memo[i] > mark->memos)
            document->word_memo[i] = 0;
    return true;
}
