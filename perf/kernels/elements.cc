#include "runtime/kernels/elements.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "perf/kernels/beside.h"
#include "perf/kernels/sparse_data.h"
#include "perf/plain_loops.h"
#include "runtime/base/bitmap.h"
#include "runtime/kernels/forced_target.h"

namespace perf::kernels {
namespace {

struct Case {
  std::size_t element_bytes;
  double density;
  bool in_cache;
};

/// A dense tensor with single elements that are not zero, and what its slices are packed into: always the
/// same memory, which stays in a cache.
class Tensor {
 public:
  explicit Tensor(const Case& c)
      : bytes_(c.element_bytes), data_(c.in_cache ? slice() : bytes_out_of_cache()) {
    const std::size_t elements = data_.size() / bytes_;
    for (const std::uint64_t at : random_positions(elements, c.density, 1)) data_[at * bytes_] = std::byte{1};
  }

  std::size_t slice() const { return nzcl::kMostSliceElements * bytes_; }
  std::size_t size() const { return data_.size(); }
  std::byte* data() { return data_.data(); }

  template <class Work>
  void for_each_slice(Work work) {
    for (std::size_t at = 0; at < data_.size(); at += slice())
      work(std::span(data_).subspan(at, std::min(slice(), data_.size() - at)));
    benchmark::ClobberMemory();
  }

 private:
  std::size_t bytes_;
  std::vector<std::byte> data_;
};

/// The bytes that count are those of the dense slices.
void scan_and_pack(benchmark::State& state, std::int64_t target, const Case& c) {
  const nzcl::ForcedTarget forced(target);
  Tensor tensor(c);
  std::vector<std::byte> values(tensor.slice()), zeros(tensor.size());
  std::vector<std::uint64_t> bitmap(nzcl::kMostSliceElements / 64);
  beside(
      state, tensor.size(),
      [&] {
        tensor.for_each_slice([&](std::span<const std::byte> slice) {
          benchmark::DoNotOptimize(nzcl::scan_and_pack(slice, c.element_bytes, bitmap, values));
        });
      },
      tensor.size(), [&] { plain_read(zeros.data(), zeros.size()); });
}

/// Every slice of the tensor gets the same values, at the same elements.
void expand(benchmark::State& state, std::int64_t target, const Case& c) {
  const nzcl::ForcedTarget forced(target);
  Tensor tensor(c);
  std::vector<std::byte> values(tensor.slice());
  std::vector<std::uint64_t> bitmap(nzcl::kMostSliceElements / 64);
  const std::size_t count =
      nzcl::scan_and_pack({tensor.data(), tensor.slice()}, c.element_bytes, bitmap, values);
  beside(
      state, tensor.size() / tensor.slice() * tensor.slice(),
      [&] {
        tensor.for_each_slice([&](std::span<std::byte> slice) {
          if (slice.size() == tensor.slice())
            nzcl::expand(std::span(values).first(count * c.element_bytes), c.element_bytes, bitmap, slice,
                         c.in_cache ? nzcl::StoreTo::cache : nzcl::StoreTo::memory);
        });
      },
      tensor.size(),
      [&] {
        std::memset(tensor.data(), 0, tensor.size());
        benchmark::ClobberMemory();
      });
}

}  // namespace

void register_elements(const std::string& target_name, std::int64_t target) {
  const auto add = [&](const char* what, auto run, const Case& c) {
    benchmark::RegisterBenchmark(fmt::format("{}/bytes:{}/density:{}{}/{}", what, c.element_bytes, c.density,
                                             c.in_cache ? "/in_cache" : "", target_name)
                                     .c_str(),
                                 [=](benchmark::State& state) { run(state, target, c); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  };
  for (const double density : {0.0, 0.001, 0.01, 0.1, 0.3, 1.0}) {
    for (const bool in_cache : {false, true}) {
      add("scan_and_pack", scan_and_pack, {4, density, in_cache});
      add("expand", expand, {4, density, in_cache});
    }
  }
  for (const std::size_t bytes : {1, 2, 8}) {
    add("scan_and_pack", scan_and_pack, {bytes, 0.1, false});
    add("expand", expand, {bytes, 0.1, false});
  }
}

}  // namespace perf::kernels
