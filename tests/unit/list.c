/* SPDX-License-Identifier: MIT */
/* The ring through a head: order, removal while walking, and removal twice. */
#include "src/base/list.h"
#include "tests/support/test.h"

struct item {
    int number;
    struct xseg_list link;
};

/* The list holds exactly these numbers, forwards and backwards. */
static void assert_numbers(struct xseg_list *head, const int *want, size_t count)
{
    struct xseg_list *back = head->prev;
    size_t i = 0;

    XSEG_LIST_FOR(node, head)
    {
        assert_true(i < count);
        assert_int_equal(XSEG_CONTAINER(node, struct item, link)->number, want[i]);
        assert_ptr_equal(node->next->prev, node);
        i++;
    }
    assert_int_equal(i, count);
    for (; back != head; back = back->prev)
        assert_int_equal(XSEG_CONTAINER(back, struct item, link)->number, want[--i]);
    assert_int_equal(i, 0);
}

static void fill(struct xseg_list *head, struct item *item, size_t count)
{
    xseg_list_init(head);
    for (size_t i = 0; i < count; i++) {
        item[i].number = (int)i;
        xseg_list_insert(head, &item[i].link);
    }
}

TEST(a_new_list_is_empty)
{
    struct xseg_list head;

    xseg_list_init(&head);
    assert_true(xseg_list_is_empty(&head));
    assert_numbers(&head, NULL, 0);
}

TEST(inserting_before_the_head_appends)
{
    struct xseg_list head;
    struct item item[3];

    fill(&head, item, 3);
    assert_false(xseg_list_is_empty(&head));
    assert_numbers(&head, (const int[]){0, 1, 2}, 3);
    assert_ptr_equal(XSEG_LIST_FIRST(&head, struct item, link), &item[0]);
}

TEST(inserting_before_a_node_places_it_there)
{
    struct xseg_list head;
    struct item item[3], first = {.number = 10}, middle = {.number = 11};

    fill(&head, item, 3);
    xseg_list_insert(&item[0].link, &first.link);
    xseg_list_insert(&item[2].link, &middle.link);
    assert_numbers(&head, (const int[]){10, 0, 1, 11, 2}, 5);
}

TEST(removing_closes_the_ring)
{
    struct xseg_list head;
    struct item item[4];

    fill(&head, item, 4);
    xseg_list_remove(&item[0].link);
    assert_numbers(&head, (const int[]){1, 2, 3}, 3);
    xseg_list_remove(&item[2].link);
    assert_numbers(&head, (const int[]){1, 3}, 2);
    xseg_list_remove(&item[3].link);
    xseg_list_remove(&item[1].link);
    assert_true(xseg_list_is_empty(&head));
}

TEST(removing_twice_does_nothing)
{
    struct xseg_list head;
    struct item item[2];

    fill(&head, item, 2);
    xseg_list_remove(&item[0].link);
    assert_true(xseg_list_is_empty(&item[0].link));
    xseg_list_remove(&item[0].link);
    assert_numbers(&head, (const int[]){1}, 1);
    xseg_list_insert(&head, &item[0].link);
    assert_numbers(&head, (const int[]){1, 0}, 2);
}

TEST(a_safe_walk_survives_removal)
{
    struct xseg_list head, odd;
    struct item item[5];

    fill(&head, item, 5);
    xseg_list_init(&odd);
    XSEG_LIST_FOR_SAFE(node, &head)
    {
        if (XSEG_CONTAINER(node, struct item, link)->number % 2 == 0)
            continue;
        xseg_list_remove(node);
        xseg_list_insert(&odd, node);
    }
    assert_numbers(&head, (const int[]){0, 2, 4}, 3);
    assert_numbers(&odd, (const int[]){1, 3}, 2);
}
