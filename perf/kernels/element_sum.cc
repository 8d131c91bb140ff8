#include <fmt/format.h>

#include <array>
#include <cstring>
#include <vector>

#include "perf/kernels/beside.h"
#include "perf/kernels/sparse_data.h"
#include "perf/plain_loops.h"
#include "runtime/base/bitmap.h"
#include "runtime/kernels/element_accumulator.h"
#include "runtime/kernels/forced_target.h"
#include "runtime/kernels/list_sum.h"
#include "runtime/kernels/merge.h"

namespace perf::kernels {
namespace {

constexpr std::size_t kElements = nzcl::kMostSliceElements, kBytes = kElements * sizeof(float);

/// One rank's contribution in every form.
struct Contribution {
  explicit Contribution(double density, std::uint64_t seed) : bitmap(kElements / 64) {
    for (const std::uint64_t at : random_positions(kElements, density, seed)) {
      nzcl::set_bit(bitmap, at);
      offsets.push_back(static_cast<std::uint16_t>(at));
      values.push_back(static_cast<float>(at));
    }
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(values)); }

  std::vector<std::uint64_t> bitmap;
  std::vector<std::uint16_t> offsets;
  std::vector<float> values;
};

/// Adds a dense slice to another one: what counts for both sides are the bytes of one dense slice.
template <class Kernel>
void beside_dense_add(benchmark::State& state, Kernel kernel) {
  std::vector<float> a(kElements), b(kElements);
  beside(state, kBytes, kernel, kBytes, [&] {
    plain_add(a.data(), b.data(), kElements);
    benchmark::ClobberMemory();
  });
}

/// Adds one rank's values to the accumulator, without emitting.
template <class Add>
void add(benchmark::State& state, double density, Add add_values) {
  const Contribution c(density, 1);
  nzcl::ElementAccumulator sum;
  sum.start(nzcl::DataType::float32, nzcl::ReduceOp::sum, 2, kElements);
  beside_dense_add(state, [&] {
    add_values(sum, c);
    benchmark::ClobberMemory();
  });
}

void add_bitmap(benchmark::State& state, double density) {
  add(state, density, [](auto& sum, const Contribution& c) { sum.add_bitmap(c.bitmap, c.bytes()); });
}
void add_offsets(benchmark::State& state, double density) {
  add(state, density, [](auto& sum, const Contribution& c) { sum.add_offsets(c.offsets, c.bytes()); });
}

/// A whole slice of four ranks, from their index sets to the packed sum. The bytes of one dense slice count
/// once for each rank.
constexpr std::size_t kRanks = 4;

template <class Sum>
void sum_of_ranks(benchmark::State& state, double density, Sum sum_slice) {
  std::vector<Contribution> ranks;
  for (std::size_t rank = 0; rank < kRanks; ++rank) ranks.emplace_back(density, rank + 1);
  std::vector<std::byte> packed(kBytes);
  std::vector<float> a(kElements), b(kElements);
  beside(
      state, kRanks * kBytes,
      [&] {
        sum_slice(ranks, packed);
        benchmark::ClobberMemory();
      },
      kBytes,
      [&] {
        plain_add(a.data(), b.data(), kElements);
        benchmark::ClobberMemory();
      });
}

void sum_offsets(benchmark::State& state, double density) {
  nzcl::ElementAccumulator sum;
  sum_of_ranks(state, density, [&](const std::vector<Contribution>& ranks, std::span<std::byte> packed) {
    sum.start(nzcl::DataType::float32, nzcl::ReduceOp::sum, kRanks, kElements);
    for (const Contribution& c : ranks) sum.hold_offsets(c.offsets);
    for (const Contribution& c : ranks) sum.add_offsets(c.offsets, c.bytes());
    sum.emit(packed);
  });
}

void sum_bitmaps(benchmark::State& state, double density) {
  nzcl::ElementAccumulator sum;
  sum_of_ranks(state, density, [&](const std::vector<Contribution>& ranks, std::span<std::byte> packed) {
    sum.start(nzcl::DataType::float32, nzcl::ReduceOp::sum, kRanks, kElements);
    for (const Contribution& c : ranks) sum.hold_bitmap(c.bitmap);
    for (const Contribution& c : ranks) sum.add_bitmap(c.bitmap, c.bytes());
    sum.emit(packed);
  });
}

void merge(benchmark::State& state, double density) {
  std::vector<std::uint64_t> any(kElements / 64);
  const auto kernel = nzcl::merge_kernel(nzcl::DataType::float32, nzcl::ReduceOp::sum);
  sum_of_ranks(state, density, [&](const std::vector<Contribution>& ranks, std::span<std::byte> packed) {
    std::array<nzcl::MergeSource, kRanks> sources;
    for (std::size_t rank = 0; rank < kRanks; ++rank)
      sources[rank] = {ranks[rank].bitmap.data(), ranks[rank].bytes().data(), ranks[rank].offsets.size()};
    kernel(sources, kElements, any.data(), kRanks, packed);
  });
}

/// Lists of as many elements as there are in a message. The bytes of their offsets and values count, of all
/// ranks, and beside the sum they are copied.
void sum_lists(benchmark::State& state, std::size_t ranks, double density) {
  constexpr std::size_t kListed = 4096;
  std::vector<std::vector<std::uint32_t>> offsets(ranks);
  std::vector<std::vector<float>> values(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto positions = random_positions(kListed * 1200, density, rank + 1);
    offsets[rank].assign(positions.begin(), positions.begin() + kListed);
    values[rank].assign(offsets[rank].begin(), offsets[rank].end());
  }
  nzcl::ListSum sum;
  std::vector<std::uint32_t> united(ranks * kListed);
  std::vector<float> sums(united.size());
  const std::size_t bytes = united.size() * (sizeof(std::uint32_t) + sizeof(float));
  const std::vector<std::byte> from(bytes);
  std::vector<std::byte> to(bytes);
  beside(
      state, bytes,
      [&] {
        sum.start(nzcl::DataType::float32, nzcl::ReduceOp::sum, static_cast<int>(ranks));
        for (std::size_t rank = 0; rank < ranks; ++rank)
          sum.add({.offsets = offsets[rank], .values = std::as_bytes(std::span(values[rank])).data()});
        sum.unite_later();
        sum.emit(std::as_writable_bytes(std::span(sums)).data(), united.data());
        benchmark::ClobberMemory();
      },
      bytes,
      [&] {
        std::memcpy(to.data(), from.data(), bytes);
        benchmark::ClobberMemory();
      });
}

}  // namespace

void register_element_sums(const std::string& target_name, std::int64_t target) {
  const auto add_row = [&](const char* what, auto run, double density) {
    benchmark::RegisterBenchmark(fmt::format("{}/density:{}/{}", what, density, target_name).c_str(),
                                 [=](benchmark::State& state) {
                                   const nzcl::ForcedTarget forced(target);
                                   run(state, density);
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  };
  for (const double density : {0.001, 0.01, 0.03, 0.1, 0.3}) {
    add_row("add_bitmap", add_bitmap, density);
    add_row("add_offsets", add_offsets, density);
    add_row("sum/bitmaps", sum_bitmaps, density);
    add_row("sum/offsets", sum_offsets, density);
    add_row("sum/merge", merge, density);
  }
  for (const double density : {0.001, 0.01, 0.1}) {
    for (const std::size_t ranks : {2, 4}) {
      add_row(
          fmt::format("sum/lists/ranks:{}", ranks).c_str(),
          [=](benchmark::State& state, double d) { sum_lists(state, ranks, d); }, density);
    }
  }
}

}  // namespace perf::kernels
