/* Changes of images as the golden files write them: OPERATION FILTER R G B, then six numbers of a matrix or one value. */
#ifndef ABAR_CHANGE_TEXT_H
#define ABAR_CHANGE_TEXT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "image/operations.h"

static inline FILE *open_golden(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/golden/%s", ABAR_TEST_DATA, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    return file;
}

/* The place of the next word among n words. */
static inline int read_word(FILE *file, const char *const *words, int n)
{
    char word[32];
    assert_int_equal(fscanf(file, "%31s", word), 1);
    for (int i = 0; i < n; i++)
        if (!strcmp(word, words[i])) return i;
    fail_msg("%s: not a word of the golden file", word);
    return -1;
}

static inline abar__image_change read_change(FILE *file)
{
    static const char *const operations[] = {"none",     "affine",       "rotate",    "brightness", "color",
                                             "contrast", "sharpness",    "posterize", "solarize",   "solarize-add",
                                             "invert",   "autocontrast", "equalize"};
    static const char *const filters[] = {"style", "nearest", "bilinear", "bicubic"};
    abar__image_change change = {.operation = (abar__operation)read_word(file, operations, 13)};
    change.filter = (abar__image_filter)read_word(file, filters, 4);
    for (int c = 0; c < 3; c++) assert_int_equal(fscanf(file, "%hhu", &change.fill[c]), 1);
    if (change.operation == ABAR_OPERATION_AFFINE)
        for (int i = 0; i < 6; i++) assert_int_equal(fscanf(file, "%lf", &change.matrix[i]), 1);
    else
        assert_int_equal(fscanf(file, "%lf", &change.value), 1);
    return change;
}

#endif
