/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/output/installation.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "xseg/allocator.h"

#define LIBRARY    "libxseg-ipc.so"
#define EXPANDABLE "expandable_segments"

/* The library in the folder of libxseg.so, and in a build folder. */
static const char *const library_paths[] = {LIBRARY, "src/adapters/ipc/" LIBRARY};

/* Find the absolute path of libxseg-ipc.so.  Returns NULL after an error message. */
static const char *find_library(void)
{
    static char found[PATH_MAX];
    char path[PATH_MAX];

    for (size_t i = 0; i < sizeof(library_paths) / sizeof(library_paths[0]); i++)
        if (installation_path(library_paths[i], path, sizeof(path)) && realpath(path, found)) {
            /* LD_PRELOAD has no escape for its separators. */
            if (!strpbrk(found, " :"))
                return found;
            message_error("cannot preload a path with a space or a colon, '%s'; install xseg in "
                          "another folder",
                          found);
            return NULL;
        }
    message_error(LIBRARY " not found next to libxseg.so; install the wheel or the package of "
                          "xseg again");
    return NULL;
}

/* Set a variable to `first`, `separator` and `suffix`, or only to `first` if `suffix` is empty. */
static bool set_joined(const char *name, const char *first, const char *separator,
                       const char *suffix)
{
    const bool is_alone = suffix == NULL || *suffix == '\0';
    const size_t bytes = strlen(first) + (is_alone ? 0 : strlen(separator) + strlen(suffix)) + 1;
    char *value = malloc(bytes);
    bool is_set = false;

    if (value) {
        (void)snprintf(value, bytes, "%s%s%s", first, is_alone ? "" : separator,
                       is_alone ? "" : suffix);
        is_set = setenv(name, value, 1) == 0;
    }
    free(value);
    return is_set || message_out_of_memory();
}

/* Add the library in front of LD_PRELOAD.  In a nested run, it is already there. */
static bool preload(const char *library)
{
    const char *preloaded = secure_getenv("LD_PRELOAD");
    const size_t length = strlen(library);

    if (preloaded && strncmp(preloaded, library, length) == 0 && strchr(": ", preloaded[length]))
        return true;
    return set_joined("LD_PRELOAD", library, ":", preloaded);
}

static bool read_expandable(void *context, const struct xseg_config_key *key)
{
    if (strcmp(key->name, EXPANDABLE) == 0)
        *(bool *)context = strcmp(key->value, "True") == 0;
    return true;
}

/* Add the effective value of expandable_segments to both variables of PyTorch.  A variable that is not set gets the value of
 * the other one, which PyTorch and xseg would otherwise ignore. */
static bool declare_expandable(void)
{
    bool is_expandable = false;
    char message[1024];
    static const char *const names[] = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"};
    char *values[2] = {NULL, NULL};
    bool is_set = true;

    if (xseg_config_keys(NULL, NULL, read_expandable, &is_expandable) != XSEG_OK) {
        (void)xseg_error_message(message, sizeof(message));
        message_error("%s", message);
        return false;
    }
    for (unsigned i = 0; i < 2 && is_set; i++) {
        const char *own_value = secure_getenv(names[i]), *other_value = secure_getenv(names[1 - i]);
        const char *value = own_value && *own_value ? own_value : other_value;

        values[i] = strdup(value ? value : "");
        is_set = values[i] != NULL || message_out_of_memory();
    }
    for (unsigned i = 0; i < 2 && is_set; i++)
        is_set =
            strstr(values[i], EXPANDABLE)
                ? setenv(names[i], values[i], 1) == 0 || message_out_of_memory()
                : set_joined(names[i], is_expandable ? EXPANDABLE ":True" : EXPANDABLE ":False",
                             ",", values[i]);
    free(values[0]);
    free(values[1]);
    return is_set;
}

static bool set_environment(const struct option_values *arguments)
{
    const char *library = find_library();

    if (!library || !preload(library) || !set_joined("XSEG_TORCH", "1", "", NULL))
        return false;
    if (option_given(arguments, OPTION_KEEP_EXPANDABLE) &&
        !set_joined("XSEG_TORCH_KEEP_EXPANDABLE", "1", "", NULL))
        return false;
    return !option_given(arguments, OPTION_DECLARE_EXPANDABLE) || declare_expandable();
}

static int command_run_run(const struct option_values *arguments)
{
    const char *program = arguments->operands[0];

    if (!set_environment(arguments))
        return COMMAND_ERROR;
    const int error = output_execute(program, arguments->operands);
    message_error("cannot start the program '%s': %s; %s", program, strerror(error),
                  error == ENOENT ? "check the name, or PATH"
                                  : "check that the file is executable and built for this host");
    return COMMAND_ERROR;
}

const struct command command_run = {
    .name = "run",
    .run = command_run_run,
    .summary = "start a program, such as an inference engine, on xseg",
    .usage = "PROGRAM [ARGUMENT]...",
    .required_operands = "a program",
    .operands = COMMAND_PROGRAM,
    .min_operands = 1,
    .max_operands = INT_MAX,
    .options = {OPTION_KEEP_EXPANDABLE, OPTION_DECLARE_EXPANDABLE, OPTION_COLOR, OPTION_HELP},
    .description =
        "Starts PROGRAM, and the processes that it starts, with PyTorch on xseg and with legacy "
        "IPC "
        "(`cudaIpcGetMemHandle`) of expandable memory, so that features such as the custom "
        "all-reduce of vLLM and SGLang work.\n\n"
        "It sets `XSEG_TORCH=1`, puts `libxseg-ipc.so` in front of `LD_PRELOAD`, and replaces "
        "itself by PROGRAM. The Python of PROGRAM must have the wheel of xseg. Memory that other "
        "libraries allocate is unchanged. `xseg run python -m xseg doctor` checks the result.",
    .examples =
        {
            {"xseg run vllm serve MODEL", "an inference server on xseg"},
            {"xseg run --keep-expandable python train.py",
             "a trainer that turns expandable segments off before each weight sync"},
            {"XSEG_ALLOC_CONF=idle_ms:2000 xseg run python serve.py",
             "with a configuration of xseg"},
        },
    .exits = {"the exit status of PROGRAM, if it was started", NULL,
              "an invalid argument, or PROGRAM cannot be started"},
};
