/* How fast the files of an image set become batches, and whether training waits for them. */
#include "data/images/rates.h"
#include "train/bench/bench_impl.h"

#include <sys/resource.h>

#define STAGE_IMAGES 2000 /* drawn for the stages, ... */
#define STAGE_TIMES 20    /* ... but each image of a small set not much oftener than so */
#define WARM_UP_BATCHES 3 /* that fill the loader's buffers */
#define FED_STEPS_MAX ABAR_PACE_STEPS

/* ---- the loader ------------------------------------------------------------------------------------------------- */

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* Images per second of wall time, and of CPU time. */
typedef struct pace {
    double wall, cpu;
} pace;

/* Takes batches for so many seconds, and normalises them into input unless that is NULL. */
static abar_status take_batches(abar_context *ctx, abar_loader *loader, const abar_dataset_info *info, const abar_tensor *input,
                                double seconds, pace *out)
{
    double began = 0.0, cpu = 0.0, passed = 0.0;
    int64_t images = 0;
    for (int64_t k = 0; passed < seconds || k <= WARM_UP_BATCHES; k++) {
        abar_batch batch = {.size = sizeof batch};
        ABAR_TRY(abar_loader_next(loader, &batch));
        if (input) ABAR_TRY(abar_batch_normalise(ctx, info, &batch, batch.count, input));
        if (k == WARM_UP_BATCHES - 1) began = abar__seconds(), cpu = cpu_seconds();
        if (k < WARM_UP_BATCHES) continue;
        images += batch.count;
        passed = abar__seconds() - began;
    }
    *out = (pace){(double)images / passed, (double)images / (cpu_seconds() - cpu)};
    return ABAR_OK;
}

/* With the caller's thread normalising, which it cannot where a device decodes. */
static abar_status time_normalised(abar_context *ctx, abar_loader *loader, const abar_dataset_info *info,
                                   const abar_loader_config *request, double seconds, pace *out)
{
    const int64_t dim[] = {request->batch, info->channels, info->height, info->width};
    const size_t bytes = (size_t)(dim[0] * dim[1] * dim[2] * dim[3]) * sizeof(float);
    void *memory;
    *out = (pace){0};
    if (request->encoded) return ABAR_OK;
    ABAR_TRY(abar__alloc(ctx, bytes, &memory));
    const abar_tensor input = abar_tensor_wrap(NULL, memory, ABAR_F32, 4, dim);
    const abar_status status = take_batches(ctx, loader, info, &input, seconds, out);
    abar__free(ctx, memory, bytes);
    return status;
}

static abar_status time_loader(abar_context *ctx, const abar_dataset *data, const abar_loader_config *request, double seconds,
                               abar_bench_data_result *out)
{
    const abar_dataset_info *info = abar_dataset_info_of(data);
    pace batches = {0}, normalised = {0};
    abar_loader *loader;
    ABAR_TRY(abar_loader_create(ctx, data, request, &loader));
    abar_status status = take_batches(ctx, loader, info, NULL, seconds, &batches);
    if (status == ABAR_OK) status = time_normalised(ctx, loader, info, request, seconds, &normalised);
    abar_loader_destroy(loader);
    out->loader_per_second = batches.wall;
    out->images_per_second = normalised.wall;
    out->images_per_cpu_second = normalised.cpu;
    return status;
}

static abar_status measure_loading(abar_context *ctx, const abar_setup *setup, const abar_dataset *data, int workers,
                                   double seconds, abar_bench_data_result *out)
{
    const abar_dataset_info *info = abar_dataset_info_of(data);
    abar_loader_config request = abar__loader_request(setup, false);
    abar__image_rates rates;
    request.threads = workers;
    if (!info->streamed)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--data %s: is held in memory, and nothing has to be read, give a folder of images",
                          setup->train.data);
    if (info->train < request.batch)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--batch %lld: more than the %lld training samples, choose less",
                          (long long)request.batch, (long long)info->train);
    out->workers = workers;
    out->images = info->train < STAGE_IMAGES / STAGE_TIMES ? info->train * STAGE_TIMES : STAGE_IMAGES;
    ABAR_TRY(abar__image_rates_measure(data, &request.augment, request.seed, workers, out->images, &rates));
    out->read = rates.read;
    out->view = rates.view;
    out->policy = rates.policy;
    return time_loader(ctx, data, &request, seconds, out);
}

