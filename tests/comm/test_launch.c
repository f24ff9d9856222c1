/* Launchers, by environments as they set them. */
#include "ranks.h"

#include "comm/launch.h"

#define ENVIRONMENT(...) ((const char *const[]){__VA_ARGS__, NULL})

/* user: names and values in turn. */
static const char *look_up(void *user, const char *name)
{
    for (const char *const *at = user; *at; at += 2)
        if (!strcmp(at[0], name)) return at[1];
    return NULL;
}

static abar__launch read_launch(const char *const *environment)
{
    abar_context *ctx = new_context();
    abar__launch l;
    const abar_status status = abar__launch_read(ctx, look_up, (void *)(uintptr_t)environment, &l);
    if (status < 0) fail_msg("%s", abar_context_error(ctx));
    abar_context_destroy(ctx);
    return l;
}

static void is_refused(const char *const *environment, const char *expected)
{
    abar_context *ctx = new_context();
    abar__launch l;
    assert_int_equal(abar__launch_read(ctx, look_up, (void *)(uintptr_t)environment, &l), ABAR_E_ARGUMENT);
    if (!strstr(abar_context_error(ctx), expected)) fail_msg("'%s' lacks '%s'", abar_context_error(ctx), expected);
    abar_context_destroy(ctx);
}

static void no_launcher_is_one_rank(void **state)
{
    (void)state;
    const abar__launch l = read_launch(ENVIRONMENT("RANK", "3", "HOME", "/root")); /* RANK alone says nothing */
    assert_true(l.by == ABAR_LAUNCH_NONE && l.rank == 0 && l.size == 1 && !l.mpi);
}

