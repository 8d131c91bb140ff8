/* The dense allreduce of an MPI library, timed by perf/peers/allreduce_loop.h. scripts/compare compiles this
   file with each MPI. */
#include <mpi.h>

#include "perf/peers/allreduce_loop.h"

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }
static void allreduce(const float* input, float* output, size_t count) {
  MPI_Allreduce(input ? input : MPI_IN_PLACE, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void gather(double* values, size_t count, MPI_Op op) {
  MPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_DOUBLE, op, MPI_COMM_WORLD);
}
static void gather_most(double* values, size_t count) { gather(values, count, MPI_MAX); }
static void gather_sum(double* values, size_t count) { gather(values, count, MPI_SUM); }

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  struct peer peer = {0, 0, barrier, gather_most, gather_sum};
  MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &peer.ranks);
  if (argc != 5) {
    if (peer.rank == 0)
      fprintf(stderr, "usage: mpi_allreduce BYTES ITERATIONS WARM_UP in_place|out_of_place\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  measure_allreduce(&peer, allreduce, argv);
  MPI_Finalize();
  return 0;
}
