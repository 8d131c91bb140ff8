/* An MPI library's dense allreduce, timed as nzcl_allreduce_perf times nzcl's: a barrier before each
   operation, the slowest rank's time per operation. scripts/compare compiles it with each MPI and runs it.

   usage: mpi_allreduce BYTES ITERATIONS WARM_UP in_place|out_of_place
   prints (rank 0): {"times_us": [...], "cpu_s": of all ranks per operation, "wrong": elements} */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static float value(int rank, size_t i) { return (float)(1 + (i * 5 + (size_t)rank * 3) % 7); }

static double cpu_seconds(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 5) {
    if (rank == 0) fprintf(stderr, "usage: mpi_allreduce BYTES ITERATIONS WARM_UP in_place|out_of_place\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const size_t count = strtoull(argv[1], NULL, 10) / sizeof(float);
  const int iterations = atoi(argv[2]), warm_up = atoi(argv[3]);
  const int in_place = strcmp(argv[4], "in_place") == 0;
  float* pristine = malloc((count + 1) * sizeof(float));
  float* input = malloc((count + 1) * sizeof(float));
  float* output = malloc((count + 1) * sizeof(float));
  double* times = malloc((size_t)(iterations + 1) * sizeof(double));
  for (size_t i = 0; i < count; ++i) pristine[i] = value(rank, i);
  memcpy(input, pristine, count * sizeof(float));
  memset(output, 0xff, count * sizeof(float));

  double wrong = 0, cpu = 0;
  for (int k = -warm_up; k < iterations; ++k) {
    if (in_place) memcpy(output, pristine, count * sizeof(float));
    MPI_Barrier(MPI_COMM_WORLD);
    const double cpu_before = cpu_seconds(), begin = MPI_Wtime();
    MPI_Allreduce(in_place ? MPI_IN_PLACE : input, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double took = MPI_Wtime() - begin;
    if (k >= 0) times[k] = took, cpu += cpu_seconds() - cpu_before;
    if (k != 0) continue;
    for (size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int r = 0; r < ranks; ++r) sum += value(r, i);
      wrong += output[i] != sum;
    }
  }
  MPI_Allreduce(MPI_IN_PLACE, times, iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  double sums[2] = {wrong, cpu / iterations};
  MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("{\"times_us\": [");
    for (int k = 0; k < iterations; ++k) printf("%s%.3f", k ? ", " : "", times[k] * 1e6);
    printf("], \"cpu_s\": %.6f, \"wrong\": %.0f}\n", sums[1], sums[0]);
  }
  MPI_Finalize();
  return 0;
}
