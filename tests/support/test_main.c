/* SPDX-License-Identifier: MIT */
#include "tests/support/test.h"

int main(int argc, char **argv)
{
    if (argc > 1)
        test_select(argv[1]);
    return test_run();
}
