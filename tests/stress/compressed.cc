#include "tests/stress/compressed.h"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

#include "nzcl/compress.h"
#include "tests/stress/draw.h"

namespace nzcl::stress {
namespace {

/// Small integers, so that their sums are exact in any order.
void fill(std::vector<float>& gradient, Draw& draw) {
  for (float& value : gradient) value = static_cast<float>(draw.number(-20, 20));
}

void add(std::vector<float>& sum, const CompressedGradient& sent) {
  for (std::size_t i = 0; i < sent.indices.size(); ++i)
    sum[static_cast<std::size_t>(sent.indices[i])] += sent.values[i];
}

}  // namespace

std::string check_compressed(Communicator& communicator, std::uint64_t seed) {
  Draw draw(seed);
  const int size = communicator.size();
  const auto count = static_cast<std::size_t>(draw.number(1, 20000));
  const auto* const text = draw.pick<const char*>({"topk:0.05:exact", "threshold:15", "topk:0.5:exact"});
  const Compressor compressor = compressor_from_text(text);
  CompressorState state(compressor, count);
  std::vector<CompressorState> alike;  // of all ranks
  for (int rank = 0; rank < size; ++rank) alike.emplace_back(compressor, count);
  std::vector<float> gradient(count), mine(count), output(count);
  const auto registered = communicator.register_buffer(output.data(), output.size() * sizeof(float));
  for (int step = 0; step < 3; ++step) {
    std::vector<float> expected(count);
    for (int rank = 0; rank < size; ++rank) {
      fill(gradient, draw);
      if (rank == communicator.rank()) mine = gradient;
      add(expected, alike[static_cast<std::size_t>(rank)].compress(gradient, rank, size));
    }
    communicator.allreduce_compressed({.state = &state, .input = mine.data(), .output = output.data()})
        .wait();
    if (output != expected)
      return fmt::format("step {} of {} elements by {}: another sum", step, count, text);
  }
  return {};
}

}  // namespace nzcl::stress
