/* SPDX-License-Identifier: MIT */
/* The pickle reader: every kind of value, and errors with their offsets. */
#include <stdlib.h>
#include <string.h>

#include "src/tools/reading/pickle.h"
#include "tests/support/test.h"

/* A string literal's bytes, with NUL bytes among them. */
#define BYTES(literal) (literal), sizeof(literal) - 1
#define HEAD           "\x80\x02" /* PROTO, 2 */

/* Read bytes as a file; `filter` may be NULL. */
static bool read_with(const void *bytes, size_t size, const struct pickle_filter *filter,
                      struct pickle *pickle, struct pickle_fault *fault)
{
    FILE *file = tmpfile();

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    rewind(file);
    struct input *input = input_open(file);
    assert_non_null(input);
    bool succeeded = pickle_read(input, filter, pickle, fault);
    input_close(input);
    fclose(file);
    return succeeded;
}

static bool read_bytes(const void *bytes, size_t size, struct pickle *pickle,
                       struct pickle_fault *fault)
{
    return read_with(bytes, size, NULL, pickle, fault);
}

static struct pickle read_valid(const void *bytes, size_t size)
{
    struct pickle pickle;
    struct pickle_fault fault = {0, ""};

    if (!read_bytes(bytes, size, &pickle, &fault))
        fail_msg("byte %lu: %s", (unsigned long)fault.byte, fault.text);
    return pickle;
}

