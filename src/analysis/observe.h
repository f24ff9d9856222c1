/* The observation pass: a network with the weights of a file, run over samples in order, without augmentation and without
 * changing anything, while somebody looks at its linear maps. */
#ifndef ABAR_ANALYSIS_OBSERVE_H
#define ABAR_ANALYSIS_OBSERVE_H

#include "train/train_impl.h"

typedef struct abar__pass_config {
    int64_t samples, batch; /* samples 0: 2048, or all where there are fewer; whole batches only, the rest is left out */
    bool test;              /* the test part */
    bool gradients;         /* the net can run backward */
} abar__pass_config;

typedef struct abar__pass {
    abar_context *ctx;
    const abar_setup *setup;
    abar__pass_config config;
    abar_dataset *data;
    abar_dataset_info info; /* with the size of the images that are observed */
    abar_loader *loader;    /* of an image folder: its test part, or its training part without augmentation, shuffled */
    int64_t next;           /* the batch that comes from it next */
    abar_device *dev;
    abar_net *net;
    int64_t batches;
    float *images;   /* (batch, C, H, W), normalised */
    int32_t *labels; /* (batch), or tokens (batch, context) with labels behind them */
    float *logits;   /* of one batch: where labels are drawn from the softmax */
    size_t image_bytes, label_bytes, logit_bytes;
} abar__pass;

abar_status abar__pass_open(abar_context *ctx, const abar_setup *setup, const char *weights, const abar__pass_config *config,
                            abar__pass *out);
void abar__pass_close(abar__pass *p);
/* Other weights of the same network; "": the initial ones of the setup's seed. */
abar_status abar__pass_load(abar__pass *p, const char *weights);

/* Whether batch norm's running statistics are those of a network that was never trained: means 0, variances 1. Evaluation mode
 * then normalises nothing. False for a network without batch norm. */
abar_status abar__pass_statistics_at_start(const abar__pass *p, bool *at_start);

/* Batch b into the net's input and target. */
abar_status abar__pass_fill(abar__pass *p, int64_t b);
/* Runs forward on it. */
abar_status abar__pass_forward(abar__pass *p, int64_t b, bool training, const abar_forward_observer *observer, abar_loss *loss);
/* Runs forward in training mode and backward, and forgets what that changed. drawn: with labels drawn from the softmax.
 * forward sees the forward pass, observer the backward pass; NULL: nobody. */
abar_status abar__pass_backward(abar__pass *p, int64_t b, bool drawn, const abar_forward_observer *forward,
                                const abar_observer *observer);

/* ---- rows of a map ---------------------------------------------------------------------------------------------------- */

/* How the rows of a map are taken out of a layer's tensors. */
typedef struct abar__row_shape {
    int64_t group;             /* of the layer's window.groups */
    int64_t d, out;            /* inputs of a row, without the homogeneous 1; outputs */
    int64_t rows;              /* of an example */
    int64_t in_size, out_size; /* numbers of an example in the layer's input and output, all groups */
    bool convolution;
    abar_window window;
    int64_t channels, height, width, out_height, out_width; /* of a convolution */
} abar__row_shape;

abar__row_shape abar__row_shape_of(const abar_layer *layer, const abar_tensor *input, const abar_tensor *output, int64_t group);
/* Rows (rows, d) and, with homogeneous, (rows, d + 1) of one example, from its dense input. */
void abar__input_rows(const abar__row_shape *s, const float *input, bool homogeneous, double *out);
/* Rows (rows, out) times scale of one example, from its dense output gradient. */
void abar__output_rows(const abar__row_shape *s, const float *grad, double scale, double *out);

#endif
