/* Operations of augmentation on pixels, with Pillow's bytes. Images are (3, height, width) bytes; in and out do not overlap. */
#ifndef ABAR_OPERATIONS_H
#define ABAR_OPERATIONS_H

#include "image/image.h"

typedef enum abar__operation {
    ABAR_OPERATION_NONE,
    ABAR_OPERATION_AFFINE,     /* matrix, filter, fill */
    ABAR_OPERATION_ROTATE,     /* value: degrees, counter-clockwise; filter, fill */
    ABAR_OPERATION_BRIGHTNESS, /* value: factor; 1 leaves the image as it is; the same for the next three */
    ABAR_OPERATION_COLOR,
    ABAR_OPERATION_CONTRAST,
    ABAR_OPERATION_SHARPNESS,
    ABAR_OPERATION_POSTERIZE,    /* value: bits that stay */
    ABAR_OPERATION_SOLARIZE,     /* value: threshold */
    ABAR_OPERATION_SOLARIZE_ADD, /* value: summand */
    ABAR_OPERATION_INVERT,
    ABAR_OPERATION_AUTOCONTRAST,
    ABAR_OPERATION_EQUALIZE,
} abar__operation;

/* One operation with its parameters. */
typedef struct abar__image_change {
    abar__operation operation;
    double value;
    double matrix[6]; /* output to input, as Pillow's Image.transform takes it */
    abar__image_filter filter;
    uint8_t fill[3];
} abar__image_change;

void abar__image_apply(const abar__image_change *change, int32_t height, int32_t width, const uint8_t *in, uint8_t *out);

#endif
