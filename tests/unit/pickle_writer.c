/* SPDX-License-Identifier: MIT */
/*
 * Documents as Python's pickle module reads them.
 *
 * Each case writes one document and its value as a Python expression; Python compares both at the end. pickletools
 * counts the opcodes.
 */
#include "src/base/pickle_writer.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/rng.h"
#include "tests/support/test.h"

static const char *const strings[XSEG_PICKLE_MAX_INTERNED] = {"zero", "one", "two", "three",
                                                              "\"four\"\n"};
static char folder[] = P_tmpdir "/xseg-document-XXXXXX";
static struct xseg_file_writer output;
static struct xseg_pickle_writer pickle;
static FILE *expression; /* the Python expression; NULL outside of write_document() */

__attribute__((format(printf, 1, 2))) static void write_expression(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    if (expression != NULL)
        assert_true(vfprintf(expression, format, arguments) >= 0);
    va_end(arguments);
}

static int create_file(const char *name, const char *extension)
{
    char path[200];

    (void)snprintf(path, sizeof(path), "%s/%s.%s", folder, name, extension);
    const int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    return file;
}

/* Write a document to NAME.pickle, and its value to NAME.py. */
static void write_document(const char *name, void (*write_value)(void))
{
    const int file = create_file(name, "pickle");

    expression = fdopen(create_file(name, "py"), "w");
    assert_non_null(expression);
    xseg_file_writer_init(&output, file);
    xseg_pickle_begin(&pickle, &output, strings);
    write_value();
    assert_true(xseg_pickle_end(&pickle));
    assert_int_equal(close(file), 0);
    assert_int_equal(fclose(expression), 0);
    expression = NULL;
}

static void open_list(void)
{
    xseg_pickle_open_list(&pickle);
    write_expression("[");
}

static void close_list(void)
{
    xseg_pickle_close(&pickle);
    write_expression("]");
}

/* --- Numbers. --- */

static void write_numbers(void)
{
    static const int64_t edges[] = {0,         1,          255,        256,       65535,
                                    65536,     INT32_MAX,  INT32_MIN,  -1,        INT64_MAX,
                                    INT64_MIN, 2147483648, 4294967295, 4294967296};

    open_list();
    for (size_t i = 0; i < COUNT_OF(edges); i++) {
        xseg_pickle_int(&pickle, edges[i]);
        write_expression("%" PRId64 ",", edges[i]);
    }
    for (unsigned bit = 0; bit < 63; bit++)
        for (int64_t delta = -1; delta <= 1; delta++) {
            const int64_t number = ((int64_t)1 << bit) + delta;

            xseg_pickle_int(&pickle, number);
            xseg_pickle_int(&pickle, -number);
            xseg_pickle_uint(&pickle, (uint64_t)number);
            write_expression("%" PRId64 ",%" PRId64 ",%" PRId64 ",", number, -number, number);
        }
    xseg_pickle_uint(&pickle, UINT64_MAX);
    xseg_pickle_uint(&pickle, (uint64_t)INT64_MAX + 1);
    write_expression("2**63-1,2**63-1,");
    xseg_pickle_pair(&pickle, 0, 300);
    xseg_pickle_pair(&pickle, UINT64_MAX, 70000);
    write_expression("(0,300),(2**63-1,70000),");
    xseg_pickle_bool(&pickle, true);
    xseg_pickle_bool(&pickle, false);
    write_expression("True,False,");
    close_list();
}

static void write_reals(void)
{
    static const double reals[] = {0, 1, -1.5, 0.1, 1.0 / 3, 1e300, 5e-324, 123456789.125};

    open_list();
    for (size_t i = 0; i < COUNT_OF(reals); i++) {
        xseg_pickle_float(&pickle, reals[i]);
        write_expression("float.fromhex('%a'),", reals[i]);
    }
    close_list();
}

/* --- Strings. --- */

static void write_text(const char *text, size_t length)
{
    xseg_pickle_string(&pickle, text, length);
    write_expression("text(bytes([");
    for (size_t i = 0; i < length; i++)
        write_expression("%u,", (unsigned char)text[i]);
    write_expression("])),");
}

/* All pairs of bytes, many triples, and the edge cases of RFC 3629; the Python function text() decodes them independently. */
static void write_texts(void)
{
    static const char *const edges[] = {
        "",
        "plain",
        "\"quoted\" \\ and \t\n\r\x01\x1f\x7f",
        "\xc2\x80\xdf\xbf",
        "\xe0\xa0\x80\xef\xbf\xbf",
        "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf",
        "\xc0\x80",
        "\xc1\xbf",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "cut \xe2\x82",
        "cut \xf0\x9f\x98",
        "\xff\xfe",
    };
    char text[700];

    open_list();
    for (size_t i = 0; i < COUNT_OF(edges); i++)
        write_text(edges[i], strlen(edges[i]));
    write_text("a\0b", 3);
    for (size_t length = 254; length <= 258; length++) {
        memset(text, 'x', sizeof(text));
        write_text(text, length);
    }
    for (unsigned first = 0x7f; first < 256; first++) {
        for (unsigned i = 0; i < 512; i += 2) {
            text[i] = (char)first;
            text[i + 1] = (char)(i / 2);
        }
        write_text(text, 512);
    }
    close_list();
}

