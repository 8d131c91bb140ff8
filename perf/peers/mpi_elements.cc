// Sparse allreduces of single elements over an MPI library: those of the SparCML kind, and MPI_Allgatherv of
// all streams with a sum on each rank. scripts/compare compiles this file with each MPI.
#include <mpi.h>

#include <memory>

#include "perf/peers/elements_loop.h"
#include "perf/peers/gather_and_sum.h"
#include "perf/peers/sparcml.h"

namespace perf::peers {
namespace {

void barrier() { MPI_Barrier(MPI_COMM_WORLD); }
void gather(double* values, std::size_t count, MPI_Op op) {
  MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(count), MPI_DOUBLE, op, MPI_COMM_WORLD);
}
void gather_most(double* values, std::size_t count) { gather(values, count, MPI_MAX); }
void gather_sum(double* values, std::size_t count) { gather(values, count, MPI_SUM); }

Allgather mpi_allgather(int ranks) {
  struct Lengths {
    std::vector<int> counts, places;
  };
  const auto lengths = std::make_shared<Lengths>();
  lengths->counts.resize(static_cast<std::size_t>(ranks));
  lengths->places.resize(static_cast<std::size_t>(ranks));
  return {
      .counts =
          [](std::size_t own, std::vector<std::size_t>& counts) {
            static_assert(sizeof(std::size_t) == sizeof(std::uint64_t));
            MPI_Allgather(&own, 1, MPI_UINT64_T, counts.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD);
          },
      .streams =
          [lengths](Stream own, Pair* all, const std::vector<std::size_t>& counts) {
            int pairs = 0;
            for (std::size_t r = 0; r < counts.size(); ++r) {
              lengths->counts[r] = static_cast<int>(counts[r]), lengths->places[r] = pairs;
              pairs += lengths->counts[r];
            }
            // A pair travels as one unit of eight bytes.
            MPI_Allgatherv(own.data(), static_cast<int>(own.size()), MPI_UINT64_T, all,
                           lengths->counts.data(), lengths->places.data(), MPI_UINT64_T, MPI_COMM_WORLD);
          },
  };
}

/// Makes a dense vector of pairs, in memory of its own.
class Expander {
 public:
  explicit Expander(std::uint32_t elements) : elements_(elements), values_(new float[elements]) {}
  Vector operator()(Vector v) const {
    if (v.dense()) return v;
    sum_densely({&v.pairs, 1}, {values_.get(), elements_});
    return {.pairs = {}, .values = {values_.get(), elements_}};
  }

 private:
  const std::uint32_t elements_;
  const std::unique_ptr<float[]> values_;
};

void run(int argc, char** argv) {
  const auto command =
      parse_elements_command_line(argc, argv, "mpi_elements ELEMENTS ITERATIONS WARM_UP DENSITIES");
  peer self{0, 0, barrier, gather_most, gather_sum};
  MPI_Comm_rank(MPI_COMM_WORLD, &self.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &self.ranks);

  SparCml sparcml(command.elements);
  const Expander expand(command.elements);
  GatherAndSum gather_and_sum(self.ranks, command.elements, mpi_allgather(self.ranks));
  const auto of_sparcml = [&](const char* name, Vector (SparCml::*algorithm)(Stream)) {
    return SparseAllreduce{.name = name,
                           .run =
                               [&sparcml, &expand, algorithm](Stream own, bool dense) {
                                 const Vector sum = (sparcml.*algorithm)(own);
                                 return dense ? expand(sum) : sum;
                               },
                           .take_sent_bytes = [&] { return sparcml.take_sent_bytes(); }};
  };
  measure_elements(self,
                   {of_sparcml("ssar_recursive_double", &SparCml::recursive_double),
                    of_sparcml("ssar_split_allgather", &SparCml::split_allgather),
                    of_sparcml("dsar_split_allgather", &SparCml::dense_split_allgather),
                    {.name = "allgatherv",
                     .run = [&](Stream own, bool dense) { return gather_and_sum.run(own, dense); },
                     .take_sent_bytes = [&] { return gather_and_sum.take_sent_bytes(); }}},
                   command);
}

}  // namespace
}  // namespace perf::peers

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  perf::peers::run(argc, argv);
  MPI_Finalize();
}