abar_status abar_bench_data(abar_context *ctx, const abar_setup *setup, int64_t workers, double seconds,
                            abar_bench_data_result *result)
{
    abar_bench_data_result measured = {0};
    abar_dataset *data;
    ABAR_TRY(abar__struct_check(ctx, "abar_bench_data_result", result, sizeof measured));
    if (workers < 1 || workers > 256) return abar__fail(ctx, ABAR_E_ARGUMENT, "--workers: give numbers from 1 to 256");
    ABAR_TRY(abar_setup_check(ctx, setup));
    ABAR_TRY(abar__data_open(ctx, setup, false, NULL, &data));
    abar_status status = measure_loading(ctx, setup, data, (int)workers, seconds, &measured);
    abar_dataset_close(data);
    abar__struct_write(&measured, sizeof measured, result);
    return status;
}

/* ---- training --------------------------------------------------------------------------------------------------- */

typedef struct fed {
    abar_trainer *trainer;
    int64_t steps, warmup, seen;
    double began, seconds, waited;
} fed;

/* Sums of the trainer's last steps. */
static void sum_pace(const abar__pace *p, double *seconds, double *waited)
{
    *seconds = *waited = 0.0;
    for (int64_t i = 0; i < p->steps && i < ABAR_PACE_STEPS; i++) *seconds += p->seconds[i], *waited += p->waited[i];
}

static void after_step(void *user, const abar_progress *now)
{
    fed *f = user;
    (void)now;
    f->seen++;
    if (f->seen == f->warmup) f->trainer->pace.steps = 0;
    if (f->seen < f->warmup + f->steps) return;
    if (f->seen == f->warmup + f->steps) sum_pace(&f->trainer->pace, &f->seconds, &f->waited);
    abar_trainer_stop(f->trainer);
}

static abar_status train_fed(abar_context *ctx, const abar_setup *setup, fed *f)
{
    const abar_trainer_events events = {.size = sizeof events, .progress = after_step, .user = f};
    ABAR_TRY(abar_trainer_create(ctx, setup, false, &events, &f->trainer));
    const int64_t most = f->trainer->steps; /* no step after the test that ends an epoch */
    abar_status status = ABAR_OK;
    if (f->warmup >= most) f->warmup = most > 1 ? 1 : 0;
    if (f->warmup + f->steps > most) f->steps = most - f->warmup;
    if (f->steps > FED_STEPS_MAX) f->steps = FED_STEPS_MAX;
    if (f->warmup == 0) f->trainer->pace.steps = 0;
    status = abar_trainer_run(f->trainer);
    abar_trainer_destroy(f->trainer);
    return status < 0 ? status : ABAR_OK;
}

abar_status abar_bench_fed(abar_context *ctx, const abar_setup *setup, int64_t workers, int64_t steps, int64_t warmup,
                           abar_bench_fed_result *result)
{
    abar_bench_fed_result measured = {0};
    abar_setup *own;
    fed f = {.steps = steps, .warmup = warmup};
    ABAR_TRY(abar__struct_check(ctx, "abar_bench_fed_result", result, sizeof measured));
    if (steps < 1 || warmup < 0) return abar__fail(ctx, ABAR_E_ARGUMENT, "bench: give at least 1 step, and no negative warmup");
    ABAR_TRY(abar__setup_copy(ctx, setup, &own));
    own->train.workers = workers;
    own->train.stop_after = own->train.checkpoint_every = 0;
    own->train.out[0] = own->train.snapshot[0] = '\0';
    abar_status status = train_fed(ctx, own, &f);
    abar_setup_destroy(ctx, own);
    if (status < 0) return status;
    measured.ms_step = 1e3 * f.seconds / (double)f.steps;
    measured.ms_waited = 1e3 * f.waited / (double)f.steps;
    measured.samples_per_second = f.seconds > 0.0 ? (double)(f.steps * setup->train.batch) / f.seconds : 0.0;
    abar__struct_write(&measured, sizeof measured, result);
    return ABAR_OK;
}