static void write_interned(void)
{
    open_list();
    for (unsigned i = 0; i < 1000; i++) {
        xseg_pickle_interned(&pickle, i * i % 5);
        write_expression("%s,", (const char *[]){"'zero'", "'one'", "'two'", "'three'",
                                                 "'\"four\"\\n'"}[i * i % 5]);
    }
    close_list();
}

/* --- Batches, and the memo. --- */

static const unsigned sizes[] = {0, 1, 999, 1000, 1001, 1999, 2000, 2001};

static void write_lists(void)
{
    open_list();
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        xseg_pickle_open_list(&pickle);
        write_expression("list(range(%u)),", sizes[i]);
        for (unsigned item = 0; item < sizes[i]; item++)
            xseg_pickle_uint(&pickle, item);
        xseg_pickle_close(&pickle);
    }
    close_list();
}

/* The last value of equal keys counts. */
static void write_dicts(void)
{
    open_list();
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        xseg_pickle_open_dict(&pickle);
        write_expression("dict([");
        for (unsigned item = 0; item < sizes[i]; item++) {
            xseg_pickle_key(&pickle, item % 4);
            xseg_pickle_uint(&pickle, item);
            write_expression("(%s,%u),",
                             (const char *[]){"'zero'", "'one'", "'two'", "'three'"}[item % 4],
                             item);
        }
        xseg_pickle_close(&pickle);
        write_expression("]),");
    }
    close_list();
}

/* More memo entries than a one-byte index (BINGET) can refer to. */
static void write_memos(void)
{
    uint32_t memo[600];

    open_list();
    for (unsigned i = 0; i < 600; i++) {
        xseg_pickle_open_list(&pickle);
        memo[i] = xseg_pickle_memoize(&pickle);
        assert_int_equal(memo[i], i + 1);
        xseg_pickle_uint(&pickle, i);
        xseg_pickle_close(&pickle);
        write_expression("[%u],", i);
    }
    for (unsigned i = 0; i < 600; i++) {
        xseg_pickle_reference(&pickle, memo[i]);
        write_expression("[%u],", i);
    }
    close_list();
}

/* --- Savepoints. --- */

/* Content that is rolled back later: it opens lists, writes many bytes, and memoizes strings. */
static void write_discarded(unsigned items)
{
    for (unsigned depth = 0; depth < 3; depth++) {
        xseg_pickle_open_list(&pickle);
        (void)xseg_pickle_memoize(&pickle);
        for (unsigned i = 0; i < items; i++)
            xseg_pickle_interned(&pickle, i % 5);
        if (depth != 1)
            xseg_pickle_string(&pickle, "wrong", 5);
    }
    xseg_pickle_close(&pickle);
}

/* Savepoints before and after the edges of a batch, with and without a flush of the buffer before the rollback. */
static void write_with_rollbacks(void)
{
    static const unsigned items[] = {1, 2000, 100000};

    xseg_pickle_open_dict(&pickle);
    xseg_pickle_key(&pickle, 1);
    xseg_pickle_open_list(&pickle);
    write_expression("{'one':list(range(2002))}");
    for (unsigned i = 0; i < 2002; i++) {
        if (i % 1000 <= 1 || i == 500) {
            const struct xseg_pickle_savepoint savepoint = xseg_pickle_savepoint(&pickle);

            for (unsigned k = 0; k < 3; k++) {
                write_discarded(items[k]);
                assert_true(xseg_pickle_rollback(&pickle, &savepoint));
            }
        }
        xseg_pickle_uint(&pickle, i);
    }
    xseg_pickle_close(&pickle);
    xseg_pickle_close(&pickle);
}

/* A savepoint in a document without an open list, and a string that was first written after the savepoint. */
static void write_interned_after_rollback(void)
{
    const struct xseg_pickle_savepoint savepoint = xseg_pickle_savepoint(&pickle);

    xseg_pickle_interned(&pickle, 2);
    assert_true(xseg_pickle_rollback(&pickle, &savepoint));
    xseg_pickle_open_list(&pickle);
    xseg_pickle_interned(&pickle, 2);
    xseg_pickle_interned(&pickle, 2);
    xseg_pickle_close(&pickle);
    write_expression("['two','two']");
}

/* --- Random documents. --- */

static uint64_t random_state;

static uint64_t draw_below(uint64_t end)
{
    return rng_next(&random_state) % end;
}

