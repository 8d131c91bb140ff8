#include "runtime/kernels/units.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <vector>

#include "perf/kernels/beside.h"
#include "perf/kernels/sparse_data.h"
#include "perf/plain_loops.h"
#include "runtime/base/bitmap.h"
#include "runtime/kernels/forced_target.h"
#include "runtime/kernels/unit_sum.h"

namespace perf::kernels {
namespace {

constexpr std::size_t kElements = nzcl::kMostSliceElements, kBytes = kElements * sizeof(float);
using Words = std::vector<std::uint64_t>;

struct Case {
  std::size_t unit;
  double density;  // of the units
  std::size_t units() const { return kElements / unit; }
};

/// One rank's contribution to a slice: whole units of values.
struct Contribution {
  Contribution(const Case& c, std::uint64_t seed) : bitmap(nzcl::words_for(c.units())) {
    for (const std::uint64_t at : random_positions(c.units(), c.density, seed)) nzcl::set_bit(bitmap, at);
    values.resize(nzcl::count_bits(bitmap) * c.unit, 1.0f);
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(values)); }

  Words bitmap;
  std::vector<float> values;
};

/// A large tensor, whose slices are all alike. What its slices are packed into stays in a cache.
class Tensor {
 public:
  explicit Tensor(const Case& c) : data_(bytes_out_of_cache() / kBytes * kBytes) {
    const Contribution one(c, 1);
    Words scratch(kElements / 64);
    for (std::size_t at = 0; at < data_.size(); at += kBytes)
      nzcl::expand_units(one.bytes(), sizeof(float), c.unit, one.bitmap, std::span(data_).subspan(at, kBytes),
                         scratch, nzcl::StoreTo::cache);
  }
  std::size_t size() const { return data_.size(); }
  std::byte* data() { return data_.data(); }
  template <class Work>
  void for_each_slice(Work work) {
    for (std::size_t at = 0; at < data_.size(); at += kBytes) work(std::span(data_).subspan(at, kBytes));
    benchmark::ClobberMemory();
  }

 private:
  std::vector<std::byte> data_;
};

/// The bytes that count are those of the dense slices.
void scan_and_pack(benchmark::State& state, const Case& c) {
  Tensor tensor(c);
  std::vector<std::byte> values(kBytes), zeros(tensor.size());
  Words bitmap(nzcl::words_for(c.units()));
  beside(
      state, tensor.size(),
      [&] {
        tensor.for_each_slice([&](std::span<const std::byte> slice) {
          benchmark::DoNotOptimize(nzcl::scan_and_pack_units(slice, sizeof(float), c.unit, bitmap, values));
        });
      },
      tensor.size(), [&] { plain_read(zeros.data(), zeros.size()); });
}

template <class Place>
void place(benchmark::State& state, const Case& c, Place place_slice) {
  Tensor tensor(c);
  const Contribution one(c, 1);
  Words scratch(kElements / 64);
  beside(
      state, tensor.size(),
      [&] {
        tensor.for_each_slice([&](std::span<std::byte> slice) {
          place_slice(one.bytes(), sizeof(float), c.unit, one.bitmap, slice, scratch);
        });
      },
      tensor.size(),
      [&] {
        std::memset(tensor.data(), 0, tensor.size());
        benchmark::ClobberMemory();
      });
}

void expand(benchmark::State& state, const Case& c) {
  place(state, c, [](auto... arguments) { nzcl::expand_units(arguments..., nzcl::StoreTo::cache); });
}
void fill_in(benchmark::State& state, const Case& c) { place(state, c, nzcl::fill_in_units); }

/// A slice of four ranks, from their index sets to the packed sum. The bytes of one dense slice count once
/// for each rank.
constexpr std::size_t kRanks = 4;

template <class Sum>
void sum_of_ranks(benchmark::State& state, const Case& c, Sum sum) {
  std::vector<Contribution> ranks;
  for (std::size_t rank = 0; rank < kRanks; ++rank) ranks.emplace_back(c, rank + 1);
  std::vector<std::byte> packed(kBytes);
  std::vector<float> a(kElements), b(kElements);
  beside(
      state, kRanks * kBytes,
      [&] {
        sum(ranks, std::span(packed));
        benchmark::ClobberMemory();
      },
      kBytes,
      [&] {
        plain_add(a.data(), b.data(), kElements);
        benchmark::ClobberMemory();
      });
}

nzcl::MergeSource source(const Contribution& c, const Words& bitmap) {
  return {.bitmap = bitmap.data(), .values = c.bytes().data(), .count = c.values.size()};
}

/// Adds the units of the union one by one.
void sum_units(benchmark::State& state, const Case& c) {
  const auto kernel = nzcl::unit_sum_kernel(nzcl::DataType::float32, nzcl::ReduceOp::sum);
  Words any(nzcl::words_for(c.units()));
  sum_of_ranks(state, c, [&](const std::vector<Contribution>& ranks, std::span<std::byte> packed) {
    std::array<nzcl::MergeSource, kRanks> sources;
    std::fill(any.begin(), any.end(), 0);
    for (std::size_t r = 0; r < kRanks; ++r) {
      for (std::size_t w = 0; w < any.size(); ++w) any[w] |= ranks[r].bitmap[w];
      sources[r] = source(ranks[r], ranks[r].bitmap);
    }
    kernel(sources, {.elements = kElements, .unit_elements = c.unit, .any = any, .ranks = kRanks},
           packed.first(nzcl::count_bits(any) * c.unit * sizeof(float)));
  });
}

/// Spreads the index sets to those of elements, and merges these.
void sum_spread(benchmark::State& state, const Case& c) {
  const auto kernel = nzcl::merge_kernel(nzcl::DataType::float32, nzcl::ReduceOp::sum);
  std::array<Words, kRanks> spread;
  spread.fill(Words(kElements / 64));
  Words any(kElements / 64);
  sum_of_ranks(state, c, [&](const std::vector<Contribution>& ranks, std::span<std::byte> packed) {
    std::array<nzcl::MergeSource, kRanks> sources;
    for (std::size_t r = 0; r < kRanks; ++r) {
      nzcl::spread_units(ranks[r].bitmap, c.unit, kElements, spread[r]);
      sources[r] = source(ranks[r], spread[r]);
    }
    kernel(sources, kElements, any.data(), kRanks, packed);
  });
}

}  // namespace

void register_units(const std::string& target_name, std::int64_t target) {
  const auto add = [&](const char* what, auto run, const Case& c, benchmark::TimeUnit time_unit) {
    benchmark::RegisterBenchmark(
        fmt::format("units/{}/unit:{}/density:{}/{}", what, c.unit, c.density, target_name).c_str(),
        [=](benchmark::State& state) {
          const nzcl::ForcedTarget forced(target);
          run(state, c);
        })
        ->UseManualTime()
        ->Unit(time_unit);
  };
  for (const std::size_t unit : {2, 4, 16}) {
    for (const double density : {0.01, 0.1, 0.3}) {
      const Case c{unit, density};
      add("scan_and_pack", scan_and_pack, c, benchmark::kMillisecond);
      add("expand", expand, c, benchmark::kMillisecond);
      add("fill_in", fill_in, c, benchmark::kMillisecond);
      add("sum", sum_units, c, benchmark::kMicrosecond);
      add("sum_spread", sum_spread, c, benchmark::kMicrosecond);
    }
  }
}

}  // namespace perf::kernels
