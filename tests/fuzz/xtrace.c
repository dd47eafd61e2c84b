/* SPDX-License-Identifier: MIT */
/* Any bytes as a trace, plain or compressed: an accepted trace can be replayed, and the error of a rejected one has a line number. */
#include "tests/fuzz/replayable.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_any(data, size);
    return 0;
}
