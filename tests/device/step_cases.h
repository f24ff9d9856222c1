/* The optimizer step (device/step_impl.h) of a device against that of ref, both driven by abar_optim: every rule and method,
 * bad numbers, clipping, micro-batches, restarts, moved parameters. */
#ifndef STEP_CASES_H
#define STEP_CASES_H

struct CMUnitTest;

enum { STEP_CASES_MAX = 24 };

/* Returns how many cases failed. A device with a queue has cases of its own: bf16 copies, replaying. */
int step_cases_run(const char *device);
/* Writes those that compare bit for bit, and returns how many they are. */
int step_cases_bits(const char *device, struct CMUnitTest *out);

#endif
