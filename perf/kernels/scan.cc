#include "runtime/kernels/scan.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <vector>

#include "perf/kernels/beside.h"
#include "perf/plain_loops.h"
#include "runtime/kernels/forced_target.h"
#include "runtime/kernels/scan_streams.h"

namespace perf::kernels {
namespace {

/// Every `every`-th block has one non-zero element in its middle, so that the scan must read half of the
/// block. With 0 all blocks are zero.
void scan(benchmark::State& state, std::int64_t target, std::uint64_t block_bytes, std::size_t every,
          bool in_cache, int streams = nzcl::fastest_scan_streams()) {
  const nzcl::ForcedTarget forced(target);
  const std::size_t bytes = in_cache ? 256 << 10 : bytes_out_of_cache();
  std::vector<std::byte> data(bytes), zeros(bytes);
  const std::size_t blocks = (bytes + block_bytes - 1) / block_bytes;
  for (std::size_t b = 0; every > 0 && b < blocks; b += every)
    data[b * block_bytes + block_bytes / 2] = std::byte{1};
  std::vector<std::uint64_t> bitmap((blocks + 63) / 64);
  beside(
      state, bytes,
      [&] {
        nzcl::scan_blocks(data.data(), bytes, block_bytes, bitmap, streams);
        benchmark::DoNotOptimize(bitmap.data());
      },
      bytes, [&] { plain_read(zeros.data(), bytes); });
}

}  // namespace

void register_scans(const std::string& target_name, std::int64_t target) {
  const auto add = [&](const std::string& what, auto... arguments) {
    benchmark::RegisterBenchmark(fmt::format("{}/{}", what, target_name).c_str(),
                                 [=](benchmark::State& state) { scan(state, target, arguments...); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  };
  for (const int elements : {1, 8, 32, 256, 4096})
    add(fmt::format("scan/zeros/block:{}", elements), std::uint64_t{4} * elements, std::size_t{0}, false);
  for (const int streams : {1, 2, nzcl::kMaxScanStreams})
    add(fmt::format("scan/zeros/block:256/streams:{}", streams), std::uint64_t{1024}, std::size_t{0}, false,
        streams);
  for (const int every : {100, 10, 2, 1})
    add(fmt::format("scan/one_in:{}/block:256", every), std::uint64_t{1024}, static_cast<std::size_t>(every),
        false);
  add("scan/zeros/block:256/in_cache", std::uint64_t{1024}, std::size_t{0}, true);
}

}  // namespace perf::kernels
