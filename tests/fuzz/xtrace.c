/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a trace, plain or compressed.  What is accepted can be replayed; what is refused names
 * a line.
 */
#include "tests/fuzz/replayable.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_any(data, size);
    return 0;
}
