/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/top/top_screen.h"

#ifdef TOOLS_NCURSES

#include <curses.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <term.h>
#include <time.h>
#include <unistd.h>

/* Lines above the rows: summary, position, heading.  Below the rows: keys. */
#define LINES_ABOVE 3
#define LINES_BELOW 1

struct screen {
    const struct top_options *options;
    enum top_by by;
    bool has_pools;
    size_t first;  /* the first row on the screen */
    unsigned page; /* of columns */
    struct top_layout layout;
    struct publishers publishers;
    struct top_table table;
    struct top_budget budget;
    const char *error; /* error message; NULL: none */
};

static int64_t clock_ms(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* --- Contents. --- */

static bool sort_rows(struct screen *screen)
{
    top_table_fini(&screen->table);
    if (top_table_init(&screen->table, &screen->publishers, screen->by, screen->has_pools))
        return true;
    screen->error = "out of host memory";
    return false;
}

static bool update_contents(struct screen *screen)
{
    int error;

    top_table_fini(&screen->table);
    publishers_fini(&screen->publishers);
    top_budget_fini(&screen->budget);
    if (screen->options->budget)
        top_budget_init(&screen->budget, screen->options->budget);
    error = publishers_find(&screen->publishers, screen->options->pid);
    if (error != 0) {
        screen->error = strerror(error);
        return false;
    }
    return sort_rows(screen);
}

/* Get the number of lines of the second table and of the empty line above it: at most half of the screen. */
static size_t budget_rows(const struct screen *screen)
{
    const size_t limit = LINES > 0 ? (size_t)LINES / 2 : 0;
    const size_t needed_lines = screen->options->budget ? top_budget_lines(&screen->budget) + 1 : 0;

    return needed_lines < limit ? needed_lines : limit;
}

static size_t count_visible_rows(const struct screen *screen)
{
    const size_t reserved_lines = LINES_ABOVE + LINES_BELOW + budget_rows(screen);

    return LINES > 0 && (size_t)LINES > reserved_lines ? (size_t)LINES - reserved_lines : 0;
}

static void draw_line(int row, const char *line)
{
    (void)mvaddnstr(row, 0, line, COLS);
}

/* If rows or columns are hidden, draw the position: "rows 3 to 7 of 12; column page 1 of 2". */
static void draw_position(const struct screen *screen, size_t visible_rows)
{
    const size_t count = screen->table.count, first = screen->first;
    const bool has_rows = visible_rows > 0 && count > visible_rows;
    char text[TOP_LINE] = "";
    size_t at = 0;

    if (has_rows)
        at += (size_t)snprintf(text, sizeof(text), "rows %zu to %zu of %zu", first + 1,
                               first + visible_rows, count);
    if (screen->layout.pages > 1)
        (void)snprintf(text + at, sizeof(text) - at, "%scolumn page %u of %u", at > 0 ? "; " : "",
                       screen->page + 1, screen->layout.pages);
    (void)attron(A_DIM);
    draw_line(1, text);
    (void)attroff(A_DIM);
}

static void draw_head(const struct screen *screen)
{
    char line[TOP_LINE], title[TOP_LINE + 32];
    int from, length;

    top_table_summary(&screen->table, &screen->publishers, line);
    (void)snprintf(title, sizeof(title), "xseg top - %s", line);
    draw_line(0, title);
    top_table_head(&screen->layout, screen->by, line, &from, &length);
    (void)attron(A_BOLD);
    draw_line(LINES_ABOVE - 1, line);
    (void)attroff(A_BOLD);
    if (length > 0 && from < COLS)
        (void)mvchgat(LINES_ABOVE - 1, from, length, A_REVERSE | A_BOLD, 0, NULL);
}

static void draw_budget(const struct screen *screen)
{
    const struct top_layout layout = top_budget_layout(COLS, screen->page);
    const int rows = (int)budget_rows(screen);
    char line[TOP_LINE];

    for (int i = 1; i < rows; i++) {
        top_budget_line(&layout, &screen->budget, (size_t)i - 1, line);
        (void)(i == 1 ? attron(A_BOLD) : attroff(A_BOLD));
        draw_line(LINES - LINES_BELOW - rows + i, line);
    }
    (void)attroff(A_BOLD);
}

static void draw_screen(struct screen *screen)
{
    const size_t visible_rows = count_visible_rows(screen);
    char line[TOP_LINE];

    if (screen->first + visible_rows > screen->table.count)
        screen->first = screen->table.count > visible_rows ? screen->table.count - visible_rows : 0;
    screen->layout = top_table_layout(COLS, screen->by, screen->page);
    if (screen->page >= screen->layout.pages)
        screen->page = screen->layout.pages - 1;
    (void)erase();
    draw_head(screen);
    draw_position(screen, visible_rows);
    if (screen->table.count == 0)
        draw_line(LINES_ABOVE, TOP_NO_PROCESS);
    for (size_t i = 0; i < visible_rows && screen->first + i < screen->table.count; i++) {
        top_table_line(&screen->layout, &screen->table.rows[screen->first + i], line);
        draw_line(LINES_ABOVE + (int)i, line);
    }
    draw_budget(screen);
    (void)attron(A_DIM);
    draw_line(LINES - 1, "q quit  < > sort  p pools  arrows scroll  space update");
    (void)attroff(A_DIM);
    (void)refresh();
}

/* --- Keys. --- */

static void scroll_rows(struct screen *screen, int64_t by)
{
    const int64_t first = (int64_t)screen->first + by;

    screen->first = first > 0 ? (size_t)first : 0; /* draw_screen() limits the value */
}

static void scroll_columns(struct screen *screen, int by)
{
    if (by < 0 && screen->page > 0)
        screen->page--;
    if (by > 0 && screen->page + 1 < screen->layout.pages)
        screen->page++;
}

static bool sort_by(struct screen *screen, int step)
{
    screen->by = (enum top_by)(((int)screen->by + step + TOP_BYS) % TOP_BYS);
    screen->page = 0; /* the page with the sort column */
    return sort_rows(screen);
}

/* Returns false to quit. */
static bool handle_key(struct screen *screen, int key, int64_t *due)
{
    const int64_t rows = (int64_t)count_visible_rows(screen);

    switch (key) {
    case 'q':
    case 'Q':
        return false;
    case '<':
        return sort_by(screen, -1);
    case '>':
        return sort_by(screen, 1);
    case KEY_LEFT:
    case KEY_RIGHT:
        scroll_columns(screen, key == KEY_LEFT ? -1 : 1);
        break;
    case 'p':
        screen->has_pools = !screen->has_pools;
        return sort_rows(screen);
    case ' ':
        *due = 0;
        break;
    case 'L' & 0x1f: /* Ctrl-L: redraw what other programs have overwritten */
        (void)clearok(curscr, TRUE);
        break;
    case KEY_UP:
    case KEY_DOWN:
        scroll_rows(screen, key == KEY_UP ? -1 : 1);
        break;
    case KEY_PPAGE:
    case KEY_NPAGE:
        scroll_rows(screen, key == KEY_PPAGE ? -rows : rows);
        break;
    case KEY_HOME:
        screen->first = 0;
        break;
    case KEY_END:
        screen->first = screen->table.count;
        break;
    default: /* also KEY_RESIZE: draw_screen() uses the new size */
        break;
    }
    return true;
}

/* Get whether the terminal exists.  Without a terminal, each getch() returns immediately. */
static bool has_terminal(void)
{
    struct pollfd terminal = {.fd = STDIN_FILENO, .events = POLLIN};

    return poll(&terminal, 1, 0) <= 0 || (terminal.revents & (POLLHUP | POLLERR | POLLNVAL)) == 0;
}

static void run_screen(struct screen *screen)
{
    int64_t due = 0, now;
    bool is_running = true;

    while (is_running) {
        now = clock_ms();
        if (now >= due) {
            is_running = update_contents(screen);
            due = now + (int64_t)screen->options->seconds * 1000;
        }
        if (!is_running)
            break;
        draw_screen(screen);
        timeout((int)(due > now ? due - now : 0));
        is_running = handle_key(screen, getch(), &due) && has_terminal();
    }
}

/* Start ncurses.  Returns NULL for an unknown terminal, which setupterm() detects, because newterm() would leak host memory. */
static SCREEN *start_ncurses(void)
{
    int error;

    if (setupterm(NULL, STDOUT_FILENO, &error) != OK)
        return NULL;
    (void)del_curterm(cur_term);
    return newterm(NULL, stdout, stdin);
}

const char *top_screen_run(const struct top_options *options)
{
    struct screen screen = {.options = options, .by = options->by, .has_pools = true};
    SCREEN *terminal = start_ncurses();

    if (!terminal)
        return "ncurses does not support this terminal (check TERM); use --once";
    (void)cbreak();
    (void)noecho();
    (void)keypad(stdscr, TRUE);
    (void)curs_set(0);
    run_screen(&screen);
    (void)endwin();
    delscreen(terminal);
    top_table_fini(&screen.table);
    publishers_fini(&screen.publishers);
    top_budget_fini(&screen.budget);
    return screen.error;
}

#else

const char *top_screen_run(const struct top_options *options)
{
    (void)options;
    return "xseg was built without ncurses; use --once";
}

#endif
