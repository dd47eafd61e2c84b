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
#ifndef XSEG_BASE_DOCUMENT_H
#define XSEG_BASE_DOCUMENT_H

#include "src/base/output.h"

/* How deep dictionaries and lists lie in each other, at the most. */
#define XSEG_DOCUMENT_DEPTH 12u

/* Words that a table may have, at the most. */
#define XSEG_DOCUMENT_WORDS 160u

/* A dictionary or list that has not ended. */
struct xseg_document_level {
    bool is_dict;
    uint64_t items; /* so far; of a dictionary its keys */
};

struct xseg_document {
    struct xseg_output *output;
    const char *const *words;
    uint32_t memos;                          /* given so far */
    uint32_t word_memo[XSEG_DOCUMENT_WORDS]; /* of each word; 0: it has not come yet */
    struct xseg_document_level level[XSEG_DOCUMENT_DEPTH];
    unsigned depth;
};

struct xseg_document_mark {
    uint64_t place;
    uint32_t memos;
    uint64_t items;
    unsigned depth;
};

/* words: ASCII strings by index, which outlive the document */
void xseg_document_begin(struct xseg_document *document, struct xseg_output *output,
                         const char *const *words);

/* End the document, whose one value is complete, and send it.  Returns false if anything failed; output->error says what. */
bool xseg_document_end(struct xseg_document *document);

void xseg_document_dict(struct xseg_document *document);
void xseg_document_list(struct xseg_document *document);
void xseg_document_close(
    struct xseg_document *document); /* the dictionary or list that began last */

/* The key of the next value. */
void xseg_document_key(struct xseg_document *document, unsigned word);

void xseg_document_word(struct xseg_document *document, unsigned word);
void xseg_document_text(struct xseg_document *document, const char *text, size_t length);
void xseg_document_number(struct xseg_document *document, uint64_t number);
void xseg_document_signed(struct xseg_document *document, int64_t number);
void xseg_document_real(struct xseg_document *document, double number);
void xseg_document_bool(struct xseg_document *document, bool value);
void xseg_document_pair(struct xseg_document *document, uint64_t first, uint64_t second);

/* Add the value that was written last, or the dictionary or list that has just begun, to the memo. */
uint32_t xseg_document_remember(struct xseg_document *document);

/* Write a reference to a value in the memo. */
void xseg_document_recall(struct xseg_document *document, uint32_t memo);

struct xseg_document_mark xseg_document_mark(const struct xseg_document *document);

/* Take back everything behind a mark; the dictionaries and lists that were open there still are.  Names that were given
 * since are void.  Returns false, and nothing has changed, if the file has no places. */
bool xseg_document_rewind(struct xseg_document *document, const struct xseg_document_mark *mark);

#endif