TEST(numbers_have_their_sign_and_size)
{
    static const struct {
        const char *bytes;
        size_t size;
        bool is_negative;
        uint64_t number;
    } rows[] = {
        {BYTES(HEAD "K\xff."), false, 255},
        {BYTES(HEAD "M\x01\x02."), false, 0x201},
        {BYTES(HEAD "J\xff\xff\xff\x7f."), false, INT32_MAX},
        {BYTES(HEAD "J\xff\xff\xff\xff."), true, 1},
        {BYTES(HEAD "J\x00\x00\x00\x80."), true, (uint64_t)1 << 31},
        {BYTES(HEAD "\x8a\x00."), false, 0},
        {BYTES(HEAD "\x8a\x01\xff."), true, 1},
        {BYTES(HEAD "\x8a\x02\xff\x00."), false, 255},
        {BYTES(HEAD "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), false, INT64_MAX},
        {BYTES(HEAD "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."), true, (uint64_t)1 << 63},
        {BYTES(HEAD "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."), false, UINT64_MAX},
        {BYTES(HEAD "\x8a\x09\x01\x00\x00\x00\x00\x00\x00\x00\xff."), true, UINT64_MAX},
        {BYTES(HEAD "\x8b\x01\x00\x00\x00\x07."), false, 7},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct pickle pickle = read_valid(rows[i].bytes, rows[i].size);
        const struct pickle_value *top = pickle_top(&pickle);
        uint64_t number = 99;

        assert_int_equal(top->kind, PICKLE_INT);
        assert_int_equal(top->is_negative, rows[i].is_negative);
        assert_true(top->number == rows[i].number);
        assert_int_equal(pickle_number(top, &number), !rows[i].is_negative);
        assert_true(rows[i].is_negative ? number == 99 : number == rows[i].number);
        pickle_fini(&pickle);
    }
}

TEST(larger_numbers_are_marked_huge)
{
    static const struct {
        const char *bytes;
        size_t size;
    } rows[] = {
        {BYTES(HEAD "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.")},
        {BYTES(HEAD "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\xfe.")},
        {BYTES(HEAD "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xff.")},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct pickle pickle = read_valid(rows[i].bytes, rows[i].size);
        uint64_t number;

        assert_int_equal(pickle_top(&pickle)->kind, PICKLE_HUGE);
        assert_false(pickle_number(pickle_top(&pickle), &number));
        pickle_fini(&pickle);
    }
}

/* [None, True, False, 1.5, "ab", b"c", ("x",), (), {7}, {"k": "v"}] */
TEST(every_kind_is_read)
{
    struct pickle pickle = read_valid(
        BYTES("\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00](N\x88\x89G\x3f\xf8\x00\x00\x00\x00\x00"
              "\x00\x8c\x02"
              "ab"
              "C\x01"
              "cX\x01\x00\x00\x00x\x85)\x8f(K\x07\x90}X\x01\x00\x00\x00kX\x01\x00\x00\x00vse."));
    static const enum pickle_kind kinds[] = {PICKLE_NONE, PICKLE_BOOL,  PICKLE_BOOL,  PICKLE_REAL,
                                             PICKLE_TEXT, PICKLE_BYTES, PICKLE_TUPLE, PICKLE_TUPLE,
                                             PICKLE_SET,  PICKLE_DICT};
    const struct pickle_value *top = pickle_top(&pickle);
    const struct pickle_value *items[10];

    assert_int_equal(top->kind, PICKLE_LIST);
    assert_int_equal(pickle_count(top), 10);
    for (size_t i = 0; i < 10; i++) {
        items[i] = pickle_item(&pickle, top, i);
        assert_int_equal(items[i]->kind, kinds[i]);
    }
    assert_int_equal(items[1]->number, 1);
    assert_int_equal(items[2]->number, 0);
    assert_true(items[3]->real >= 1.5 && items[3]->real <= 1.5);
    assert_string_equal(pickle_string(&pickle, items[4]), "ab");
    assert_null(pickle_string(&pickle, items[5]));
    assert_memory_equal(pickle.text + items[5]->text, "c", 1);
    assert_int_equal(pickle_count(items[6]), 1);
    assert_int_equal(pickle_count(items[7]), 0);
    assert_int_equal(pickle_item(&pickle, items[8], 0)->number, 7);
    assert_string_equal(pickle_string(&pickle, pickle_find(&pickle, items[9], "k")), "v");
    assert_null(pickle_find(&pickle, items[9], "v"));
    assert_null(pickle_find(&pickle, top, "k"));
    assert_null(pickle_find(&pickle, NULL, "k"));
    assert_int_equal(pickle_count(items[4]), 0);
    pickle_fini(&pickle);
}

TEST(last_of_equal_keys_is_used)
{
    struct pickle pickle =
        read_valid(BYTES(HEAD "}(U\x01kK\x01X\x01\0\0\0kK\x02X\x01\0\0\0kK\x03u."));
    uint64_t number = 0;

    assert_true(pickle_number(pickle_find(&pickle, pickle_top(&pickle), "k"), &number));
    assert_int_equal(number, 3);
    pickle_fini(&pickle);
}

TEST(text_with_a_nul_byte_is_no_string)
{
    struct pickle pickle = read_valid(BYTES(HEAD "X\x03\0\0\0a\0b."));

    assert_int_equal(pickle_top(&pickle)->count, 3);
    assert_null(pickle_string(&pickle, pickle_top(&pickle)));
    pickle_fini(&pickle);
}

TEST(the_memo_shares_values)
{
    struct pickle pickle =
        read_valid(BYTES("\x80\x04]\x94(K\x05\x94h\x01j\x01\0\0\0q\x02h\x02h\0e."));
    const struct pickle_value *top = pickle_top(&pickle);

    assert_int_equal(pickle_count(top), 5);
    for (size_t i = 0; i < 4; i++)
        assert_ptr_equal(pickle_item(&pickle, top, i), pickle_item(&pickle, top, 0));
    assert_ptr_equal(pickle_item(&pickle, top, 4), top);
    pickle_fini(&pickle);
}

TEST(containers_grow_one_by_one)
{
    /* An empty list, COUNT times an integer and APPEND (3 bytes), and STOP. */
    enum { COUNT = 100000 };
    unsigned char *bytes = malloc(3 + 3 * COUNT + 1);

    assert_non_null(bytes);
    memcpy(bytes, HEAD "]", 3);
    for (size_t i = 0; i < COUNT; i++)
        memcpy(bytes + 3 + 3 * i, (const char[]){'K', (char)(i % 127), 'a'}, 3);
    bytes[3 + 3 * COUNT] = '.';
    struct pickle pickle = read_valid(bytes, 3 + 3 * COUNT + 1);
    assert_int_equal(pickle_count(pickle_top(&pickle)), COUNT);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(pickle_item(&pickle, pickle_top(&pickle), i)->number, i % 127);
    pickle_fini(&pickle);
    free(bytes);
}

/* The reader does not recurse, so the depth of a list is limited by memory only. */
TEST(depth_only_costs_memory)
{
    enum { DEPTH = 1000000 };
    unsigned char *bytes = malloc(2 + 2 * DEPTH);

    assert_non_null(bytes);
    memcpy(bytes, HEAD, 2);
    memset(bytes + 2, ']', DEPTH);
    memset(bytes + 2 + DEPTH, 'a', DEPTH - 1);
    bytes[2 + 2 * DEPTH - 1] = '.';
    struct pickle pickle = read_valid(bytes, 2 + 2 * DEPTH);
    const struct pickle_value *list = pickle_top(&pickle);
    for (size_t i = 1; i < DEPTH; i++) {
        assert_int_equal(pickle_count(list), 1);
        list = pickle_item(&pickle, list, 0);
    }
    assert_int_equal(pickle_count(list), 0);
    pickle_fini(&pickle);
    free(bytes);
}

TEST(errors_are_reported_with_their_offset)
{
    static const struct {
        const char *bytes;
        size_t size;
        uint64_t byte;
        const char *words;
    } rows[] = {
        {BYTES(""), 0, "is truncated"},
        {BYTES("N."), 0, "not a pickle of protocol 2"},
        {BYTES("\x80\x01N."), 0, "unsupported protocol, 1"},
        {BYTES("\x80\x06N."), 0, "unsupported protocol, 6"},
        {BYTES(HEAD "N"), 3, "is truncated"},
        {BYTES(HEAD "J\0\0"), 2, "is truncated"},
        {BYTES(HEAD "X\x09\0\0\0abc"), 2, "is truncated"},
        {BYTES(HEAD "."), 2, "stack underflow"},
        {BYTES(HEAD "N(."), 4, "a mark on the stack"},
        {BYTES(HEAD "I5\n."), 2, "unknown opcode, 0x49"},
        {BYTES(HEAD "]Na]e."), 6, "no mark on the stack"},
        {BYTES(HEAD "NNa."), 4, "not a list"},
        {BYTES(HEAD ")(Ne."), 5, "not a list"},
        {BYTES(HEAD "](Nu."), 5, "not a dictionary"},
        {BYTES(HEAD "](N\x90."), 5, "not a set"},
        {BYTES(HEAD "}(NNNu."), 7, "a key of a dictionary has no value"},
        {BYTES(HEAD "}Ns."), 4, "stack underflow"},
        {BYTES(HEAD "N(\x85."), 4, "stack underflow"},
        {BYTES(HEAD "N(2."), 4, "stack underflow"},
        {BYTES(HEAD "0."), 2, "stack underflow"},
        {BYTES(HEAD "1."), 2, "no mark on the stack"},
        {BYTES(HEAD "\x94."), 2, "stack underflow"},
        {BYTES(HEAD "h\0."), 2, "undefined memo entry, 0"},
        {BYTES(HEAD "Nq\x02h\x01."), 5, "undefined memo entry, 1"},
        {BYTES(HEAD "Nq\x04."), 3, "memo index out of range, 4"},
        {BYTES(HEAD "\x8b\xff\xff\xff\xff."), 2, "negative length"},
        {BYTES("\x80\x04\x8d\0\0\0\0\0\0\0\x80."), 2, "more than 1 GiB"},
        {BYTES(HEAD "cos\nsystem\n."), 2, "a class or a function"},
        {BYTES("\x80\x04\x8c\x01x\x8c\x01y\x93."), 8, "a class or a function"},
        {BYTES(HEAD "N)R."), 4, "a class or a function"},
        {BYTES(HEAD "NQ."), 3, "a class or a function"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct pickle_fault fault = {99, ""};
        struct pickle pickle;

        if (read_bytes(rows[i].bytes, rows[i].size, &pickle, &fault))
            fail_msg("row %zu is accepted", i);
        if (fault.byte != rows[i].byte || !strstr(fault.text, rows[i].words))
            fail_msg("row %zu: expected byte %lu: %s, got byte %lu: %s", i,
                     (unsigned long)rows[i].byte, rows[i].words, (unsigned long)fault.byte,
                     fault.text);
    }
}

TEST(marks_and_values_are_popped)
{
    struct pickle pickle = read_valid(BYTES(HEAD "K\x01K\x02(0(NN10"
                                                 "2\x86."));

    assert_int_equal(pickle_count(pickle_top(&pickle)), 2);
    assert_int_equal(pickle_item(&pickle, pickle_top(&pickle), 1)->number, 1);
    pickle_fini(&pickle);
}

/* 64 Mi empty lists, each with a struct pickle_value of 24 bytes. */
TEST(memory_is_bounded)
{
    static unsigned char lists[1 << 16];
    struct pickle_fault fault = {0, ""};
    struct pickle pickle;
    FILE *file = tmpfile();

    assert_non_null(file);
    memset(lists, ']', sizeof(lists));
    assert_int_equal(fwrite(HEAD, 1, 2, file), 2);
    for (size_t i = 0; i < 1 << 10; i++)
        assert_int_equal(fwrite(lists, 1, sizeof(lists), file), sizeof(lists));
    rewind(file);
    struct input *input = input_open(file);
    assert_non_null(input);
    assert_false(pickle_read(input, NULL, &pickle, &fault));
    assert_non_null(strstr(fault.text, "more than 1 GiB"));
    input_close(input);
    fclose(file);
}

/* --- Filters. --- */

/* The state of a filter; the filter consume() consumes dictionaries with a key `k`, sums up its numbers, and stops at 99. */
struct sum {
    struct pickle pickle;
    struct pickle_fault fault;
    uint64_t consumed, sum;
    uint32_t list;      /* of the last consumed item */
    uint32_t lists[16]; /* [consumed]: the lists of the first consumed items */
};

static enum pickle_filter_result consume(void *self, uint32_t list, uint32_t item)
{
    struct sum *sum = self;
    uint64_t number;

    if (!pickle_number(pickle_find(&sum->pickle, &sum->pickle.values[item], "k"), &number))
        return PICKLE_KEEP;
    if (number == 99)
        return PICKLE_STOP;
    if (sum->consumed < 16)
        sum->lists[sum->consumed] = list;
    sum->consumed++;
    sum->sum += number;
    sum->list = list;
    return PICKLE_CONSUME;
}

static bool read_consuming(const void *bytes, size_t size, struct sum *sum)
{
    const struct pickle_filter filter = {sum, consume};

    *sum = (struct sum){.fault = {0, "before"}};
    return read_with(bytes, size, &filter, &sum->pickle, &sum->fault);
}

/* {"k": n}, memoized as by Python */
#define ENTRY(n) "}\x94(\x8c\x01kK" n "u"

TEST(consumed_items_are_in_no_list)
{
    struct sum sum;

    /* [{"k": 1}, 7, {"k": 2}, {"j": 3}], and then {"k": 4} by an APPEND of its own */
    assert_true(read_consuming(BYTES("\x80\x04]\x94(" ENTRY("\x01") "K\x07" ENTRY(
                                   "\x02") "}(\x8c\x01jK\x03ue" ENTRY("\x04") "a."),
                               &sum));
    const struct pickle_value *top = pickle_top(&sum.pickle);
    assert_int_equal(sum.consumed, 3);
    assert_int_equal(sum.sum, 1 + 2 + 4);
    assert_ptr_equal(&sum.pickle.values[sum.list], top);
    assert_int_equal(pickle_count(top), 2);
    assert_int_equal(pickle_item(&sum.pickle, top, 0)->number, 7);
    assert_non_null(pickle_find(&sum.pickle, pickle_item(&sum.pickle, top, 1), "j"));
    pickle_fini(&sum.pickle);
}

/* A filter that tags lists with 7 and dictionaries with a key `j` with 8, empties the lists, and consumes nothing.  `sum`
 * counts its calls. */
static enum pickle_filter_result annotate(void *self, uint32_t list, uint32_t item)
{
    struct sum *sum = self;
    const struct pickle_value *value = &sum->pickle.values[item];

    (void)list;
    sum->sum++;
    if (value->kind == PICKLE_LIST) {
        pickle_set_tag(&sum->pickle, value, 7);
        pickle_clear(&sum->pickle, value);
    } else if (pickle_find(&sum->pickle, value, "j")) {
        pickle_set_tag(&sum->pickle, value, 8);
    }
    return PICKLE_KEEP;
}

static void read_annotating(const void *bytes, size_t size, struct sum *sum)
{
    const struct pickle_filter filter = {sum, annotate};

    *sum = (struct sum){.fault = {0, "before"}};
    assert_true(read_with(bytes, size, &filter, &sum->pickle, &sum->fault));
}

TEST(memoized_items_are_not_offered_again)
{
    struct sum sum;

    /* a = {"j": 1}; b = {"k": 1}; [a, b] and then a, b, a */
    read_annotating(BYTES("\x80\x04](}q\0\x8c\x01jK\x01s}q\1\x8c\x01kK\x01se(h\0h\1h\0e."), &sum);
    const struct pickle_value *top = pickle_top(&sum.pickle);
    assert_int_equal(pickle_count(top), 5);
    assert_int_equal(pickle_item(&sum.pickle, top, 4)->tag, 8);
    assert_int_equal(pickle_item(&sum.pickle, top, 3)->tag, 0);
    assert_int_equal(sum.sum, 3); /* a, b, and b again; a has a tag */
    pickle_fini(&sum.pickle);
}

TEST(a_list_that_was_emptied_may_be_filled_again)
{
    struct sum sum;

    /* a = [1, 2, 3, 4, 5]; [a]; then 6 and 7 are added to a */
    read_annotating(BYTES("\x80\x04]]q\0(K\x01K\x02K\x03K\x04K\x05"
                          "ea"
                          "h\0(K\x06K\x07"
                          "e0."),
                    &sum);
    const struct pickle_value *top = pickle_top(&sum.pickle);
    const struct pickle_value *list = pickle_item(&sum.pickle, top, 0);
    assert_int_equal(list->tag, 7);
    assert_int_equal(pickle_count(list), 2);
    assert_int_equal(pickle_item(&sum.pickle, list, 1)->number, 7);
    /* The outer list has room for 1 item, and the inner one for 2. */
    assert_int_equal(sum.pickle.memory_bytes, sum.pickle.capacity * sizeof(struct pickle_value) +
                                                  sum.pickle.text_capacity + 3 * sizeof(uint32_t));
    pickle_fini(&sum.pickle);
}

/* A dictionary that occurs repeatedly in a list is consumed each time; afterwards it cannot be referenced. */
TEST(repeated_dictionary_is_consumed_again_or_rejected)
{
    struct sum sum;

    assert_true(read_consuming(BYTES("\x80\x04](" ENTRY("\x05") "h\0h\0e."), &sum));
    assert_int_equal(sum.sum, 3 * 5);
    pickle_fini(&sum.pickle);
    assert_true(read_consuming(BYTES("\x80\x04]" ENTRY("\x05") "2\x86"
                                                               "a."),
                               &sum));
    assert_int_equal(sum.consumed, 0);
    pickle_fini(&sum.pickle);
    assert_false(read_consuming(BYTES("\x80\x04]" ENTRY("\x05") "ah\0a."), &sum));
    assert_int_equal(sum.fault.byte, 13);
    assert_non_null(strstr(sum.fault.text, "each entry must be a separate dictionary"));
    /* Its memo ID was assigned to another value before it is consumed. */
    assert_true(read_consuming(BYTES("\x80\x04]" ENTRY("\x05") "]q\0"
                                                               "0ah\0a."),
                               &sum));
    assert_int_equal(sum.sum, 5);
    assert_int_equal(pickle_item(&sum.pickle, pickle_top(&sum.pickle), 0)->kind, PICKLE_LIST);
    pickle_fini(&sum.pickle);
}

/* The first list is in a dictionary that is consumed, so nothing refers to it when the others follow. */
TEST(id_of_a_freed_list_is_not_reused)
{
    struct sum sum;

    /* [{"k": 1, "x": [{"k": 5}]}, [{"k": 2}], [{"k": 3}], [{"k": 4}], [{"k": 6}]] */
    assert_true(read_consuming(
        BYTES("\x80\x04]}(\x8c\x01kK\x01\x8c\x01x]" ENTRY("\x05") "aua]" ENTRY("\x02") "aa]" ENTRY(
            "\x03") "aa]" ENTRY("\x04") "aa]" ENTRY("\x06") "aa."),
        &sum));
    assert_int_equal(sum.consumed, 6);
    for (uint64_t i = 1; i < sum.consumed; i++)
        assert_int_not_equal(sum.lists[i], sum.lists[0]);
    pickle_fini(&sum.pickle);
}

TEST(consumer_can_stop_the_reading)
{
    struct sum sum;

    assert_false(read_consuming(BYTES("\x80\x04](" ENTRY("\x05") ENTRY("\x63") "e."), &sum));
    assert_string_equal(sum.fault.text, "");
}

/* The contents of a consumed dictionary are freed, including its lists; equal strings and numbers are shared. */
TEST(consumed_items_use_no_memory)
{
    enum { COUNT = 50000 };
    static const char entry[] = "}(\x8c\x01kK\x01\x8c\x01xM\x34\x12\x8c\x01y](M\x11\x11)eua";
    const size_t bytes = sizeof(entry) - 1;
    char *text = malloc(3 + COUNT * bytes + 1);
    struct sum sum;

    assert_non_null(text);
    memcpy(text, "\x80\x04]", 3);
    for (size_t i = 0; i < COUNT; i++)
        memcpy(text + 3 + i * bytes, entry, bytes);
    text[3 + COUNT * bytes] = '.';
    assert_true(read_consuming(text, 3 + COUNT * bytes + 1, &sum));
    assert_int_equal(sum.consumed, COUNT);
    assert_in_range(sum.pickle.count, 5, 20);
    assert_in_range(sum.pickle.text_bytes, 6, 6);
    assert_in_range(sum.pickle.memory_bytes, 0, 1 << 14);
    pickle_fini(&sum.pickle);
    free(text);
}
