// Sparse allreduces of single elements as PyTorch does them over Gloo: an allgather of all streams over TCP,
// and a sum on each rank.
#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/rendezvous/context.h>

#include <cstdio>

#include "perf/peers/elements_loop.h"
#include "perf/peers/gather_and_sum.h"
#include "perf/peers/gloo_context.h"

namespace perf::peers {
namespace {

constexpr const char* kUsage =
    "RANK=R WORLD_SIZE=N gloo_elements ELEMENTS ITERATIONS WARM_UP DENSITIES FOLDER ADDRESS";

// A pair travels as one unit of eight bytes.
std::uint64_t* units(const Pair* pairs) { return reinterpret_cast<std::uint64_t*>(const_cast<Pair*>(pairs)); }

void gather_counts(std::size_t own, std::vector<std::size_t>& counts) {
  gloo::AllgatherOptions options(gloo_context());
  options.setInput(&own, 1);
  options.setOutput(counts.data(), counts.size());
  gloo::allgather(options);
}

void gather_streams(Stream own, Pair* all, const std::vector<std::size_t>& counts) {
  gloo::AllgathervOptions options(gloo_context());
  options.setInput(units(own.data()), own.size());
  options.setOutput(units(all), counts);
  gloo::allgatherv(options);
}

}  // namespace
}  // namespace perf::peers

int main(int argc, char** argv) {
  using namespace perf::peers;
  const auto command = parse_elements_command_line(argc, argv, kUsage);
  peer self{};
  if (argc != 7 || !meet_over_gloo(argv[5], argv[6], self)) {
    std::fprintf(stderr, "usage: %s\n", kUsage);
    return 2;
  }
  {
    GatherAndSum gather_and_sum(self.ranks, command.elements,
                                {.counts = gather_counts, .streams = gather_streams});
    measure_elements(self,
                     {{.name = "allgatherv",
                       .run = [&](Stream own, bool dense) { return gather_and_sum.run(own, dense); },
                       .take_sent_bytes = [&] { return gather_and_sum.take_sent_bytes(); }}},
                     command);
  }
  leave_gloo();
}
