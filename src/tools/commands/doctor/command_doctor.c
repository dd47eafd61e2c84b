/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"

#define PYTHON "python3"

/* `python -m xseg doctor`, with an error message if this Python does not have the package. */
static char program[] =
    "import sys\n"
    "try:\n"
    "    from xseg import _doctor\n"
    "except ImportError as error:\n"
    "    print(f'xseg doctor: {sys.executable} cannot import xseg: {error}; install the wheel or "
    "the '\n"
    "          'package of xseg for this Python, or run PYTHON -m xseg doctor', file=sys.stderr)\n"
    "    sys.exit(2)\n"
    "sys.exit(_doctor.main())\n";

/* The checks are in Python, because they import PyTorch and read the installed packages. */
static int command_doctor_run(const struct option_values *arguments)
{
    char python[] = PYTHON, option[] = "-c";
    char *command_line[] = {python, option, program, NULL};
    const int error = output_execute(PYTHON, command_line);

    (void)arguments;
    message_error("cannot start " PYTHON ": %s; activate the environment of the program, or run "
                  "PYTHON -m xseg doctor",
                  strerror(error));
    return COMMAND_ERROR;
}

const struct command command_doctor = {
    .name = "doctor",
    .run = command_doctor_run,
    .summary = "check how PyTorch and inference engines run on xseg here",
    .usage = "",
    .operands = COMMAND_NO_OPERANDS,
    .options = {OPTION_HELP},
    .description =
        "Prints what is in effect for a Python program that starts in this environment, and what "
        "conflicts: the allocator, the kind of segments, IPC of tensors, the variables that "
        "engines read, NCCL, `torch_memory_saver`, the plug-ins of vLLM and SGLang. Each line "
        "begins with `ok`, `note`, `warning` or `fail`; a `warning` or `fail` also states what "
        "to do.\n\n"
        "It does the same as `python3 -m xseg doctor`. Run that command with the Python of the "
        "program if it is another one. In a process, `xseg.torch.doctor()` prints the same.",
    .examples = {{"xseg run python3 -m xseg doctor", "what a program that `xseg run` starts finds"},
                 {"xseg doctor", "what a program finds that is started without `xseg run`"}},
    .exits = {"nothing fails", "something will fail",
              "an invalid argument, or no Python with xseg"},
};
