/* Collectives of MPI between local processes: what an MPI program gets on CPU.
 *
 *     apt-get install openmpi-bin libopenmpi-dev
 *     mpicc -O3 collectives_mpi.c -o collectives_mpi
 *     mpirun --oversubscribe -n 4 ./collectives_mpi [--sizes 1024,65536] [--times 15] [--warmup 3]
 *                                                   [--only all_reduce,all_to_all]
 *
 * `mpirun` needs --allow-run-as-root where the user is root, --oversubscribe where there are fewer cores than ranks.
 *
 * Prints a line for each collective and size: its name, the bytes of the f32 buffer that one rank gives, and the median
 * seconds of one call on rank 0, each call after a barrier. One rank receives as many bytes from all_reduce and
 * all_to_all, ranks times as many from all_gather, and one in ranks of them from reduce_scatter. Buffers are allocated
 * before; every result is checked once before the measurements. */
#include <getopt.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, COLLECTIVES };
static const char *const names[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
static int rank, ranks;

static void fail(const char *why, const char *what) {
    fprintf(stderr, "collectives_mpi: rank %d: %s: %s\n", rank, why, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static float *buffer(size_t count) {
    float *memory = aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
    if (!memory) fail("no memory", "a buffer");
    return memory;
}

/* The numbers of the result. */
static size_t received(int which, size_t count) {
    return which == ALL_GATHER ? count * ranks : which == REDUCE_SCATTER ? count / ranks : count;
}

static void call(int which, float *x, float *y, int count) {
    int part = count / ranks;
    switch (which) {
    case ALL_REDUCE: MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_GATHER: MPI_Allgather(x, count, MPI_FLOAT, y, count, MPI_FLOAT, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(x, y, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_TO_ALL: MPI_Alltoall(x, part, MPI_FLOAT, y, part, MPI_FLOAT, MPI_COMM_WORLD); break;
    }
}

/* What block `block` of the result holds on this rank when block b of rank r's input holds r * ranks + b. */
static int expected(int which, int block) {
    int sum = ranks * ranks * (ranks - 1) / 2;
    switch (which) {
    case ALL_REDUCE: return sum + ranks * block;
    case ALL_GATHER: return block;
    case REDUCE_SCATTER: return sum + ranks * rank;
    default: return block * ranks + rank;
    }
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The median seconds of a call on this rank. */
static double measure(int which, int count, int times, int warmup) {
    int part = count / ranks;
    float *x = buffer(count), *y = which == ALL_REDUCE ? x : buffer(received(which, count));
    double *seconds = malloc(times * sizeof *seconds);
    if (!seconds) fail("no memory", "the times");
    for (int i = 0; i < count; i++) x[i] = rank * ranks + i / part;
    call(which, x, y, count);
    for (size_t i = 0; i < received(which, count); i++)
        if (y[i] != expected(which, i / part)) fail("wrong result", names[which]);
    memset(x, 0, count * sizeof(float)); /* sums of sums would overflow */
    for (int i = -warmup; i < times; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        call(which, x, y, count);
        double end = MPI_Wtime();
        if (i >= 0) seconds[i] = end - begin;
    }
    qsort(seconds, times, sizeof *seconds, by_value);
    double median = (seconds[(times - 1) / 2] + seconds[times / 2]) / 2;
    if (y != x) free(y);
    free(x);
    free(seconds);
    return median;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *sizes = "1024,65536,1048576,4194304,16777216,67108864";
    char every[] = "all_reduce,all_gather,reduce_scatter,all_to_all", *only = every;
    int times = 15, warmup = 3;
    const struct option options[] = {{"sizes", required_argument, 0, 's'},
                                     {"times", required_argument, 0, 't'},
                                     {"warmup", required_argument, 0, 'w'},
                                     {"only", required_argument, 0, 'o'},
                                     {0}};
    for (int option; (option = getopt_long(argc, argv, "", options, 0)) != -1;) switch (option) {
        case 's': sizes = optarg; break;
        case 't': times = atoi(optarg); break;
        case 'w': warmup = atoi(optarg); break;
        case 'o': only = optarg; break;
        default: fail("bad argument", "see the head of collectives_mpi.c");
        }
    if (times < 1 || warmup < 0) fail("bad argument", "--times starts at 1, --warmup at 0");

    for (char *name = strtok(only, ","); name; name = strtok(0, ",")) {
        int which = 0;
        while (which < COLLECTIVES && strcmp(name, names[which])) which++;
        if (which == COLLECTIVES) fail("no such collective", name);
        for (const char *rest = sizes; *rest;) {
            char *end;
            long bytes = strtol(rest, &end, 10);
            if (bytes <= 0 || bytes % (4 * ranks) || bytes / 4 > INT_MAX || (*end && *end != ','))
                fail("a size must be a multiple of 4 bytes times the ranks", rest);
            double seconds = measure(which, bytes / 4, times, warmup);
            if (rank == 0) printf("%s %ld %.6e\n", name, bytes, seconds), fflush(stdout);
            rest = *end ? end + 1 : end;
        }
    }
    MPI_Finalize();
}
