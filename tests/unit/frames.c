/* SPDX-License-Identifier: MIT */
/* Records of frames: one for each address and mapping, with what was noted of it. */
#include <string.h>

#include "src/base/modules.h"
#include "tests/support/test.h"

/* A module that is not loaded, at two addresses. */
struct fixture {
    struct xseg_bump memory;
    struct xseg_frames frames;
    struct xseg_module module;
    struct xseg_module_mapping mapping[2];
};

static void begin(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    assert_true(xseg_bump_init(&f->memory, 1 << 20));
    assert_true(xseg_frames_init(&f->frames, &f->memory));
    f->module.name = f->module.path = "/lib/made-up.so";
    for (unsigned i = 0; i < 2; i++) {
        f->mapping[i].module = &f->module;
        f->mapping[i].base = f->mapping[i].start = (i + 1) * 65536;
        f->mapping[i].end = f->mapping[i].start + 65536;
        f->mapping[i].is_loaded = true;
    }
}

static void end(struct fixture *f)
{
    struct xseg_violation violation = {0};

    if (!xseg_frames_audit(&f->frames, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
    xseg_bump_fini(&f->memory);
}

static const struct xseg_frame *keep(struct fixture *f, uintptr_t pc,
                                     const struct xseg_module_mapping *mapping)
{
    assert_true(xseg_frames_add(&f->frames, (const void *)pc, mapping));
    const struct xseg_frame *frame = xseg_frames_find(&f->frames, (const void *)pc, mapping);
    assert_non_null(frame);
    return frame;
}

TEST(an_address_has_one_frame_per_mapping)
{
    struct fixture f;

    begin(&f);
    assert_null(xseg_frames_find(&f.frames, (const void *)70000, &f.mapping[0]));
    const struct xseg_frame *frame = keep(&f, 70000, &f.mapping[0]);
    assert_ptr_equal(keep(&f, 70000, &f.mapping[0]), frame);
    assert_ptr_not_equal(keep(&f, 70001, &f.mapping[0]), frame);
    assert_ptr_not_equal(keep(&f, 70000, &f.mapping[1]), frame);
    assert_ptr_not_equal(keep(&f, 70000, NULL), frame);
    assert_int_equal(f.frames.frames.used, 4);
    end(&f);
}

TEST(recorded_frames_remain_valid)
{
    const struct xseg_stack_source first = {"function", 5, "made-up.c", 17};
    const struct xseg_stack_source second = {"other", 6, "other.c", 18};
    struct xseg_stack_frame out;
    struct fixture f;

    begin(&f);
    const struct xseg_frame *frame = keep(&f, 65536 + 100, &f.mapping[0]);
    xseg_frames_read(&f.frames, frame, &out);
    assert_int_equal(out.offset, 100);
    assert_string_equal(out.path, "/lib/made-up.so");
    assert_null(out.build_id);
    assert_false(out.is_resolved);
    assert_null(out.symbol);
    assert_null(out.file);
    xseg_frames_set_source(&f.frames, frame, &first);
    xseg_frames_set_source(&f.frames, frame, &second);
    xseg_frames_read(&f.frames, frame, &out);
    assert_true(out.is_resolved);
    assert_string_equal(out.symbol, "function");
    assert_int_equal(out.symbol_offset, 5);
    assert_string_equal(out.file, "made-up.c");
    assert_int_equal(out.line, 17);
    end(&f);
}

/* That nothing was found is known from then on, too. */
TEST(frame_may_have_no_source)
{
    const struct xseg_stack_source nothing = {NULL, 0, NULL, 9};
    const struct xseg_stack_source something = {"function", 5, "made-up.c", 17};
    struct xseg_stack_frame out;
    struct fixture f;

    begin(&f);
    const struct xseg_frame *frame = keep(&f, 65536 + 100, &f.mapping[0]);
    xseg_frames_set_source(&f.frames, frame, &nothing);
    xseg_frames_set_source(&f.frames, frame, &something);
    xseg_frames_read(&f.frames, frame, &out);
    assert_true(out.is_resolved);
    assert_null(out.symbol);
    assert_null(out.file);
    assert_int_equal(out.line, 0);
    end(&f);
}

/* Frames of one function and file have one record of each text. */
TEST(texts_are_kept_once)
{
    struct xseg_stack_frame out, before;
    struct fixture f;

    begin(&f);
    memset(&before, 0, sizeof(before));
    for (uint32_t i = 1; i < 50; i++) {
        const struct xseg_stack_source source = {"function", i, "made-up.c", i};
        const struct xseg_frame *frame = keep(&f, 65536 + 100 + i, &f.mapping[0]);

        xseg_frames_set_source(&f.frames, frame, &source);
        xseg_frames_read(&f.frames, frame, &out);
        assert_int_equal(out.line, i);
        assert_int_equal(out.symbol_offset, i);
        if (i > 1) {
            assert_ptr_equal(out.symbol, before.symbol);
            assert_ptr_equal(out.file, before.file);
        }
        before = out;
    }
    /* One text that begins as another does. */
    const struct xseg_stack_source shorter = {NULL, 0, "made-up", 1};
    const struct xseg_frame *frame = keep(&f, 65536 + 100, &f.mapping[0]);
    xseg_frames_set_source(&f.frames, frame, &shorter);
    xseg_frames_read(&f.frames, frame, &out);
    assert_string_equal(out.file, "made-up");
    end(&f);
}

/* Functions at the same place of two modules have names of their own. */
TEST(names_belong_to_modules)
{
    const struct xseg_stack_source source[] = {{"one", 0, NULL, 0}, {"other", 0, NULL, 0}};
    struct xseg_module other = {.name = "/lib/other.so", .path = "/lib/other.so"};
    struct xseg_stack_frame out;
    struct fixture f;

    begin(&f);
    f.mapping[1].module = &other;
    for (unsigned i = 0; i < 2; i++) {
        const struct xseg_frame *frame = keep(&f, f.mapping[i].base + 100, &f.mapping[i]);

        xseg_frames_set_source(&f.frames, frame, &source[i]);
        xseg_frames_read(&f.frames, frame, &out);
        assert_string_equal(out.symbol, source[i].symbol);
    }
    end(&f);
}

TEST(host_allocation_failure_loses_details_only)
{
    const struct xseg_stack_source source = {"function", 5, "made-up.c", 17};

    for (size_t left = 0; left < 256; left += 8) {
        struct xseg_stack_frame out;
        struct fixture f;

        begin(&f);
        const struct xseg_frame *frame = keep(&f, 65536 + 100, &f.mapping[0]);
        const size_t used = xseg_bump_remaining(&f.memory) - left;
        assert_non_null(xseg_bump_alloc(&f.memory, used));
        xseg_frames_set_source(&f.frames, frame, &source);
        xseg_frames_read(&f.frames, frame, &out);
        assert_true(out.symbol == NULL || strcmp(out.symbol, "function") == 0);
        assert_true(out.file == NULL || strcmp(out.file, "made-up.c") == 0);
        assert_int_equal(out.line, out.file != NULL ? 17 : 0);
        assert_true(left < 128 || out.file != NULL);
        if (xseg_frames_add(&f.frames, (const void *)(uintptr_t)70000, NULL))
            assert_non_null(xseg_frames_find(&f.frames, (const void *)(uintptr_t)70000, NULL));
        end(&f);
    }
}

TEST(the_audit_names_the_broken_invariant)
{
    const struct xseg_stack_source source = {"function", 5, "made-up.c", 17};
    struct xseg_violation violation = {0};
    struct fixture f;

    begin(&f);
    struct xseg_frame *frame =
        xseg_bump_at(&f.memory, xseg_bump_handle(&f.memory, keep(&f, 65536 + 100, f.mapping)));
    xseg_frames_set_source(&f.frames, frame, &source);
    frame->pc = (const void *)(uintptr_t)7;
    assert_false(xseg_frames_audit(&f.frames, &violation));
    assert_string_equal(violation.tag, "FRAMES-1");
    frame->pc = (const void *)(uintptr_t)(65536 + 100);
    struct xseg_frame *nowhere =
        xseg_bump_at(&f.memory, xseg_bump_handle(&f.memory, keep(&f, 65536 + 100, NULL)));
    atomic_store(&nowhere->is_resolved, true);
    assert_false(xseg_frames_audit(&f.frames, &violation));
    assert_string_equal(violation.tag, "FRAMES-2");
    atomic_store(&nowhere->is_resolved, false);
    end(&f);
}
