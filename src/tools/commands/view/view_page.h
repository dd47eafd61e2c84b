/* SPDX-License-Identifier: MIT */
/* The page of `xseg view`: the parts before and after the data of the files.  page/pack.py generates it. */
#ifndef TOOLS_VIEW_PAGE_H
#define TOOLS_VIEW_PAGE_H

#include <stddef.h>

extern const unsigned char view_page_head[], view_page_tail[];
extern const size_t view_page_head_bytes, view_page_tail_bytes;

#endif
