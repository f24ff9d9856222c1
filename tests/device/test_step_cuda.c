/* The optimizer step of cuda against ref's; test_step_devices.c runs the same cases on the CPU. */
#include "cuda_testing.h"
#include "step_cases.h"

int main(int argc, char **argv)
{
    cuda_choose_tests(argc, argv);
    const int missing = cuda_missing();
    return missing ? missing : step_cases_run("cuda");
}
