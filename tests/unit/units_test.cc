// The kernels for units of several elements, compared with loops over bytes and with the plain sum of the
// dense slices.
#include "runtime/kernels/units.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "any_values.h"
#include "each_target.h"
#include "guarded.h"
#include "reference.h"
#include "runtime/base/bitmap.h"
#include "runtime/kernels/offsets.h"
#include "runtime/kernels/unit_list_sum.h"
#include "runtime/kernels/unit_sum.h"

namespace nzcl {
namespace {

using test::Guarded;
using test::on_each_target;
using Bytes = std::vector<std::byte>;
using Words = std::vector<std::uint64_t>;

constexpr std::size_t kUnits[] = {1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 100, 128};

/// What is packed of a slice: byte by byte.
struct Packed {
  Words bitmap;
  Bytes values;
  bool operator==(const Packed&) const = default;
};

std::size_t units_of(std::size_t elements, std::size_t unit) { return (elements + unit - 1) / unit; }

std::span<const std::byte> unit_at(std::span<const std::byte> dense, std::size_t unit_bytes, std::size_t i) {
  return dense.subspan(i * unit_bytes, std::min(unit_bytes, dense.size() - i * unit_bytes));
}

/// Packs the units in `bitmap`, or, without one, those that have a bit set.
Packed naive_pack(std::span<const std::byte> dense, std::size_t unit_bytes, const Words* bitmap = nullptr) {
  const std::size_t units = units_of(dense.size(), unit_bytes);
  Packed packed{.bitmap = Words(words_for(units)), .values = {}};
  for (std::size_t i = 0; i < units; ++i) {
    const auto unit = unit_at(dense, unit_bytes, i);
    const bool any = std::ranges::any_of(unit, [](std::byte b) { return b != std::byte{0}; });
    if (bitmap != nullptr ? !test_bit(*bitmap, i) : !any) continue;
    set_bit(packed.bitmap, i);
    packed.values.insert(packed.values.end(), unit.begin(), unit.end());
  }
  return packed;
}

/// A slice of which a share of the units have one element or more that is not zero.
void fill(std::span<std::byte> dense, std::size_t size, std::size_t unit, double density,
          std::mt19937_64& random) {
  for (std::size_t first = 0; first < dense.size(); first += unit * size) {
    if (std::uniform_real_distribution()(random) >= density) continue;
    const std::size_t end = std::min(dense.size(), first + unit * size);
    if (random() % 2 == 0) {  // a single bit
      dense[first + random() % (end - first)] = std::byte{1} << random() % 8;
    } else {
      for (std::size_t i = first; i < end; ++i) dense[i] = static_cast<std::byte>(random());
    }
  }
}

struct Shape {
  std::size_t size, unit, elements;
  double density;
  std::string text() const {
    return std::to_string(elements) + " elements of " + std::to_string(size) + ", units of " +
           std::to_string(unit) + ", density " + std::to_string(density);
  }
};

/// All memory ends at inaccessible pages.
void check_moves(const Shape& s, std::mt19937_64& random) {
  const Guarded dense(s.elements * s.size);
  fill(dense.bytes(), s.size, s.unit, s.density, random);
  const Packed expected = naive_pack(dense.bytes(), s.unit * s.size);
  const Guarded values(expected.values.size()), bits(expected.bitmap.size() * 8), output(dense.size());
  const std::span words(reinterpret_cast<std::uint64_t*>(bits.data()), expected.bitmap.size());
  Words scratch(words_for(s.elements));
  const std::size_t held = expected.values.size() / s.size;
  std::ranges::fill(values.bytes(), std::byte{0x77});
  std::ranges::fill(words, ~std::uint64_t{0});
  ASSERT_EQ(scan_and_pack_units(dense.bytes(), s.size, s.unit, words, values.bytes()), held) << s.text();
  const auto same_values = [&] { return std::ranges::equal(values.bytes(), expected.values); };
  ASSERT_TRUE(std::ranges::equal(words, expected.bitmap)) << s.text();
  ASSERT_TRUE(same_values()) << s.text();
  if (held > 0) {
    for (const std::size_t room : {std::size_t{0}, held / 2, held - 1}) {
      const Guarded less(room * s.size), other(bits.size());
      const std::span to(reinterpret_cast<std::uint64_t*>(other.data()), expected.bitmap.size());
      ASSERT_EQ(scan_and_pack_units(dense.bytes(), s.size, s.unit, to, less.bytes()), kTooDense) << s.text();
    }
  }
  std::ranges::fill(values.bytes(), std::byte{0x77});
  pack_units(dense.bytes(), s.size, s.unit, expected.bitmap, values.bytes(), scratch);
  ASSERT_TRUE(same_values()) << s.text();
  const auto same_slice = [&] { return std::ranges::equal(output.bytes(), dense.bytes()); };
  std::ranges::fill(output.bytes(), std::byte{0x77});
  expand_units(values.bytes(), s.size, s.unit, expected.bitmap, output.bytes(), scratch, StoreTo::cache);
  ASSERT_TRUE(same_slice()) << s.text();
  std::ranges::fill(output.bytes(), std::byte{0});
  fill_in_units(values.bytes(), s.size, s.unit, expected.bitmap, output.bytes(), scratch);
  ASSERT_TRUE(same_slice()) << s.text();
  std::vector<std::uint16_t> offsets(units_of(s.elements, s.unit));
  offsets.resize(offsets_of(expected.bitmap, offsets));
  std::ranges::fill(output.bytes(), std::byte{0});
  scatter_units(values.bytes(), s.unit * s.size, offsets, output.bytes());
  ASSERT_TRUE(same_slice()) << s.text();
}

TEST(Units, MoveAsLoopsOverBytesDo) {
  on_each_target([] {
    std::mt19937_64 random(1);
    for (const std::size_t size : {1, 2, 4, 8}) {
      for (const std::size_t unit : kUnits) {
        for (const std::size_t elements :
             {std::size_t{1}, unit, 5 * unit + 1, 64 * unit, 200 * unit + unit / 2}) {
          for (const double density : {0.0, 0.05, 0.5, 1.0}) {
            check_moves({size, unit, elements, density}, random);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

RC_GTEST_PROP(UnitsProperty, AreSpreadToTheirElements, ()) {
  const auto unit = *rc::gen::elementOf(std::vector<std::size_t>(std::begin(kUnits), std::end(kUnits)));
  const auto elements = *rc::gen::inRange<std::size_t>(1, 9000);
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  const double density = *rc::gen::element(0.0, 0.1, 0.5, 1.0);
  Words units(words_for(units_of(elements, unit))), expected(words_for(elements)), spread(expected.size(), 7);
  for (std::size_t i = 0; i < units_of(elements, unit); ++i) {
    if (std::uniform_real_distribution()(random) >= density) continue;
    set_bit(std::span(units), i);
    for (std::size_t e = i * unit; e < std::min(elements, (i + 1) * unit); ++e)
      set_bit(std::span(expected), e);
  }
  spread_units(units, unit, elements, spread);
  RC_ASSERT(spread == expected);
}

/// One rank's part of a slice.
struct Contribution {
  bool all = false;
  Bytes dense;
  Packed packed;
};

struct Sum {
  DataType type;
  ReduceOp op;
  std::size_t unit, elements;
  double density;
  int ranks;

  std::string text() const {
    return std::string(name_of(type)) + " " + std::string(name_of(op)) + ", " + std::to_string(ranks) +
           " ranks, " + Shape{element_bytes(type), unit, elements, density}.text();
  }
};

Contribution contribute(const Sum& s, bool all, bool nothing, std::mt19937_64& random) {
  const std::size_t size = element_bytes(s.type);
  Contribution c{.all = all, .dense = Bytes(s.elements * size), .packed = {}};
  test::fill_with_any_values(c.dense, s.type, random);
  for (std::size_t i = 0; i < s.elements; i += 8) {  // -0.0, or the least integer, on all ranks
    std::memset(&c.dense[i * size], 0, size);
    c.dense[i * size + size - 1] = std::byte{0x80};
  }
  Words bitmap(words_for(units_of(s.elements, s.unit)));
  for (std::size_t i = 0; i < units_of(s.elements, s.unit); ++i) {
    if (all || (!nothing && std::uniform_real_distribution()(random) < s.density)) {
      set_bit(std::span(bitmap), i);
    } else {
      const std::size_t begin = i * s.unit * size;
      std::fill_n(&c.dense[begin], std::min(s.unit * size, c.dense.size() - begin), std::byte{0});
    }
  }
  c.packed = naive_pack(c.dense, s.unit * size, &bitmap);
  return c;
}

std::vector<std::uint32_t> list_of(const Words& bitmap, std::size_t units) {
  std::vector<std::uint32_t> offsets;
  for (std::size_t i = 0; i < units; ++i) {
    if (test_bit(bitmap, i)) offsets.push_back(static_cast<std::uint32_t>(i));
  }
  return offsets;
}

/// Sums the same as lists, which have no short unit.
void check_lists(const Sum& s, const std::vector<Contribution>& ranks, const Packed& expected) {
  const std::size_t units = s.elements / s.unit;
  UnitListSum sum;
  for (int again = 0; again < 2; ++again) {  // nothing of a sum is left for the next one
    std::vector<std::vector<std::uint32_t>> lists;
    for (const Contribution& c : ranks) lists.push_back(list_of(c.packed.bitmap, units));
    sum.start(s.type, s.op, s.ranks, s.unit);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (!lists[r].empty()) sum.add({.offsets = lists[r], .values = ranks[r].packed.values.data()});
    }
    const auto united = list_of(expected.bitmap, units);
    ASSERT_EQ(sum.unite(), united.size()) << s.text();
    std::vector<std::uint32_t> offsets(united.size());
    const Guarded packed(expected.values.size());
    sum.emit(packed.data(), offsets.data());
    ASSERT_EQ(offsets, united) << s.text();
    ASSERT_TRUE(std::ranges::equal(packed.bytes(), expected.values)) << s.text();
  }
}

void check_sum(const Sum& s, std::mt19937_64& random) {
  std::vector<Contribution> ranks;
  std::vector<const std::byte*> dense;
  std::vector<std::unique_ptr<Guarded>> values;
  std::vector<MergeSource> sources;
  Words any(words_for(units_of(s.elements, s.unit)));
  for (int r = 0; r < s.ranks; ++r)
    ranks.push_back(contribute(s, random() % 8 == 0, random() % 8 == 0, random));
  for (const Contribution& c : ranks) {
    dense.push_back(c.dense.data());
    for (std::size_t w = 0; w < any.size(); ++w) any[w] |= c.packed.bitmap[w];
    if (c.packed.values.empty()) continue;
    values.push_back(std::make_unique<Guarded>(c.packed.values.size()));
    std::ranges::copy(c.packed.values, values.back()->data());
    sources.push_back({.bitmap = c.all ? nullptr : c.packed.bitmap.data(),
                       .values = values.back()->data(),
                       .count = c.packed.values.size() / element_bytes(s.type)});
  }
  const Bytes sum =
      test::reference_reduce(s.type, s.op, dense, s.elements, {.ranks = s.ranks, .with_zero = false});
  const Packed expected = naive_pack(sum, s.unit * element_bytes(s.type), &any);
  const Guarded packed(expected.values.size());
  std::ranges::fill(packed.bytes(), std::byte{0x77});
  unit_sum_kernel(s.type, s.op)(
      sources, {.elements = s.elements, .unit_elements = s.unit, .any = any, .ranks = s.ranks},
      packed.bytes());
  ASSERT_TRUE(std::ranges::equal(packed.bytes(), expected.values)) << s.text();
  if (s.elements % s.unit == 0) check_lists(s, ranks, expected);
}

TEST(UnitSum, EqualsADenseSum) {
  on_each_target([] {
    std::mt19937_64 random(2);
    for (int type = 0; type < kDataTypes; ++type) {
      for (int op = 0; op < kReduceOps; ++op) {
        for (const std::size_t unit : kUnits) {
          // One of three lengths, and of three densities.
          const std::size_t elements[] = {1 + random() % unit, 64 * unit, 140 * unit + unit / 2 + 1};
          const double densities[] = {0.03, 0.3, 1.0};
          check_sum({static_cast<DataType>(type), static_cast<ReduceOp>(op), unit, elements[random() % 3],
                     densities[random() % 3], 2 + static_cast<int>(random() % 15)},
                    random);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

}  // namespace
}  // namespace nzcl
