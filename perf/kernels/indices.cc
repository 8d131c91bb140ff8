#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "perf/kernels/beside.h"
#include "perf/kernels/sparse_data.h"
#include "perf/plain_loops.h"
#include "runtime/base/bitmap.h"
#include "runtime/kernels/elements.h"
#include "runtime/kernels/forced_target.h"
#include "runtime/kernels/index_codec.h"
#include "runtime/kernels/index_stream.h"
#include "runtime/kernels/narrow.h"
#include "runtime/kernels/offsets.h"

namespace perf::kernels {
namespace {

constexpr std::size_t kElements = nzcl::kMostSliceElements;

/// The index set of one slice, in every form.
struct Set {
  Set(double density, std::uint64_t seed) : bitmap(kElements / 64) {
    for (const std::uint64_t at : random_positions(kElements, density, seed)) {
      nzcl::set_bit(bitmap, at);
      offsets.push_back(static_cast<std::uint16_t>(at));
    }
    gaps.resize(nzcl::gaps_bytes(offsets));
    nzcl::encode_gaps(offsets, gaps);
  }
  std::vector<std::uint64_t> bitmap;
  std::vector<std::uint16_t> offsets;
  std::vector<std::byte> gaps;
};

/// A CPU learns the branches of a set that it meets again and again, so there are many, which take turns.
constexpr std::size_t kSets = 64;

/// What counts for the kernel and for the memcpy beside it are the bytes of the offsets, as many as a set has
/// on average.
template <class Kernel>
void on_set(benchmark::State& state, double density, Kernel kernel) {
  std::vector<Set> sets;
  std::size_t bytes = 0, turn = 0;
  for (std::size_t i = 0; i < kSets; ++i) {
    sets.emplace_back(density, i);
    bytes += sets.back().offsets.size() * sizeof(std::uint16_t) / kSets;
  }
  const std::vector<std::byte> from(bytes);
  std::vector<std::byte> to(bytes);
  beside(
      state, bytes,
      [&] {
        kernel(sets[turn++ % kSets]);
        benchmark::ClobberMemory();
      },
      bytes,
      [&] {
        std::memcpy(to.data(), from.data(), bytes);
        benchmark::ClobberMemory();
      });
}

/// `count` values out of the caches.
template <class From, class To, class Kernel>
void on_stream(benchmark::State& state, Kernel kernel) {
  std::vector<From> from(bytes_out_of_cache() / sizeof(From));
  std::iota(from.begin(), from.end(), From{0});
  std::vector<To> to(kElements);
  std::vector<std::byte> zeros(from.size() * sizeof(From));
  beside(
      state, zeros.size(),
      [&] {
        kernel(std::span<const From>(from), std::span<To>(to));
        benchmark::ClobberMemory();
      },
      zeros.size(), [&] { plain_read(zeros.data(), zeros.size()); });
}

template <typename T>
void check_indices(benchmark::State& state) {
  on_stream<T, T>(state, [](std::span<const T> indices, std::span<T>) {
    benchmark::DoNotOptimize(nzcl::check_indices(indices, std::uint64_t{1} << 31));
  });
}

template <typename T>
void offsets_in_slice(benchmark::State& state) {
  on_stream<T, std::uint16_t>(state, [](std::span<const T> indices, std::span<std::uint16_t> offsets) {
    for (std::size_t i = 0; i + kElements <= indices.size(); i += kElements)
      nzcl::offsets_in_slice(indices.subspan(i, kElements), i, offsets.data());
  });
}

void narrow(benchmark::State& state, nzcl::DataType type) {
  on_stream<float, std::uint16_t>(state, [=](std::span<const float> values, std::span<std::uint16_t> to) {
    for (std::size_t i = 0; i + kElements <= values.size(); i += kElements)
      nzcl::narrow(type, &values[i], kElements, to.data());
  });
}

}  // namespace

void register_indices(const std::string& target_name, std::int64_t target) {
  const auto add = [&](const std::string& what, benchmark::TimeUnit unit, auto run) {
    benchmark::RegisterBenchmark(fmt::format("{}/{}", what, target_name).c_str(),
                                 [=](benchmark::State& state) {
                                   const nzcl::ForcedTarget forced(target);
                                   run(state);
                                 })
        ->UseManualTime()
        ->Unit(unit);
  };
  for (const double density : {0.001, 0.01, 0.1, 0.3}) {
    const auto row = [&](const char* what, auto kernel) {
      add(fmt::format("{}/density:{}", what, density), benchmark::kMicrosecond,
          [=](benchmark::State& state) { on_set(state, density, kernel); });
    };
    row("offsets_of", [](Set& s) { nzcl::offsets_of(s.bitmap, s.offsets); });
    row("bitmap_of", [](Set& s) { nzcl::bitmap_of(s.offsets, s.bitmap); });
    row("encode_gaps", [](Set& s) { nzcl::encode_gaps(s.offsets, s.gaps); });
    row("decode_gaps",
        [](Set& s) { benchmark::DoNotOptimize(nzcl::decode_gaps(s.gaps, kElements, s.offsets)); });
  }
  add("check_indices/int32", benchmark::kMillisecond, check_indices<std::int32_t>);
  add("check_indices/int64", benchmark::kMillisecond, check_indices<std::int64_t>);
  add("offsets_in_slice/int32", benchmark::kMillisecond, offsets_in_slice<std::int32_t>);
  add("offsets_in_slice/int64", benchmark::kMillisecond, offsets_in_slice<std::int64_t>);
  add("narrow/float16", benchmark::kMillisecond,
      [](benchmark::State& state) { narrow(state, nzcl::DataType::float16); });
  add("narrow/bfloat16", benchmark::kMillisecond,
      [](benchmark::State& state) { narrow(state, nzcl::DataType::bfloat16); });
}

}  // namespace perf::kernels
