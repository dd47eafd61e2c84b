/* SPDX-License-Identifier: MIT */
/*
 * What `xseg view` writes into its page for one file: facts as JSON, and columns of numbers.
 *
 * The columns are one stream of bytes, which is written as base64.  A number has a byte for each seven of its bits, the
 * lowest bits first; all of its bytes but the last have the highest bit set (LEB128).  Where a number n may be negative,
 * 2n is written for n >= 0 and -2n - 1 for n < 0.  The columns follow each other in the order in which
 * src/tools/commands/view/page/model.js reads them:
 *
 *   times    of each event its time in us, minus that of the one before (signed)
 *   summed   if the facts say that lives are summed: their bytes at each moment, minus those before (signed)
 *   frames   name, file, line, whether the file is a module and the line an offset in it
 *   stacks   number of frames, then the frames
 *   sites    of each stack 0, or 1 + the frame that is its site (sites.h)
 *   pools    two numbers
 *   lives    born, minus that of the one before; 0, or freed - born + 1; 0, or died - freed + 1; address, minus that of
 *            the one before (signed); bytes; stream; stack; stack of the free; pool; label
 *   spans    born (signed, minus that of the one before); died - born; address (as of lives); bytes; stream; pool;
 *            bytes of its pages, 0 where it is classic
 *   ooms     moment, bytes asked for, bytes that the device had left
 *   pages    address, bytes, reason: of the state at the end
 *
 * What is 0 of freed and died has not happened.  Streams and reasons are places in lists of the facts.
 *
 * Locking: none.
 */
#ifndef TOOLS_VIEW_MODEL_H
#define TOOLS_VIEW_MODEL_H

#include <stdio.h>

#include "src/tools/replay_model/replay_model.h"

/*
 * Write two elements of a page, `facts-N` and `columns-N`, of one device, with at most so many lives.
 *
 * @param summed   how many lives are in sums alone, because there are more
 * @param dropped  blocks that are left out
 *
 * Returns: false without host memory.  What could not be written is the stream's to say (ferror())
 */
bool view_model_write(FILE *out, unsigned number, const struct recording *recording,
                      const struct recording_device *device, size_t most_lives, size_t *summed,
                      struct replay_model_dropped *dropped);

#endif
