/* SPDX-License-Identifier: MIT */
/*
 * What does the shortest way cost: malloc and free of one block, which is always the same one?
 */
#include "benchmarks/measure.h"
#include "benchmarks/subject.h"

static uint64_t same_block(void *self, uint64_t count)
{
    const size_t bytes = *(const size_t *)self;
    const uint64_t began = measure_now();

    for (uint64_t i = 0; i < count; i++)
        subject_free(subject_alloc(bytes, 0));
    return measure_now() - began;
}

int main(int argc, char **argv)
{
    size_t small = 4096, large = 8 << 20;

    measure_open(argc, argv, 1);
    (void)measure_steps(&(struct measure){"hit", "4 KiB", 100000, same_block, &small});
    (void)measure_steps(&(struct measure){"hit", "8 MiB", 100000, same_block, &large});
    return 0;
}