static void write_random_value(unsigned depth)
{
    const uint64_t kind = draw_below(depth < 6 ? 8 : 5);
    const unsigned count = (unsigned)draw_below(depth == 0 ? 1200 : 6);

    switch (kind) {
    case 0:
    case 1:
    case 2: {
        const int64_t number = (int64_t)(rng_next(&random_state) >> draw_below(64));

        xseg_pickle_int(&pickle, number);
        write_expression("%" PRId64, number);
        break;
    }
    case 3:
        xseg_pickle_interned(&pickle, 3);
        write_expression("'three'");
        break;
    case 4:
        xseg_pickle_bool(&pickle, count % 2 == 0);
        write_expression("%s", count % 2 == 0 ? "True" : "False");
        break;
    default:
        if (kind == 5) {
            xseg_pickle_open_dict(&pickle);
            write_expression("dict([");
        } else {
            xseg_pickle_open_list(&pickle);
            write_expression("[");
        }
        for (unsigned i = 0; i < count; i++) {
            if (kind == 5) {
                xseg_pickle_key(&pickle, i % 3);
                write_expression("('%s',", strings[i % 3]);
            }
            write_random_value(depth + 1);
            write_expression(kind == 5 ? ")," : ",");
        }
        xseg_pickle_close(&pickle);
        write_expression(kind == 5 ? "])" : "]");
    }
}

static void write_random(void)
{
    const uint64_t seed = random_state;

    open_list();
    for (unsigned i = 0; i < 4; i++) {
        write_random_value(0);
        write_expression(",");
    }
    close_list();
    random_state = seed;
}

TEST(documents_are_written)
{
    char name[32];

    write_document("numbers", write_numbers);
    write_document("reals", write_reals);
    write_document("texts", write_texts);
    write_document("interned", write_interned);
    write_document("lists", write_lists);
    write_document("dicts", write_dicts);
    write_document("memos", write_memos);
    write_document("rollbacks", write_with_rollbacks);
    write_document("interned-after-rollback", write_interned_after_rollback);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        random_state = seed;
        (void)snprintf(name, sizeof(name), "random-%" PRIu64, seed);
        write_document(name, write_random);
    }
}

TEST(full_disk_is_reported)
{
    const int file = open("/dev/full", O_WRONLY | O_CLOEXEC);

    assert_true(file >= 0);
    xseg_file_writer_init(&output, file);
    xseg_pickle_begin(&pickle, &output, strings);
    write_discarded(10);
    xseg_pickle_close(&pickle);
    xseg_pickle_close(&pickle);
    assert_false(xseg_pickle_end(&pickle));
    assert_int_not_equal(output.error, 0);
    assert_int_equal(close(file), 0);
}

/* Each document equals its expression, a batch has at most 1000 items, and each opcode occurs. There are 9 + 20 documents;
 * the sizes of write_lists() and write_dicts() are 12 batches, and the list of lists is one more. */
static const char check_script[] =
    "import glob,pickle,pickletools,sys\n"
    "def text(data):\n"
    "    out=''\n"
    "    while data:\n"
    "        for n in (1,2,3,4):\n"
    "            try: c=data[:n].decode(); break\n"
    "            except UnicodeDecodeError: c=''\n"
    "        n=n if len(c)==1 else 1\n"
    "        out+=c if len(c)==1 else '?'\n"
    "        data=data[n:]\n"
    "    return out\n"
    "opcodes=set()\n"
    "files=glob.glob(sys.argv[1]+'/*.py')\n"
    "assert len(files)==29,files\n"
    "for name in files:\n"
    "    expected=eval(open(name).read())\n"
    "    data=open(name[:-2]+'pickle','rb').read()\n"
    "    value=pickle.loads(data)\n"
    "    assert value==expected and repr(value)==repr(expected),name\n"
    "    ops=[op.name for op,_,_ in pickletools.genops(data)]\n"
    "    opcodes|=set(ops)\n"
    "    assert ops[0]=='PROTO' and data[1]==4,name\n"
    "    if name.endswith('/lists.py'):\n"
    "        assert ops.count('APPENDS')==13,ops.count('APPENDS')\n"
    "    if name.endswith('/dicts.py'):\n"
    "        assert ops.count('SETITEMS')==12,ops.count('SETITEMS')\n"
    "assert "
    "opcodes=={'PROTO','STOP','MARK','EMPTY_DICT','SETITEMS','EMPTY_LIST','APPENDS','TUPLE2','"
    "NEWTRUE'"
    ",'NEWFALSE',"
    "'BININT','BININT1','BININT2','LONG1','BINFLOAT','SHORT_BINUNICODE','BINUNICODE','MEMOIZE','"
    "BINGET','LONG_BINGET'},opcodes\n";

TEST(python_reads_the_written_documents)
{
    char command[sizeof(check_script) + 200];

    (void)snprintf(command, sizeof(command), "exec python3 -c \"$CHECK\" '%s'", folder);
    assert_int_equal(setenv("CHECK", check_script, 1), 0);
    assert_int_equal(system(command), 0);
    assert_int_equal(unsetenv("CHECK"), 0);
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int tear_down(void **state)
{
    char command[200];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -r '%s'", folder);
    return system(command);
}

TEST_GROUP_FIXTURE(set_up, tear_down)
