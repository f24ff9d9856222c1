/* What tests change of a check. */
#ifndef ABAR_IMAGES_CHECK_H
#define ABAR_IMAGES_CHECK_H

#include "abar/images.h"

/* Seconds between two writes of the cache during run; 0: with every report of progress. */
void abar__image_check_save_every(abar_image_check *check, double interval);

#endif
