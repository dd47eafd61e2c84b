/* SPDX-License-Identifier: MIT */
/*
 * A pickle writer: dictionaries, lists, strings and numbers, written front to back through one buffer.
 *
 * Pickles are of protocol 4 without frames, and use only the opcodes that the viewer of PyTorch's snapshots
 * reads (docs/snapshots.md).  Items come in batches of at most 1000, as Python writes them.
 *
 * Terms:
 *   word    a key or another frequent string: an index into the table of the document.  The pickle contains each word
 *           once
 *   memo    the index of a value in the memo of the pickle, from 1 on, by which later values refer to it; 0: none
 *   mark    a position in the document to which the writer can return
 *
 * Bytes of strings that are not UTF-8 are written as question marks.  Numbers above INT64_MAX are written as INT64_MAX,
 * because some readers reject longer ones.
 *
 * Locking: none.  A document is used by one thread.
 */
#ifndef XSEG_BASE_PICKLE_WRITER_H
#define XSEG_BASE_PICKLE_WRITER_H

#include "src/base/file_writer.h"

/* How deep dictionaries and lists lie in each other, at the most. */
#define XSEG_PICKLE_MAX_DEPTH 12u

/* Words that a table may have, at the most. */
#define XSEG_PICKLE_MAX_INTERNED 160u

/* A dictionary or list that has not ended. */
struct xseg_pickle_level {
    bool is_dict;
    uint64_t items; /* so far; of a dictionary its keys */
};

struct xseg_pickle_writer {
    struct xseg_file_writer *output;
    const char *const *words;
    uint32_t memos;                               /* given so far */
    uint32_t word_memo[XSEG_PICKLE_MAX_INTERNED]; /* of each word; 0: it has not come yet */
    struct xseg_pickle_level level[XSEG_PICKLE_MAX_DEPTH];
    unsigned depth;
};

struct xseg_pickle_savepoint {
    uint64_t place;
    uint32_t memos;
    uint64_t items;
    unsigned depth;
};

/* words: ASCII strings by index, which outlive the document */
void xseg_pickle_begin(struct xseg_pickle_writer *document, struct xseg_file_writer *output,
                       const char *const *words);

/* End the document, whose one value is complete, and send it.  Returns false if anything failed; output->error says what. */
bool xseg_pickle_end(struct xseg_pickle_writer *document);

void xseg_pickle_open_dict(struct xseg_pickle_writer *document);
void xseg_pickle_open_list(struct xseg_pickle_writer *document);
void xseg_pickle_close(
    struct xseg_pickle_writer *document); /* the dictionary or list that began last */

/* The key of the next value. */
void xseg_pickle_key(struct xseg_pickle_writer *document, unsigned word);

void xseg_pickle_interned(struct xseg_pickle_writer *document, unsigned word);
void xseg_pickle_string(struct xseg_pickle_writer *document, const char *text, size_t length);
void xseg_pickle_uint(struct xseg_pickle_writer *document, uint64_t number);
void xseg_pickle_int(struct xseg_pickle_writer *document, int64_t number);
void xseg_pickle_float(struct xseg_pickle_writer *document, double number);
void xseg_pickle_bool(struct xseg_pickle_writer *document, bool value);
void xseg_pickle_pair(struct xseg_pickle_writer *document, uint64_t first, uint64_t second);

/* Add the value that was written last, or the dictionary or list that has just begun, to the memo. */
uint32_t xseg_pickle_memoize(struct xseg_pickle_writer *document);

/* Write a reference to a value in the memo. */
void xseg_pickle_reference(struct xseg_pickle_writer *document, uint32_t memo);

struct xseg_pickle_savepoint xseg_pickle_savepoint(const struct xseg_pickle_writer *document);

/* Take back everything behind a mark; the dictionaries and lists that were open there still are.  Names that were given
 * since are void.  Returns false, and nothing has changed, if the file has no places. */
bool xseg_pickle_rollback(struct xseg_pickle_writer *document,
                          const struct xseg_pickle_savepoint *mark);

#endif
