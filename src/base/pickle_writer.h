/* SPDX-License-Identifier: MIT */
/*
 * A pickle writer: writes dictionaries, lists, strings and numbers front to back through a buffered file.
 *
 * The pickle has protocol 4 without frames, and only opcodes that the viewer of PyTorch's snapshots reads
 * (docs/history.md).  Items are written in batches of at most 1000, as in Python.  Bytes of strings that are not valid
 * UTF-8 become question marks.  Numbers above INT64_MAX become INT64_MAX, because some readers reject longer ones.
 *
 *   interned string  a key or another frequent string, passed as an index into the caller's table.  It is written once, and
 *                    referred to afterwards.
 *   memo             the pickle's table of values that can be referred to; entries count from 1, and 0 is none.
 *   savepoint        a position to which the writer can roll back.
 *
 * Locking: none; one thread uses a writer.
 */
#ifndef XSEG_BASE_PICKLE_WRITER_H
#define XSEG_BASE_PICKLE_WRITER_H

#include "src/base/file_writer.h"

/* The maximum nesting of dictionaries and lists. */
#define XSEG_PICKLE_MAX_DEPTH 12u

/* The maximum size of the table of interned strings. */
#define XSEG_PICKLE_MAX_INTERNED 160u

/* An open dictionary or list. */
struct xseg_pickle_level {
    bool is_dict;
    uint64_t items; /* written so far */
};

struct xseg_pickle_writer {
    struct xseg_file_writer *file;
    const char *const *strings;
    uint32_t memo_count;
    uint32_t
        string_memo[XSEG_PICKLE_MAX_INTERNED]; /* memo entry of each string; 0: not written yet */
    struct xseg_pickle_level level[XSEG_PICKLE_MAX_DEPTH];
    unsigned depth;
};

struct xseg_pickle_savepoint {
    uint64_t offset;
    uint32_t memo_count;
    uint64_t items;
    unsigned depth;
};

/* strings: the table of interned ASCII strings, which outlives the writer */
void xseg_pickle_begin(struct xseg_pickle_writer *pickle, struct xseg_file_writer *file,
                       const char *const *strings);

/* End the pickle after its one value, and flush the file.  Returns false if any write has failed (file->error). */
bool xseg_pickle_end(struct xseg_pickle_writer *pickle);

void xseg_pickle_open_dict(struct xseg_pickle_writer *pickle);
void xseg_pickle_open_list(struct xseg_pickle_writer *pickle);
/* Close the innermost dictionary or list. */
void xseg_pickle_close(struct xseg_pickle_writer *pickle);

/* Write the key of the next value. */
void xseg_pickle_key(struct xseg_pickle_writer *pickle, unsigned string);

void xseg_pickle_interned(struct xseg_pickle_writer *pickle, unsigned string);
void xseg_pickle_string(struct xseg_pickle_writer *pickle, const char *text, size_t length);
void xseg_pickle_uint(struct xseg_pickle_writer *pickle, uint64_t number);
void xseg_pickle_int(struct xseg_pickle_writer *pickle, int64_t number);
void xseg_pickle_float(struct xseg_pickle_writer *pickle, double number);
void xseg_pickle_bool(struct xseg_pickle_writer *pickle, bool value);
void xseg_pickle_pair(struct xseg_pickle_writer *pickle, uint64_t first, uint64_t second);

/* Add the last value, or the dictionary or list that was just opened, to the memo.  Returns its entry. */
uint32_t xseg_pickle_memoize(struct xseg_pickle_writer *pickle);

/* Write a reference to a value of the memo. */
void xseg_pickle_reference(struct xseg_pickle_writer *pickle, uint32_t memo);

struct xseg_pickle_savepoint xseg_pickle_savepoint(const struct xseg_pickle_writer *pickle);

/* Discard everything after a savepoint, at which the same dictionaries and lists are open.  Later memo entries become
 * invalid.  Returns false, without effect, if the file is not seekable. */
bool xseg_pickle_rollback(struct xseg_pickle_writer *pickle,
                          const struct xseg_pickle_savepoint *savepoint);

#endif
