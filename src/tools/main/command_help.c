/* SPDX-License-Identifier: MIT */
#include <jansson.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/main/commands.h"
#include "src/tools/main/help.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "xseg/version.h"

static json_t *words_of(const struct option_row *row)
{
    json_t *words = json_array();

    for (unsigned i = 0; i < OPTION_WORDS && row->words[i]; i++)
        (void)json_array_append_new(words, json_string(row->words[i]));
    return words;
}

static json_t *options_of(const struct command *command)
{
    static const char *const takes[] = {
        [OPTION_TAKES_NOTHING] = "nothing", [OPTION_TAKES_TEXT] = "text",
        [OPTION_TAKES_KEYS] = "keys",       [OPTION_TAKES_WORD] = "word",
        [OPTION_TAKES_NUMBER] = "number",   [OPTION_TAKES_SIZE] = "size",
        [OPTION_TAKES_OUTPUT] = "file",     [OPTION_TAKES_CHOICE] = "choice",
    };
    json_t *options = json_array();

    for (const uint8_t *id = command->options; *id != OPTION_NONE; id++) {
        const struct option_row *row = &option_table[*id];
        const char letter[] = {row->letter, '\0'};

        (void)json_array_append_new(options, json_pack("{s:s, s:s, s:s, s:b, s:s?, s:o, s:s}",
                                                       "name", row->name, "letter", letter, "takes",
                                                       takes[row->takes], "may_lack", row->may_lack,
                                                       "argument", row->argument, "words",
                                                       words_of(row), "meaning", row->meaning));
    }
    return options;
}

static json_t *examples_of(const struct command *command)
{
    json_t *examples = json_array();

    for (unsigned i = 0; i < COMMAND_EXAMPLES && command->examples[i].line; i++)
        (void)json_array_append_new(
            examples, json_pack("[s, s]", command->examples[i].line, command->examples[i].does));
    return examples;
}

static json_t *exits_of(const struct command *command)
{
    json_t *exits = json_array();

    for (int status = 0; status < COMMAND_EXITS; status++)
        if (command->exits[status])
            (void)json_array_append_new(exits, json_pack("[i, s]", status, command->exits[status]));
    return exits;
}

static json_t *object_of(const struct command *command)
{
    static const char *const operands[] = {[COMMAND_NO_OPERANDS] = "nothing",
                                           [COMMAND_FILES] = "files",
                                           [COMMAND_NAMES] = "commands",
                                           [COMMAND_TEXT] = "text"};

    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o}", "name",
                     command->name ? command->name : "", "sentence", command->sentence, "usage",
                     command->usage, "operands", operands[command->operands], "description",
                     command->description, "options", options_of(command), "examples",
                     examples_of(command), "exits", exits_of(command));
}

/* The tables as they are: the tool first, then its commands. */
static int print_json(void)
{
    json_t *all = json_array(), *object;

    (void)json_array_append_new(all, object_of(&commands_tool));
    for (const struct command *const *command = commands; *command; command++)
        (void)json_array_append_new(all, object_of(*command));
    object = json_pack("{s:s, s:o}", "version", XSEG_VERSION_TEXT, "commands", all);
    return output_json(stdout, object) ? COMMAND_FINE : COMMAND_BAD;
}

static int run(const struct option_values *arguments)
{
    const char *name = arguments->operand_count > 0 ? arguments->operands[0] : NULL;
    const struct command *command = name ? commands_find(name) : &commands_tool;

    if (!command) {
        message_error("there is no command '%s'; `xseg help` lists them", name);
        return COMMAND_BAD;
    }
    if (arguments->of[OPTION_JSON].given)
        return print_json();
    help_print(stdout, command);
    return COMMAND_FINE;
}

const struct command command_help = {
    .name = "help",
    .run = run,
    .sentence = "explain a command",
    .usage = "[COMMAND]",
    .operands = COMMAND_NAMES,
    .most_operands = 1,
    .options = {OPTION_JSON, OPTION_COLOR, OPTION_HELP},
    .description = "Prints what a command does, its options and examples; without COMMAND, the "
                   "list of commands. The manual pages say the same: `man xseg-replay`. As "
                   "JSON, everything about all commands.",
    .examples = {{"xseg help replay", "the options of `xseg replay`"}},
    .exits = {COMMAND_EXIT_FINE, NULL, "there is no such command"},
};
