#include "runtime/kernels/reduce.h"

#include <fmt/format.h>

#include <vector>

#include "perf/kernels/beside.h"
#include "perf/plain_loops.h"
#include "runtime/kernels/forced_target.h"

namespace perf::kernels {
namespace {

struct Case {
  nzcl::DataType type;
  nzcl::ReduceOp op;
  std::size_t sources;  // the first one is the destination as well
  bool in_cache;
};

/// The bytes that count are those of every source, which is read, and of the destination, which is written.
void reduce(benchmark::State& state, std::int64_t target, Case c) {
  const nzcl::ForcedTarget forced(target);
  const std::size_t bytes = c.in_cache ? 64 << 10 : bytes_out_of_cache();
  std::vector<std::vector<float>> buffers(c.sources, std::vector<float>(bytes / sizeof(float)));
  std::vector<const std::byte*> sources;
  for (const auto& b : buffers) sources.push_back(reinterpret_cast<const std::byte*>(b.data()));
  auto* const to = reinterpret_cast<std::byte*>(buffers.front().data());
  const auto kernel = nzcl::reduce_kernel(c.type, c.op);
  const nzcl::ReduceSpec spec{.ranks = static_cast<int>(c.sources), .with_zero = false};
  std::vector<float> a(bytes / sizeof(float)), b(a.size());
  beside(
      state, (c.sources + 1) * bytes,
      [&] {
        kernel(to, sources.data(), c.sources, bytes / nzcl::element_bytes(c.type), spec);
        benchmark::ClobberMemory();
      },
      3 * bytes,
      [&] {
        plain_add(a.data(), b.data(), a.size());
        benchmark::ClobberMemory();
      });
}

}  // namespace

void register_reductions(const std::string& target_name, std::int64_t target) {
  using nzcl::DataType, nzcl::ReduceOp;
  const auto add = [&](const Case& c) {
    benchmark::RegisterBenchmark(
        fmt::format("{}/{}/sources:{}{}/{}", nzcl::name_of(c.op), nzcl::name_of(c.type), c.sources,
                    c.in_cache ? "/in_cache" : "", target_name)
            .c_str(),
        [=](benchmark::State& state) { reduce(state, target, c); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  };
  for (const DataType type : {DataType::float32, DataType::float16, DataType::bfloat16, DataType::float64,
                              DataType::int32, DataType::int64, DataType::uint8})
    add({type, ReduceOp::sum, 2, false});
  for (const ReduceOp op : {ReduceOp::avg, ReduceOp::min, ReduceOp::max})
    add({DataType::float32, op, 2, false});
  for (const DataType type : {DataType::float32, DataType::float16, DataType::bfloat16})
    add({type, ReduceOp::sum, 4, false});
  add({DataType::float32, ReduceOp::sum, 2, true});
}

}  // namespace perf::kernels