static void torchrun_gives_rank_and_address(void **state)
{
    (void)state;
    abar__launch l = read_launch(
        ENVIRONMENT("RANK", "3", "WORLD_SIZE", "8", "LOCAL_RANK", "1", "MASTER_ADDR", "node7", "MASTER_PORT", "29500"));
    assert_true(l.by == ABAR_LAUNCH_TORCHRUN && l.rank == 3 && l.size == 8 && !l.mpi && l.port == 29500);
    assert_string_equal(l.host, "node7");
    assert_string_equal(l.name, "torchrun");
    /* torchrun's own store is at the port */
    l = read_launch(ENVIRONMENT("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "MASTER_PORT", "29500",
                                "TORCHELASTIC_USE_AGENT_STORE", "True"));
    assert_int_equal(l.port, 29501);
    l = read_launch(
        ENVIRONMENT("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "MASTER_PORT", "29500", "ABAR_PORT", "4000"));
    assert_int_equal(l.port, 4000);
}

static void launchers_say_whether_there_are_several_machines(void **state)
{
    (void)state;
#define TORCHRUN "RANK", "3", "WORLD_SIZE", "8", "MASTER_ADDR", "a", "MASTER_PORT", "29500"
    abar__launch l = read_launch(ENVIRONMENT(TORCHRUN, "LOCAL_RANK", "1", "LOCAL_WORLD_SIZE", "2"));
    assert_true(l.apart && l.local == 1);
    l = read_launch(ENVIRONMENT(TORCHRUN, "LOCAL_RANK", "3", "LOCAL_WORLD_SIZE", "8"));
    assert_true(!l.apart && l.local == 3);
    l = read_launch(ENVIRONMENT(TORCHRUN));
    assert_true(!l.apart && l.local == -1);
    l = read_launch(ENVIRONMENT("SLURM_PROCID", "5", "SLURM_NTASKS", "8", "SLURM_STEP_ID", "1", "SLURM_JOB_NODELIST", "n[1-2]",
                                "SLURM_STEP_NUM_NODES", "2", "SLURM_LOCALID", "1"));
    assert_true(l.apart && l.local == 1);
}

static void slurm_steps_give_rank_and_first_node(void **state)
{
    (void)state;
    const abar__launch l =
        read_launch(ENVIRONMENT("SLURM_PROCID", "5", "SLURM_STEP_NUM_TASKS", "8", "SLURM_NTASKS", "16", "SLURM_STEP_ID", "0",
                                "SLURM_JOB_ID", "1234", "SLURM_STEP_NODELIST", "gpu[03-04],login", "SLURM_LOCALID", "1"));
    assert_true(l.by == ABAR_LAUNCH_SLURM && l.rank == 5 && l.size == 8 && !l.mpi);
    assert_string_equal(l.host, "gpu03");
    assert_true(l.port > 1024 && l.port < 32768);
    const abar__launch other = read_launch(ENVIRONMENT("SLURM_PROCID", "5", "SLURM_NTASKS", "8", "SLURM_STEP_ID", "1",
                                                       "SLURM_JOB_ID", "1234", "SLURM_JOB_NODELIST", "n1", "PMIX_RANK", "5"));
    assert_true(other.size == 8 && other.port != l.port && other.mpi); /* two steps of one job */
    const abar__launch set = read_launch(ENVIRONMENT("SLURM_PROCID", "0", "SLURM_NTASKS", "8", "SLURM_STEPID", "1",
                                                     "SLURM_JOB_NODELIST", "n1", "MASTER_ADDR", "n2", "MASTER_PORT", "77"));
    assert_string_equal(set.host, "n2");
    assert_int_equal(set.port, 77);
}

/* The script of sbatch has the job's variables, and is one process. */
static void slurm_batch_script_is_one_rank(void **state)
{
    (void)state;
    const abar__launch l = read_launch(ENVIRONMENT("SLURM_PROCID", "0", "SLURM_NTASKS", "8", "SLURM_JOB_NODELIST", "n[1-8]"));
    assert_true(l.by == ABAR_LAUNCH_NONE && l.size == 1);
}

static void mpirun_comes_before_what_surrounds_it(void **state)
{
    (void)state;
    abar__launch l = read_launch(ENVIRONMENT("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4", "SLURM_PROCID", "0",
                                             "SLURM_NTASKS", "8", "SLURM_STEP_ID", "0", "SLURM_JOB_NODELIST", "n1"));
    assert_true(l.by == ABAR_LAUNCH_OPENMPI && l.rank == 1 && l.size == 4 && l.mpi && !l.host[0]);
    l = read_launch(
        ENVIRONMENT("PMI_RANK", "2", "PMI_SIZE", "3", "RANK", "0", "WORLD_SIZE", "9", "MASTER_ADDR", "h", "MASTER_PORT", "5"));
    assert_true(l.by == ABAR_LAUNCH_PMI && l.rank == 2 && l.size == 3 && l.mpi && l.port == 5);
}

static void values_that_are_no_ranks_are_refused(void **state)
{
    (void)state;
    is_refused(ENVIRONMENT("PMI_RANK", "3", "PMI_SIZE", "3"), "PMI_RANK=3");
    is_refused(ENVIRONMENT("PMI_RANK", "-1", "PMI_SIZE", "3"), "PMI_RANK=-1");
    is_refused(ENVIRONMENT("PMI_RANK", "1x", "PMI_SIZE", "3"), "PMI_RANK=1x");
    is_refused(ENVIRONMENT("PMI_RANK", "0", "PMI_SIZE", "0"), "PMI_SIZE=0");
    is_refused(ENVIRONMENT("PMI_RANK", "0", "PMI_SIZE", "99999999999999999999"), "PMI_SIZE=");
    is_refused(ENVIRONMENT("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "MASTER_PORT", "65536"), "MASTER_PORT=65536");
    is_refused(ENVIRONMENT("SLURM_PROCID", "0", "SLURM_NTASKS", "2", "SLURM_STEP_ID", "0", "SLURM_JOB_NODELIST", "n[1"),
               "MASTER_ADDR");
}

static void first_host_of_node_lists(void **state)
{
    (void)state;
    static const char *const lists[][2] = {{"n1", "n1"},
                                           {"n1,n2", "n1"},
                                           {"n[1-3]", "n1"},
                                           {"n[007,9]", "n007"},
                                           {"a-b[2]-c,d", "a-b2-c"},
                                           {"r[1-2]n[3-4]", "r1n3"},
                                           {"h.example.org", "h.example.org"}};
    static const char *const bad[] = {"", ",", "n[", "n[a]", "n[1", "n 1", "n;1", "$(x)"};
    char host[16];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        assert_true(abar__launch_first_host(lists[i][0], host, sizeof host));
        assert_string_equal(host, lists[i][1]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (abar__launch_first_host(bad[i], host, sizeof host)) fail_msg("'%s' was taken for '%s'", bad[i], host);
    assert_false(abar__launch_first_host("a-name-that-is-too-long", host, sizeof host));
    assert_false(abar__launch_first_host("n[12345678901234567]", host, sizeof host));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_launcher_is_one_rank),
        cmocka_unit_test(torchrun_gives_rank_and_address),
        cmocka_unit_test(launchers_say_whether_there_are_several_machines),
        cmocka_unit_test(slurm_steps_give_rank_and_first_node),
        cmocka_unit_test(slurm_batch_script_is_one_rank),
        cmocka_unit_test(mpirun_comes_before_what_surrounds_it),
        cmocka_unit_test(values_that_are_no_ranks_are_refused),
        cmocka_unit_test(first_host_of_node_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
