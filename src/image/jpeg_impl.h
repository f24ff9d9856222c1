/* What decoding and encoding by libjpeg share: an error manager that stores a text and jumps. */
#ifndef ABAR_JPEG_IMPL_H
#define ABAR_JPEG_IMPL_H

#include "image/image.h"

#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>
#include <jerror.h>

/* The manager is first: libjpeg hands back its address. */
typedef struct abar__jpeg_errors {
    struct jpeg_error_mgr manager;
    abar__image_fault *fault;
    const char *done; /* for the text: "decoded", "encoded" */
    jmp_buf jump;
} abar__jpeg_errors;

void abar__jpeg_errors_init(abar__jpeg_errors *errors, const char *done, abar__image_fault *fault);

#endif
