#include "runtime/kernels/index_stream.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "each_target.h"
#include "guarded.h"

namespace nzcl {
namespace {

using test::Guarded;
using test::on_each_target;

template <typename T>
IndexCheck naive_check(const std::vector<T>& indices, std::uint64_t limit) {
  const std::size_t n = indices.size();
  IndexCheck check{n, n, n};
  for (std::size_t i = 0; i < n; ++i) {
    const bool outside = indices[i] < T{0} || static_cast<std::uint64_t>(indices[i]) >= limit;
    if (outside && check.outside == n) check.outside = i;
    if (i > 0 && indices[i] < indices[i - 1] && check.descent == n) check.descent = i;
    if (i > 0 && indices[i] == indices[i - 1] && check.duplicate == n && check.descent == n)
      check.duplicate = i;
  }
  return check;
}

/// Checks a copy that ends at an inaccessible page.
template <typename T>
IndexCheck checked(const std::vector<T>& indices, std::uint64_t limit) {
  const Guarded memory(indices.size() * sizeof(T));
  auto* const copy = reinterpret_cast<T*>(memory.data());
  std::ranges::copy(indices, copy);
  return check_indices(std::span<const T>(copy, indices.size()), limit);
}

template <typename T>
class IndexStream : public ::testing::Test {};
using Indices = ::testing::Types<std::int32_t, std::uint32_t, std::int64_t>;
TYPED_TEST_SUITE(IndexStream, Indices);

TYPED_TEST(IndexStream, FindsWhatIsWrongAnywhere) {
  using T = TypeParam;
  std::vector<T> good(1100);
  // The indices pass 2^31 where their type can, so that comparing them as signed or unsigned matters.
  const auto start = std::is_same_v<T, std::uint32_t> ? (std::uint64_t{1} << 31) - 1000 : std::uint64_t{5};
  for (std::size_t i = 0; i < good.size(); ++i) good[i] = static_cast<T>(start + 3 * i);
  const std::uint64_t limit = start + 3 * good.size();
  on_each_target([&] {
    for (const std::size_t n : {0, 1, 2, 3, 17, 31, 511, 512, 513, 514, 1024, 1025, 1100}) {
      const std::vector<T> some(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n));
      ASSERT_EQ(checked(some, limit), (IndexCheck{n, n, n}));
      for (std::size_t at = 0; at < n; at += 1 + n / 40) {
        for (const T wrong : {T(at > 0 ? some[at - 1] : T(1)), T(0), T(-1), std::numeric_limits<T>::max()}) {
          std::vector<T> bad = some;
          bad[at] = wrong;
          ASSERT_EQ(checked(bad, limit), naive_check(bad, limit)) << at << " of " << n << " is " << wrong;
        }
      }
    }
  });
}

TYPED_TEST(IndexStream, Limits) {
  using T = TypeParam;
  constexpr T kMost = std::numeric_limits<T>::max();
  const std::vector<T> up{0, 1, kMost}, down{1, kMost, 0}, equal{kMost, kMost}, below{T(-1), 0};
  on_each_target([&] {
    for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2},
                                      std::uint64_t{kMost}, std::uint64_t{kMost} + 1, ~std::uint64_t{0}}) {
      for (const auto& indices : {up, down, equal, below, {}})
        EXPECT_EQ(checked(indices, limit), naive_check(indices, limit)) << limit;
    }
  });
}

TYPED_TEST(IndexStream, OffsetsInASlice) {
  using T = TypeParam;
  for (const std::uint64_t first :
       {std::uint64_t{0}, std::uint64_t{65536} * 3, std::uint64_t{2'147'400'000}}) {
    for (std::size_t n = 0; n < 70; ++n) {
      const Guarded in(n * sizeof(T)), out(n * 2);
      auto* const indices = reinterpret_cast<T*>(in.data());
      auto* const offsets = reinterpret_cast<std::uint16_t*>(out.data());
      for (std::size_t i = 0; i < n; ++i) indices[i] = static_cast<T>(first + 65535 - 900 * i);
      on_each_target([&] {
        std::fill_n(offsets, n, 0);
        offsets_in_slice(std::span<const T>(indices, n), first, offsets);
        for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(offsets[i], 65535 - 900 * i) << n;
      });
    }
  }
}

TYPED_TEST(IndexStream, FindsIndices) {
  using T = TypeParam;
  const std::vector<T> indices{2, 2, 5, 9, 10, 11, 40, 41, 1000};
  const std::span<const T> list(indices);
  for (std::size_t from = 0; from <= indices.size(); ++from) {
    for (std::uint64_t value = 0; value < 1010; ++value) {
      const auto found =
          std::lower_bound(indices.begin() + static_cast<std::ptrdiff_t>(from), indices.end(), value,
                           [](T index, std::uint64_t v) { return static_cast<std::uint64_t>(index) < v; });
      ASSERT_EQ(find_index(list, from, value), static_cast<std::size_t>(found - indices.begin()))
          << from << " " << value;
    }
  }
}

RC_GTEST_PROP(IndexStreamProperty, CutsAtTheSlices, ()) {
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  std::vector<std::int64_t> indices(*rc::gen::inRange<std::size_t>(0, 3000));
  for (std::int64_t& index : indices) index = static_cast<std::int64_t>(random() % 1'000'000);
  std::ranges::sort(indices);
  const std::span<const std::int64_t> list(indices);
  std::size_t from = 0;
  for (std::uint64_t slice = 0; slice * 65536 < 1'000'000; ++slice) {
    const std::size_t to = find_index(list, from, (slice + 1) * 65536);
    RC_ASSERT(to == static_cast<std::size_t>(std::ranges::count_if(indices, [&](std::int64_t i) {
                return i < static_cast<std::int64_t>((slice + 1) * 65536);
              })));
    from = to;
  }
}

}  // namespace
}  // namespace nzcl
