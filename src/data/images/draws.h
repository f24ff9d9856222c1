/* What is random about a sample of a streamed image set, drawn by counter (docs/images.md): a draw depends on the seed, the
 * epoch, the sample and its repetition alone. All of it is drawn on the host, in double precision. */
#ifndef ABAR_DRAWS_H
#define ABAR_DRAWS_H

#include "abar/data.h"
#include "image/operations.h"

#define ABAR_VIEW_MAX 4096 /* pixels a side of a view: the boxes of abar_row are 16-bit */

/* One sample of one epoch. */
typedef struct abar__draw_key {
    uint64_t seed;
    uint32_t epoch;
    uint32_t sample;     /* its place in the data set */
    uint32_t repetition; /* below 256 */
} abar__draw_key;

/* Random resized crop to side x side and mirror, of an image of this size. */
abar__image_view abar__draw_view(const abar__draw_key *key, const abar_augment_config *config, int32_t width, int32_t height,
                                 int32_t side);

#define ABAR_CHANGES_MAX 3
/* The policy's operations for a view of side x side; returns how many. */
int abar__draw_changes(const abar__draw_key *key, const abar_augment_config *config, int32_t side,
                       abar__image_change out[ABAR_CHANGES_MAX]);
/* The box to erase: top, left, height, width; height 0: none. */
void abar__draw_erasing(const abar__draw_key *key, const abar_augment_config *config, int32_t side, int16_t out[4]);

/* How a group of rows is mixed. */
typedef struct abar__mixing {
    bool cutmix;
    double share;   /* lambda: of the row itself; cutmix: as its clipped box gives it */
    int16_t box[4]; /* cutmix: top, left, height, width: the partner's pixels */
} abar__mixing;

/* group: its number in the epoch. False: nothing is mixed. */
bool abar__draw_mixing(uint64_t seed, uint32_t epoch, uint32_t group, const abar_augment_config *config, int32_t side,
                       abar__mixing *out);
/* The row that row i of a group of n is mixed with. */
int32_t abar__mixing_partner(const abar_augment_config *config, int32_t i, int32_t n);

/* Rows that are mixed with each other: as requested, or where that is 0 the usual 256, at most the batch. */
int64_t abar__mix_group_of(int64_t request, int64_t batch);
/* Refuses a group that does not divide the micro-batch, or that is odd where the style mixes pairs. */
abar_status abar__mix_group_check(abar_context *ctx, int64_t style, int64_t group, int64_t batch, int64_t accumulate);

/* 4096 normal quantiles, by which erased values are filled. */
#define ABAR_NOISE_COUNT 4096
void abar__noise_table(float out[ABAR_NOISE_COUNT]);

/* What the policies of this config may do, checked: ranges, and options that do not fit together. */
abar_status abar__augment_check(abar_context *ctx, const abar_augment_config *config, int32_t side);

#endif
