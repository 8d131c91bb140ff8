// An example for training engines that use MPI already: nzcl meets through MPI's allgather, and then sums
// what MPI_Allreduce would sum.
#include <mpi.h>
#include <nzcl/communicator.h>

#include <cstdio>
#include <string>
#include <vector>

static std::vector<std::string> mpi_allgather(std::string_view mine) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int bytes = static_cast<int>(mine.size()), total = 0;
  std::vector<int> sizes(ranks), offsets(ranks);
  MPI_Allgather(&bytes, 1, MPI_INT, sizes.data(), 1, MPI_INT, MPI_COMM_WORLD);
  for (int r = 0; r < ranks; total += sizes[r++]) offsets[r] = total;
  std::string all(total, '\0');
  MPI_Allgatherv(mine.data(), bytes, MPI_BYTE, all.data(), sizes.data(), offsets.data(), MPI_BYTE,
                 MPI_COMM_WORLD);
  std::vector<std::string> parts;
  for (int r = 0; r < ranks; ++r) parts.push_back(all.substr(offsets[r], sizes[r]));
  return parts;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0, wrong = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  try {
    nzcl::Communicator comm(nzcl::options_from_environment(), rank, ranks, mpi_allgather);
    std::vector<float> gradient(1 << 20), expected(gradient.size());
    for (int block : {0, 5 + rank, 100 * (rank + 1)}) {
      for (int i = 0; i < 256; ++i) gradient[block * 256 + i] = static_cast<float>(rank + i);
    }
    MPI_Allreduce(gradient.data(), expected.data(), 1 << 20, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const auto registered = comm.register_buffer(gradient.data(), gradient.size() * sizeof(float));
    comm.allreduce({.input = gradient.data(), .output = gradient.data(), .count = gradient.size()}).wait();
    for (std::size_t i = 0; i < gradient.size(); ++i) wrong += gradient[i] != expected[i];
  } catch (const nzcl::Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%d ranks: %s\n", ranks, wrong == 0 ? "nzcl and MPI agree" : "nzcl and MPI DISAGREE");
  MPI_Finalize();
  return wrong != 0;
}
