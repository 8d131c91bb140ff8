// A step of a compressor, as the kernels that follow one another in a stream.
#include "runtime/gpu/gpu.h"

namespace nzcl::gpu {

void Gpu::select(Stream stream, SelectJob job) {
  const auto pass = [&](SelectPass which) {
    job.pass = which;
    run_pass(stream, job);
  };
  if (job.puts_back) pass(SelectPass::put_back);
  if (job.factor != nullptr) {
    pass(SelectPass::square);
    pass(SelectPass::clip);
  }
  if (job.by == SelectJob::By::block_rank) pass(SelectPass::measure);
  if (job.by == SelectJob::By::block_rank || job.by == SelectJob::By::rank) {
    for (job.round = 0; job.round < RankSearch::kRounds; ++job.round) {
      pass(SelectPass::rank);
      pass(SelectPass::count);
    }
    pass(SelectPass::rank);
  }
  pass(SelectPass::select);
}

}  // namespace nzcl::gpu
