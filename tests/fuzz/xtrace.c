/* SPDX-License-Identifier: MIT */
/* Reads any bytes as a trace, plain or compressed.  An accepted trace can be replayed, and the error of a rejected trace has a
 * line number. */
#include "tests/fuzz/replayable.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_any(data, size);
    return 0;
}
