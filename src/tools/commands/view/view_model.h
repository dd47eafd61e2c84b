/* SPDX-License-Identifier: MIT */
/*
 * The data of a file in the page of `xseg view`: a summary as JSON, and columns of numbers.
 *
 * The columns are one stream of bytes in base64.  A number is an unsigned LEB128.  A signed number n is written as 2n if
 * n >= 0, and as -2n - 1 otherwise.  src/tools/commands/view/page/model.js reads the columns in this order:
 *
 *   times    for each event its time in us, less that of the previous event (signed)
 *   summed   if lives are summed: their bytes at each moment, less those at the previous moment (signed)
 *   frames   name, file, line, whether the file is a module and the line an offset in it
 *   stacks   number of frames, and the frames
 *   sites    for each stack its site (sites.h), an index of the list in the summary
 *   pools    two numbers
 *   contexts label, compiled region, step, stage: texts, 0 for none
 *   lives    allocated_at, less that of the previous life; free_requested_at - allocated_at + 1, or 0; freed_at -
 *            free_requested_at + 1, or 0; address, less that of the previous life (signed); bytes; stream; stack; stack of the
 *            free; pool; context
 *   spans    mapped_at, less that of the previous span (signed); unmapped_at - mapped_at; address (as for lives); bytes;
 *            stream; pool; bytes of its pages, 0 for a classic segment
 *   ooms     moment, requested bytes, free bytes of the device
 *   pages    address, bytes, reason, registered bytes: of the state at the end
 *
 * 0 for free_requested_at or freed_at means never.  Streams and texts are indices of lists in the summary.
 *
 * Locking: none.
 */
#ifndef TOOLS_VIEW_MODEL_H
#define TOOLS_VIEW_MODEL_H

#include <stdio.h>

#include "src/tools/replay_model/replay_model.h"

/*
 * Write the elements `summary-N` and `columns-N` of the page.
 *
 * @param max_lives  maximum number of lives
 * @param summed     receives the number of lives that are only in sums
 * @param dropped    receives the blocks outside of segments, which are omitted
 * @return false on host allocation failure; ferror() reports output errors
 */
bool view_model_write(FILE *out, unsigned number, const struct recording *recording,
                      const struct recording_device *device, size_t max_lives, size_t *summed,
                      struct replay_model_dropped *dropped);

#endif
