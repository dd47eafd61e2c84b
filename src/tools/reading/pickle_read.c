/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/pickle.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/reading/pickle_store.h"

#define BUFFER_BYTES  ((size_t)1 << 16)
#define PROTOCOL_MAX  5
#define MEMO_EMPTY    UINT32_MAX
#define MEMO_CONSUMED (UINT32_MAX - 1) /* by the filter */

/* The stack machine that executes a pickle. */
struct machine {
    struct input *input;
    const struct pickle_filter *filter;
    struct pickle *out;
    struct pickle_fault *fault;
    struct pickle_store store;
    uint64_t at, buffer_offset; /* offsets of the opcode and of the buffer */
    uint32_t *stack;
    size_t depth, stack_capacity;
    uint32_t *marks; /* stack depths */
    size_t mark_count, mark_capacity;
    uint32_t *memo;
    size_t memo_count, memo_capacity;
    size_t begin, end;
    bool has_stopped;
    unsigned char buffer[BUFFER_BYTES];
};

static bool fail(struct machine *machine, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool fail(struct machine *machine, const char *format, ...)
{
    va_list arguments;

    machine->fault->byte = machine->at;
    va_start(arguments, format);
    (void)vsnprintf(machine->fault->text, sizeof(machine->fault->text), format, arguments);
    va_end(arguments);
    return false;
}

static bool fail_in_store(struct machine *machine)
{
    return fail(machine, "%s", machine->store.error);
}

/* --- The stack. --- */

static bool push(struct machine *machine, uint32_t slot)
{
    if (slot == PICKLE_STORE_NONE)
        return fail_in_store(machine);
    if (machine->depth == machine->stack_capacity) {
        uint32_t *stack =
            pickle_store_reserve(&machine->store, machine->stack, &machine->stack_capacity,
                                 machine->depth + 1, sizeof(*stack));

        if (!stack)
            return fail_in_store(machine);
        machine->stack = stack;
    }
    machine->stack[machine->depth++] = slot;
    return true;
}

static bool push_value(struct machine *machine, struct pickle_value value)
{
    return push(machine, pickle_store_add(&machine->store, value));
}

/* --- Bytes. --- */

static bool refill(struct machine *machine)
{
    const char *error;

    machine->buffer_offset += machine->end;
    machine->begin = 0;
    machine->end = input_read(machine->input, machine->buffer, BUFFER_BYTES);
    if (machine->end > 0)
        return true;
    error = input_error(machine->input);
    return fail(machine, "%s", error ? error : "the pickle is truncated");
}

static bool read_byte(struct machine *machine, unsigned char *out)
{
    if (machine->begin == machine->end && !refill(machine))
        return false;
    *out = machine->buffer[machine->begin++];
    return true;
}

/* Read a number of up to eight bytes, little-endian as the host. */
static bool read_number(struct machine *machine, unsigned bytes, uint64_t *out)
{
    *out = 0;
    if (machine->end - machine->begin >= sizeof(*out)) {
        memcpy(out, machine->buffer + machine->begin, sizeof(*out));
        *out &= UINT64_MAX >> (64 - 8 * bytes);
        machine->begin += bytes;
        return true;
    }
    for (unsigned i = 0; i < bytes; i++)
        if (!read_byte(machine, (unsigned char *)out + i))
            return false;
    return true;
}

/* Append bytes to pickle.text.  Memory grows with the bytes that are read, not with the length that the pickle
 * claims. */
static bool read_text(struct machine *machine, uint64_t bytes)
{
    struct pickle *out = machine->out;
    size_t end = out->text_bytes;

    for (;;) {
        size_t count = machine->end - machine->begin;
        char *text;

        if (count > bytes)
            count = (size_t)bytes;
        text = pickle_store_reserve(&machine->store, out->text, &out->text_capacity,
                                    end + count + 1, sizeof(*text));
        if (!text)
            return fail_in_store(machine);
        out->text = text;
        memcpy(text + end, machine->buffer + machine->begin, count);
        machine->begin += count;
        end += count;
        bytes -= count;
        text[end] = '\0';
        if (bytes == 0)
            break;
        if (!refill(machine))
            return false;
    }
    out->text_bytes = end + 1;
    return true;
}

/* --- Opcodes.  `argument` distinguishes opcodes with one function. --- */

static bool do_protocol(struct machine *machine, unsigned argument)
{
    uint64_t protocol;

    (void)argument;
    if (!read_number(machine, 1, &protocol))
        return false;
    if (protocol < 2 || protocol > PROTOCOL_MAX)
        return fail(machine,
                    "unsupported protocol, %" PRIu64
                    "; pickle.dump(value, file, 4) writes a supported one",
                    protocol);
    return true;
}

/* The length of a frame is a hint for readers that buffer whole frames. */
static bool do_frame(struct machine *machine, unsigned argument)
{
    uint64_t bytes;

    (void)argument;
    return read_number(machine, 8, &bytes);
}

static bool do_constant(struct machine *machine, unsigned argument)
{
    if (argument > 1)
        return push_value(machine, (struct pickle_value){.kind = PICKLE_NONE});
    return push_value(machine, (struct pickle_value){.kind = PICKLE_BOOL, .number = argument});
}

/* Push an integer of one or two bytes without a sign, or of four bytes with a sign. */
static bool do_int(struct machine *machine, unsigned argument)
{
    struct pickle_value value = {.kind = PICKLE_INT};

    if (!read_number(machine, argument, &value.number))
        return false;
    if (argument == 4 && value.number >> 31) {
        value.is_negative = true;
        value.number = ((uint64_t)1 << 32) - value.number;
    }
    return push_value(machine, value);
}

/* Push an integer in two's complement; its length has `argument` bytes. */
static bool do_long(struct machine *machine, unsigned argument)
{
    struct pickle_value value = {.kind = PICKLE_INT};
    bool only_zeros = true, only_ones = true; /* beyond 64 bits */
    unsigned char byte = 0;
    uint64_t length;

    if (!read_number(machine, argument, &length))
        return false;
    if (argument == 4 && length >> 31)
        return fail(machine, "an integer has a negative length");
    for (uint64_t i = 0; i < length; i++) {
        if (!read_byte(machine, &byte))
            return false;
        if (i < 8)
            value.number |= (uint64_t)byte << 8 * i;
        only_zeros &= i < 8 || byte == 0;
        only_ones &= i < 8 || byte == 0xff;
    }
    value.is_negative = byte >> 7;
    if (value.is_negative && length < 8)
        value.number |= UINT64_MAX << 8 * length;
    if (value.is_negative)
        value.number = 0 - value.number;
    if (value.is_negative ? !only_ones || value.number == 0 : !only_zeros)
        value = (struct pickle_value){.kind = PICKLE_HUGE};
    return push_value(machine, value);
}

/* Push a real, the only big-endian number. */
static bool do_real(struct machine *machine, unsigned argument)
{
    struct pickle_value value = {.kind = PICKLE_REAL};
    uint64_t bits;

    (void)argument;
    if (!read_number(machine, 8, &bits))
        return false;
    bits = __builtin_bswap64(bits);
    memcpy(&value.real, &bits, sizeof(bits));
    return push_value(machine, value);
}

static bool push_text(struct machine *machine, enum pickle_kind kind, unsigned length_bytes)
{
    const size_t text = machine->out->text_bytes;
    uint64_t length;

    if (!read_number(machine, length_bytes, &length))
        return false;
    if (length > PICKLE_MEMORY)
        return fail(machine, "the pickle needs more than 1 GiB of host memory");
    return read_text(machine, length) &&
           push(machine, pickle_store_add_text(&machine->store, kind, text, (uint32_t)length));
}

static bool do_text(struct machine *machine, unsigned argument)
{
    return push_text(machine, PICKLE_TEXT, argument);
}

static bool do_bytes(struct machine *machine, unsigned argument)
{
    return push_text(machine, PICKLE_BYTES, argument);
}

/* --- Containers. --- */

static bool do_mark(struct machine *machine, unsigned argument)
{
    uint32_t *marks = pickle_store_reserve(&machine->store, machine->marks, &machine->mark_capacity,
                                           machine->mark_count + 1, sizeof(*marks));

    (void)argument;
    if (!marks)
        return fail_in_store(machine);
    machine->marks = marks;
    marks[machine->mark_count++] = (uint32_t)machine->depth;
    return true;
}

/* Get whether there are `count` values above the last mark; fail if not. */
static bool has_values(struct machine *machine, size_t count)
{
    size_t bottom = machine->mark_count ? machine->marks[machine->mark_count - 1] : 0;

    return machine->depth - bottom >= count || fail(machine, "stack underflow");
}

/* Remove the last mark.  *out is the number of values above it. */
static bool pop_mark(struct machine *machine, size_t *out)
{
    if (machine->mark_count == 0)
        return fail(machine, "no mark on the stack");
    *out = machine->depth - machine->marks[--machine->mark_count];
    return true;
}

/* Move the topmost `count` values into a container. */
static bool fill_container(struct machine *machine, uint32_t container, size_t count)
{
    machine->depth -= count;
    return pickle_store_fill(&machine->store, container, machine->stack + machine->depth, count) ||
           fail_in_store(machine);
}

static bool do_empty(struct machine *machine, unsigned argument)
{
    return push_value(machine, (struct pickle_value){.kind = (uint8_t)argument, .items = NULL});
}

static bool push_tuple(struct machine *machine, size_t count)
{
    machine->depth -= count;
    return push(machine,
                pickle_store_add_tuple(&machine->store, machine->stack + machine->depth, count));
}

/* argument: number of items; 0: all values above the mark */
static bool do_tuple(struct machine *machine, unsigned argument)
{
    size_t count = argument;

    return (count > 0 ? has_values(machine, count) : pop_mark(machine, &count)) &&
           push_tuple(machine, count);
}

/* Pass the topmost values, which will be appended to a list, to the filter, and remove the consumed values. */
static bool filter_items(struct machine *machine, uint32_t list, size_t *count)
{
    struct pickle *out = machine->out;
    uint32_t *const items = machine->stack + machine->depth - *count;
    size_t kept = 0;

    for (size_t i = 0; i < *count; i++) {
        const struct pickle_value *value = &out->values[items[i]];
        const enum pickle_filter_result result =
            value->tag ? PICKLE_KEEP
                       : machine->filter->on_item(machine->filter->self, list, items[i]);

        if (result == PICKLE_STOP)
            return fail(machine, "%s", "");
        if (result == PICKLE_KEEP) {
            items[kept++] = items[i];
            continue;
        }
        /* The filter identifies the list by its slot, which must not be reused. */
        pickle_store_use(&machine->store, list);
        if (value->use == PICKLE_USE_MEMO && machine->memo[value->memo] == items[i])
            machine->memo[value->memo] = MEMO_CONSUMED;
        if (value->use != PICKLE_USE_MANY)
            pickle_store_discard(&machine->store, items[i]);
    }
    machine->depth -= *count - kept;
    *count = kept;
    return true;
}

/* Append the topmost values to the container below them. */
static bool append_items(struct machine *machine, enum pickle_kind kind, size_t count)
{
    static const char *const names[] = {
        [PICKLE_LIST] = "list", [PICKLE_SET] = "set", [PICKLE_DICT] = "dictionary"};
    uint32_t container;

    if (!has_values(machine, count + 1))
        return false;
    container = machine->stack[machine->depth - count - 1];
    if (machine->out->values[container].kind != kind)
        return fail(machine, "items are added to a value that is not a %s", names[kind]);
    if (kind == PICKLE_DICT && count % 2 != 0)
        return fail(machine, "a key of a dictionary has no value");
    if (kind == PICKLE_LIST && machine->filter && !filter_items(machine, container, &count))
        return false;
    return fill_container(machine, container, count);
}

static bool do_item(struct machine *machine, unsigned argument)
{
    return append_items(machine, (enum pickle_kind)argument, argument == PICKLE_DICT ? 2 : 1);
}

static bool do_marked_items(struct machine *machine, unsigned argument)
{
    size_t count = 0;

    return pop_mark(machine, &count) && append_items(machine, (enum pickle_kind)argument, count);
}

/* --- The stack and the memo. --- */

static bool do_pop(struct machine *machine, unsigned argument)
{
    (void)argument;
    if (machine->mark_count > 0 && machine->marks[machine->mark_count - 1] == machine->depth) {
        machine->mark_count--;
        return true;
    }
    if (!has_values(machine, 1))
        return false;
    machine->depth--;
    return true;
}

static bool do_pop_mark(struct machine *machine, unsigned argument)
{
    size_t count = 0;

    (void)argument;
    if (!pop_mark(machine, &count))
        return false;
    machine->depth -= count;
    return true;
}

/* Push a value that is already on the stack or in the memo. */
static bool push_again(struct machine *machine, uint32_t slot)
{
    pickle_store_use(&machine->store, slot);
    return push(machine, slot);
}

static bool do_copy(struct machine *machine, unsigned argument)
{
    (void)argument;
    return has_values(machine, 1) && push_again(machine, machine->stack[machine->depth - 1]);
}

static bool put_memo(struct machine *machine, uint64_t at)
{
    uint32_t *memo;

    if (!has_values(machine, 1))
        return false;
    /* Entries are numbered consecutively, so an index cannot exceed the number of bytes before it. */
    if (at > machine->at)
        return fail(machine, "memo index out of range, %" PRIu64, at);
    memo = pickle_store_reserve(&machine->store, machine->memo, &machine->memo_capacity,
                                (size_t)at + 1, sizeof(*memo));
    if (!memo)
        return fail_in_store(machine);
    machine->memo = memo;
    while (machine->memo_count <= at)
        memo[machine->memo_count++] = MEMO_EMPTY;
    memo[at] = machine->stack[machine->depth - 1];
    pickle_store_use_memo(&machine->store, memo[at], (uint32_t)at);
    return true;
}

static bool do_put(struct machine *machine, unsigned argument)
{
    uint64_t at;

    return read_number(machine, argument, &at) && put_memo(machine, at);
}

static bool do_memoize(struct machine *machine, unsigned argument)
{
    (void)argument;
    return put_memo(machine, machine->memo_count);
}

static bool do_get(struct machine *machine, unsigned argument)
{
    uint64_t at;

    if (!read_number(machine, argument, &at))
        return false;
    if (at >= machine->memo_count || machine->memo[at] == MEMO_EMPTY)
        return fail(machine, "undefined memo entry, %" PRIu64, at);
    if (machine->memo[at] == MEMO_CONSUMED)
        return fail(machine, "an entry of a history is repeated; each entry must be a separate "
                             "dictionary");
    return push_again(machine, machine->memo[at]);
}

static bool do_stop(struct machine *machine, unsigned argument)
{
    (void)argument;
    if (machine->mark_count > 0)
        return fail(machine, "the pickle ends with a mark on the stack");
    if (!has_values(machine, 1))
        return false;
    machine->out->top = machine->stack[machine->depth - 1];
    machine->has_stopped = true;
    return true;
}

/* --- The machine. --- */

/* GLOBAL REDUCE BUILD INST OBJ PERSID BINPERSID NEWOBJ EXT1-4 NEWOBJ_EX STACK_GLOBAL, and buffers. */
static const char code_opcodes[] = "cRbioPQ\x81\x82\x83\x84\x92\x93\x97\x98";

static const struct opcode {
    bool (*run)(struct machine *machine, unsigned argument);
    unsigned argument;
} opcodes[256] = {
    [PICKLE_PROTO] = {do_protocol, 0},
    [0x95] = {do_frame, 0},
    ['.'] = {do_stop, 0},
    ['N'] = {do_constant, 2},
    [0x88] = {do_constant, 1},
    [0x89] = {do_constant, 0},
    ['K'] = {do_int, 1},
    ['M'] = {do_int, 2},
    ['J'] = {do_int, 4},
    [0x8a] = {do_long, 1},
    [0x8b] = {do_long, 4},
    ['G'] = {do_real, 0},
    [0x8c] = {do_text, 1},
    ['X'] = {do_text, 4},
    [0x8d] = {do_text, 8},
    ['U'] = {do_bytes, 1},
    ['T'] = {do_bytes, 4},
    ['C'] = {do_bytes, 1},
    ['B'] = {do_bytes, 4},
    [0x8e] = {do_bytes, 8},
    [0x96] = {do_bytes, 8},
    ['('] = {do_mark, 0},
    [')'] = {do_empty, PICKLE_TUPLE},
    [0x85] = {do_tuple, 1},
    [0x86] = {do_tuple, 2},
    [0x87] = {do_tuple, 3},
    ['t'] = {do_tuple, 0},
    [0x91] = {do_tuple, 0}, /* a frozen set */
    [']'] = {do_empty, PICKLE_LIST},
    ['a'] = {do_item, PICKLE_LIST},
    ['e'] = {do_marked_items, PICKLE_LIST},
    [0x8f] = {do_empty, PICKLE_SET},
    [0x90] = {do_marked_items, PICKLE_SET},
    ['}'] = {do_empty, PICKLE_DICT},
    ['s'] = {do_item, PICKLE_DICT},
    ['u'] = {do_marked_items, PICKLE_DICT},
    ['0'] = {do_pop, 0},
    ['1'] = {do_pop_mark, 0},
    ['2'] = {do_copy, 0},
    ['q'] = {do_put, 1},
    ['r'] = {do_put, 4},
    [0x94] = {do_memoize, 0},
    ['h'] = {do_get, 1},
    ['j'] = {do_get, 4},
};

/* Read to the end of the file, so that a truncated compressed file is detected. */
static bool read_to_end(struct machine *machine)
{
    machine->at = machine->buffer_offset + machine->begin;
    while (input_read(machine->input, machine->buffer, BUFFER_BYTES) > 0)
        continue;
    return !input_error(machine->input) || fail(machine, "%s", input_error(machine->input));
}

static bool run_machine(struct machine *machine)
{
    /* The stack must not be NULL, as a pickle may pop values from the empty stack. */
    machine->stack = pickle_store_reserve(&machine->store, NULL, &machine->stack_capacity, 1,
                                          sizeof(*machine->stack));
    if (!machine->stack)
        return fail_in_store(machine);
    while (!machine->has_stopped) {
        const struct opcode *opcode;
        unsigned char byte;

        machine->at = machine->buffer_offset + machine->begin;
        if (!read_byte(machine, &byte))
            return false;
        opcode = &opcodes[byte];
        if (machine->at == 0 && byte != PICKLE_PROTO)
            return fail(machine, "not a pickle of protocol 2 or later");
        if (!opcode->run && memchr(code_opcodes, byte, sizeof(code_opcodes) - 1))
            return fail(machine, "the pickle contains a class or a function; only plain data is "
                                 "read");
        if (!opcode->run)
            return fail(machine, "unknown opcode, 0x%02x", byte);
        if (!opcode->run(machine, opcode->argument))
            return false;
    }
    return read_to_end(machine);
}

bool pickle_read(struct input *input, const struct pickle_filter *filter, struct pickle *out,
                 struct pickle_fault *fault)
{
    struct machine *machine = calloc(1, sizeof(*machine));
    bool success = false;

    memset(out, 0, sizeof(*out));
    if (machine) {
        machine->input = input;
        machine->filter = filter;
        machine->out = out;
        machine->fault = fault;
        pickle_store_init(&machine->store, out);
        success = run_machine(machine);
        out->memory_bytes -=
            (machine->stack_capacity + machine->mark_capacity + machine->memo_capacity) *
            sizeof(uint32_t);
        free(machine->stack);
        free(machine->marks);
        free(machine->memo);
    } else {
        *fault = (struct pickle_fault){0, "out of host memory"};
    }
    free(machine);
    if (!success)
        pickle_fini(out);
    return success;
}
