/* The optimizer step of cuda against ref's; test_step_devices.c runs the same cases on the CPU. */
#include "cuda_testing.h"
#include "step_cases.h"

int main(void)
{
    const int missing = cuda_missing();
    return missing ? missing : step_cases_run("cuda");
}
