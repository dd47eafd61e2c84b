/* SPDX-License-Identifier: MIT */
#include "src/core/snapshot/words.h"

#include "src/base/document.h"

#define TEXT(name, text) text,
const char *const xseg_snapshot_words[XSEG_SNAPSHOT_WORD_COUNT] = {XSEG_SNAPSHOT_WORDS(TEXT)};

_Static_assert(XSEG_SNAPSHOT_WORD_COUNT <= XSEG_DOCUMENT_WORDS,
               "a document has room for all words");
