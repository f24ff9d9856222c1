/* The optimizer step of cpu against ref's; test_step_cuda.c runs the same cases on a GPU. */
#include "step_cases.h"

int main(void) { return step_cases_run("cpu"); }
