// Gloo's dense ring allreduce over TCP, timed by perf/peers/allreduce_loop.h. RANK and WORLD_SIZE place a
// process, and the ranks meet in an empty folder.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "perf/peers/allreduce_loop.h"

namespace {

std::shared_ptr<gloo::rendezvous::Context> context;

using Function = void (*)(void*, const void*, const void*, size_t);

template <typename T>
void reduce(T* values, const T* input, size_t count, Function function) {
  gloo::AllreduceOptions options(context);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  if (input) options.setInput(const_cast<T*>(input), count);
  options.setOutput(values, count);
  options.setReduceFunction(function);
  gloo::allreduce(options);
}

void barrier() {
  gloo::BarrierOptions options(context);
  gloo::barrier(options);
}
void allreduce(const float* input, float* output, size_t count) {
  reduce(output, input, count, &gloo::sum<float>);
}
void gather_most(double* values, size_t count) { reduce<double>(values, nullptr, count, &gloo::max<double>); }
void gather_sum(double* values, size_t count) { reduce<double>(values, nullptr, count, &gloo::sum<double>); }

}  // namespace

int main(int argc, char** argv) {
  const char *rank = std::getenv("RANK"), *ranks = std::getenv("WORLD_SIZE");
  if (argc != 7 || rank == nullptr || ranks == nullptr) {
    std::fprintf(stderr,
                 "usage: RANK=R WORLD_SIZE=N gloo_allreduce BYTES ITERATIONS WARM_UP in_place|out_of_place "
                 "FOLDER ADDRESS\n");
    return 2;
  }
  const peer self{std::atoi(rank), std::atoi(ranks), barrier, allreduce, gather_most, gather_sum};
  gloo::transport::tcp::attr attr;
  attr.hostname = argv[6];
  auto device = gloo::transport::tcp::CreateDevice(attr);
  gloo::rendezvous::FileStore store(argv[5]);
  context = std::make_shared<gloo::rendezvous::Context>(self.rank, self.ranks);
  context->connectFullMesh(store, device);
  measure_allreduce(&self, argv);
  barrier();
  context.reset();
}
