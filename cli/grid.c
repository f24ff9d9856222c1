/* Tables of text. A column is as wide as its widest cell; if a line is longer than the window, columns are left out by
 * their rank; if it is still too long, the first column is cut. */
#include "grid.h"

#include <string.h>

#define FIRST_MIN 6 /* width of the first column at least */

static int greater(int a, int b) { return a > b ? a : b; }

/* Columns on the screen: UTF-8 characters, not bytes. */
static int columns_of(const char *text)
{
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static int total_of(const grid *g)
{
    int total = g->indent, last = -1;
    for (int i = 0; i < g->columns; i++) {
        if (g->width[i] == 0) continue;
        total += g->width[i] + (last < 0 ? 0 : GRID_GAP);
        last = i;
    }
    return total + (last >= 0 && g->marked[last]);
}

/* Leaves out the column of the greatest rank. False: there is none left. */
static bool drop_column(grid *g)
{
    int least = -1;
    for (int i = 0; i < g->columns; i++)
        if (g->width[i] > 0 && g->column[i].rank > (least < 0 ? 0 : g->column[least].rank)) least = i;
    if (least < 0) return false;
    g->width[least] = 0;
    return true;
}

void grid_measure(grid *g, int width)
{
    memset(g->width, 0, sizeof g->width);
    memset(g->marked, 0, sizeof g->marked);
    for (int row = 0; row < g->rows; row++) {
        grid_cell cells[GRID_COLUMNS_MAX] = {0};
        g->fill(g->user, row, cells);
        for (int i = 0; i < g->columns; i++) {
            g->width[i] = greater(g->width[i], columns_of(cells[i].text));
            g->marked[i] = g->marked[i] || cells[i].best;
        }
    }
    for (int i = 0; i < g->columns; i++) /* empty columns are not shown */
        if (g->width[i] > 0) g->width[i] = greater(g->width[i], columns_of(g->column[i].heading));
    while (width > 0 && total_of(g) > width && drop_column(g)) {}
    const int excess = width > 0 ? total_of(g) - width : 0;
    if (excess > 0) g->width[0] = greater(FIRST_MIN, g->width[0] - excess);
}

/* Cuts a long name at its beginning: names of one network differ at their ends. */
static const char *cut(const char *text, int width, char out[GRID_TEXT_MAX])
{
    if (columns_of(text) <= width) return text;
    snprintf(out, GRID_TEXT_MAX, "..%s", text + strlen(text) - (size_t)(width - 2));
    return out;
}

static void print_cell(const grid *g, FILE *out, int spaces, const char *text, bool best)
{
    fprintf(out, "%*s%s%s%s%s", spaces, "", best ? g->bold : "", text, best ? "*" : "", best ? g->plain : "");
}

/* No spaces at the end of a line. */
static void print_row(const grid *g, FILE *out, const grid_cell *cells)
{
    int owed = g->indent; /* spaces before the next text */
    for (int i = 0; i < g->columns; i++) {
        char buffer[GRID_TEXT_MAX];
        if (g->width[i] == 0) continue;
        const char *text = cut(cells[i].text, g->width[i], buffer);
        const int pad = greater(0, g->width[i] - columns_of(text));
        if (!g->column[i].left) owed += pad;
        if (text[0]) {
            print_cell(g, out, owed, text, cells[i].best);
            owed = -cells[i].best; /* the star takes a column of the gap */
        }
        owed += GRID_GAP + (g->column[i].left ? pad : 0);
    }
    fputc('\n', out);
}

void grid_print(const grid *g, FILE *out)
{
    grid_cell heading[GRID_COLUMNS_MAX] = {0};
    for (int i = 0; i < g->columns; i++) snprintf(heading[i].text, sizeof heading[i].text, "%s", g->column[i].heading);
    print_row(g, out, heading);
    for (int row = 0; row < g->rows; row++) {
        grid_cell cells[GRID_COLUMNS_MAX] = {0};
        g->fill(g->user, row, cells);
        print_row(g, out, cells);
    }
}
