/* The learning rate as a function of the step: linear warm-up, then cosine, two drops, or nothing. Stateless, so that a
 * resumed run needs no more than its step number. */
#include "abar/optim.h"

#include <math.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

/* From the peak at done = 0 to final_lr at done = all. */
static double half_cosine(const abar_schedule *s, double done, double all)
{
    double fraction = done < all ? done / all : 1.0;
    return s->final_lr + (s->lr - s->final_lr) * (1.0 + cos(pi * fraction)) / 2.0;
}

static double rate(const abar_schedule *s, int64_t step)
{
    const int64_t per_epoch = s->steps_per_epoch > 0 ? s->steps_per_epoch : 1;
    const int64_t warmup = (int64_t)(s->warmup_epochs * (double)per_epoch + 0.5), epoch = step / per_epoch;
    if (step < warmup) return s->lr * (double)(step + 1) / (double)warmup;
    switch (s->kind) {
    case ABAR_SCHEDULE_COSINE:
        if (s->per_epoch) return half_cosine(s, (double)epoch - s->warmup_epochs, (double)s->epochs - s->warmup_epochs);
        return half_cosine(s, (double)(step - warmup), (double)(s->epochs * per_epoch - warmup));
    case ABAR_SCHEDULE_STEP: /* a tenth at half of all epochs, another at three quarters; warm-up counts as epochs */
        return s->lr * (2 * epoch >= s->epochs ? 0.1 : 1.0) * (4 * epoch >= 3 * s->epochs ? 0.1 : 1.0);
    case ABAR_SCHEDULE_CONSTANT: break;
    }
    return s->lr;
}

double abar_schedule_lr(const abar_schedule *caller, int64_t step)
{
    abar_schedule s = {0};
    if (caller->size < sizeof caller->size || caller->size > sizeof s) return NAN;
    memcpy(&s, caller, caller->size);
    return rate(&s, step);
}
