// Gloo's dense collectives over TCP, timed by perf/peers/collective_loop.h. RANK and WORLD_SIZE place a
// process, and the ranks meet in an empty folder.
#include <gloo/allgather.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>

#include <memory>
#include <vector>

#include "perf/peers/collective_loop.h"
#include "perf/peers/gloo_context.h"

namespace perf::peers {
namespace {

void broadcast(const float*, float* output, std::size_t count) {
  gloo::BroadcastOptions options(gloo_context());
  options.setOutput(output, count);
  options.setRoot(0);
  gloo::broadcast(options);
}

void reduce(const float* input, float* output, std::size_t count) {
  gloo::ReduceOptions options(gloo_context());
  if (input) options.setInput(const_cast<float*>(input), count);
  options.setOutput(output, count);
  options.setRoot(0);
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
  gloo::reduce(options);
}

using ReduceScatter = gloo::ReduceScatterHalvingDoubling<float>;
std::unique_ptr<ReduceScatter> reduce_scatter_of_output;  // has buffers, and is made in the warm-up

/// It has one form only, which overwrites its input, where its result begins too.
void reduce_scatter(const float*, float* output, std::size_t count) {
  if (!reduce_scatter_of_output) {
    const std::vector<int> counts(static_cast<std::size_t>(gloo_context()->size), static_cast<int>(count));
    reduce_scatter_of_output = std::make_unique<ReduceScatter>(
        gloo_context(), std::vector<float*>{output}, static_cast<int>(count) * gloo_context()->size, counts);
  }
  reduce_scatter_of_output->run();
}

void allgather(const float* input, float* output, std::size_t count) {
  gloo::AllgatherOptions options(gloo_context());
  if (input) options.setInput(const_cast<float*>(input), count);
  options.setOutput(output, count * static_cast<std::size_t>(gloo_context()->size));
  gloo::allgather(options);
}

}  // namespace
}  // namespace perf::peers

int main(int argc, char** argv) {
  using namespace perf::peers;
  const collectives all{gloo_allreduce, broadcast, reduce, reduce_scatter, allgather, 1};
  peer self{};
  if (argc != 8 || !meet_over_gloo(argv[6], argv[7], self) || !measure_collective(&self, &all, argv)) {
    std::fprintf(
        stderr,
        "usage: RANK=R WORLD_SIZE=N gloo_collectives allreduce|broadcast|reduce|reduce_scatter|allgather "
        "BYTES ITERATIONS WARM_UP in_place|out_of_place FOLDER ADDRESS\n");
    return 2;
  }
  reduce_scatter_of_output.reset();
  leave_gloo();
}
