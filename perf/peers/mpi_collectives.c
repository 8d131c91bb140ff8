/* The dense collectives of an MPI library, timed by perf/peers/collective_loop.h. scripts/compare compiles
   this file with each MPI. */
#include <mpi.h>

#include "perf/peers/collective_loop.h"

static int is_root(void) {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank == 0;
}

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }
static void allreduce(const float* input, float* output, size_t count) {
  MPI_Allreduce(input ? input : MPI_IN_PLACE, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void broadcast(const float* input, float* output, size_t count) {
  (void)input;
  MPI_Bcast(output, (int)count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void reduce(const float* input, float* output, size_t count) {
  /* Only the root may say that it is in place. */
  const void* from = input ? (const void*)input : is_root() ? MPI_IN_PLACE : output;
  MPI_Reduce(from, is_root() ? output : NULL, (int)count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}
static void reduce_scatter(const float* input, float* output, size_t count) {
  MPI_Reduce_scatter_block(input ? input : MPI_IN_PLACE, output, (int)count, MPI_FLOAT, MPI_SUM,
                           MPI_COMM_WORLD);
}
static void allgather(const float* input, float* output, size_t count) {
  MPI_Allgather(input ? input : MPI_IN_PLACE, (int)count, MPI_FLOAT, output, (int)count, MPI_FLOAT,
                MPI_COMM_WORLD);
}
static void gather(double* values, size_t count, MPI_Op op) {
  MPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_DOUBLE, op, MPI_COMM_WORLD);
}
static void gather_most(double* values, size_t count) { gather(values, count, MPI_MAX); }
static void gather_sum(double* values, size_t count) { gather(values, count, MPI_SUM); }

int main(int argc, char** argv) {
  const struct collectives collectives = {allreduce, broadcast, reduce, reduce_scatter, allgather, 0};
  MPI_Init(&argc, &argv);
  struct peer peer = {0, 0, barrier, gather_most, gather_sum};
  MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &peer.ranks);
  if (argc != 6 || !measure_collective(&peer, &collectives, argv)) {
    if (peer.rank == 0)
      fprintf(stderr,
              "usage: mpi_collectives allreduce|broadcast|reduce|reduce_scatter|allgather BYTES ITERATIONS "
              "WARM_UP in_place|out_of_place\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Finalize();
  return 0;
}
