// ElementAccumulator, ListSum and merge_kernel(), compared with the plain sum of the dense slices.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "any_values.h"
#include "each_target.h"
#include "guarded.h"
#include "reference.h"
#include "runtime/base/bitmap.h"
#include "runtime/kernels/element_accumulator.h"
#include "runtime/kernels/list_sum.h"
#include "runtime/kernels/merge.h"
#include "runtime/kernels/offsets.h"

namespace nzcl {
namespace {

using test::Guarded;
using test::on_each_target;
using Bytes = std::vector<std::byte>;
using Words = std::vector<std::uint64_t>;

const std::vector<DataType> kTypes{DataType::float32,  DataType::float64, DataType::float16,
                                   DataType::bfloat16, DataType::int32,   DataType::int64,
                                   DataType::uint8};
const std::vector<ReduceOp> kOps{ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max};

enum class Form { all, bitmap, offsets, nothing };

/// One rank's part of a slice: what it holds, and the dense slice that this stands for.
struct Contribution {
  Form form;
  Words bitmap;
  std::vector<std::uint16_t> offsets;
  Bytes values, dense;

  std::span<const std::byte> part(std::size_t from, std::size_t to, std::size_t size) const {
    return std::span(values).subspan(from * size, (to - from) * size);
  }
};

struct Slice {
  DataType type;
  ReduceOp op;
  std::size_t elements;
  std::vector<Contribution> ranks;
  Words any;
  Bytes dense, packed;  // what must come out

  std::size_t size() const { return element_bytes(type); }
};

/// Any values, and in one element of eight -0.0 or the least integer, on all ranks at once.
void fill(std::span<std::byte> dense, DataType type, std::mt19937_64& random) {
  test::fill_with_any_values(dense, type, random);
  const std::size_t size = element_bytes(type);
  for (std::size_t i = 0; i < dense.size() / size; i += 8) {
    std::memset(&dense[i * size], 0, size);
    dense[i * size + size - 1] = std::byte{0x80};
  }
}

Contribution contribute(DataType type, Form form, std::size_t elements, double density,
                        std::mt19937_64& random) {
  const std::size_t size = element_bytes(type);
  Contribution c{
      .form = form, .bitmap = Words(words_for(elements)), .offsets = {}, .values = {}, .dense = {}};
  c.dense.resize(elements * size);
  fill(c.dense, type, random);
  for (std::size_t i = 0; i < elements; ++i) {
    const auto element = std::span(c.dense).subspan(i * size, size);
    const bool held = form != Form::nothing && std::uniform_real_distribution()(random) < density;
    if (held || form == Form::all) {
      set_bit(c.bitmap, i);
      c.offsets.push_back(static_cast<std::uint16_t>(i));
      c.values.insert(c.values.end(), element.begin(), element.end());
    } else {
      std::ranges::fill(element, std::byte{0});
    }
  }
  return c;
}

Slice make_slice(DataType type, ReduceOp op, std::size_t elements, const std::vector<Form>& forms,
                 double density, std::mt19937_64& random) {
  Slice s{.type = type, .op = op, .elements = elements, .ranks = {}, .any = {}, .dense = {}, .packed = {}};
  s.any.resize(words_for(elements));
  std::vector<const std::byte*> sources;
  for (const Form form : forms) s.ranks.push_back(contribute(type, form, elements, density, random));
  for (const Contribution& c : s.ranks) {
    sources.push_back(c.dense.data());
    for (std::size_t w = 0; w < s.any.size(); ++w) s.any[w] |= c.bitmap[w];
  }
  s.dense = test::reference_reduce(type, op, sources, elements,
                                   {.ranks = static_cast<int>(forms.size()), .with_zero = false});
  for (std::size_t i = 0; i < elements; ++i) {
    if (test_bit(s.any, i))
      s.packed.insert(s.packed.end(), &s.dense[i * s.size()], &s.dense[i * s.size()] + s.size());
  }
  return s;
}

struct Result {
  Bytes packed;
  Words any;
  bool operator==(const Result&) const = default;
};

Result expected(const Slice& s) { return {s.packed, s.any}; }

/// Memory that ends at an inaccessible page, for as many elements as the union has.
class Output {
 public:
  explicit Output(const Slice& s) : memory_(s.packed.size()) {}
  std::span<std::byte> bytes() { return memory_.bytes(); }
  Result result(std::span<const std::uint64_t> any) const {
    return {{memory_.bytes().begin(), memory_.bytes().end()}, {any.begin(), any.end()}};
  }

 private:
  Guarded memory_;
};

/// Values in memory that ends at an inaccessible page.
class GuardedValues {
 public:
  explicit GuardedValues(std::span<const std::byte> values) : memory_(values.size()) {
    std::ranges::copy(values, memory_.data());
  }
  std::span<const std::byte> bytes() const { return memory_.bytes(); }

 private:
  Guarded memory_;
};

/// In two parts, cut at the middle word or the middle value.
void add_values(ElementAccumulator& sum, const Contribution& c, std::size_t elements, std::size_t size) {
  switch (c.form) {
    case Form::all: {
      const std::size_t cut = elements / 3;
      sum.add_all(GuardedValues(c.part(0, cut, size)).bytes());
      sum.add_all(GuardedValues(c.part(cut, elements, size)).bytes(), cut);
      break;
    }
    case Form::bitmap: {
      const std::size_t word = c.bitmap.size() / 2;
      const std::span bits(c.bitmap);
      const std::size_t cut = count_bits(bits.first(word));
      sum.add_bitmap(bits.first(word), GuardedValues(c.part(0, cut, size)).bytes());
      sum.add_bitmap(bits.subspan(word), GuardedValues(c.part(cut, c.offsets.size(), size)).bytes(),
                     word * 64);
      break;
    }
    case Form::offsets: {
      const std::size_t cut = c.offsets.size() / 2;
      const std::span offsets(c.offsets);
      sum.add_offsets(offsets.first(cut), GuardedValues(c.part(0, cut, size)).bytes());
      sum.add_offsets(offsets.subspan(cut), GuardedValues(c.part(cut, offsets.size(), size)).bytes());
      break;
    }
    case Form::nothing:
      break;
  }
}

void hold(ElementAccumulator& sum, const Contribution& c) {
  switch (c.form) {
    case Form::all:
      return sum.hold_all();
    case Form::bitmap:
      return sum.hold_bitmap(c.bitmap);
    case Form::offsets:
      return sum.hold_offsets(c.offsets);
    case Form::nothing:
      return;
  }
}

/// How the union is given to emit().
enum class Union { own, list };

Result accumulate(ElementAccumulator& sum, const Slice& s, Union as) {
  sum.start(s.type, s.op, static_cast<int>(s.ranks.size()), s.elements);
  for (auto c = s.ranks.rbegin(); c != s.ranks.rend(); ++c) hold(sum, *c);  // in any order
  for (const Contribution& c : s.ranks) add_values(sum, c, s.elements, s.size());
  EXPECT_EQ(sum.union_count(), count_bits(s.any));
  Output to(s);
  if (as == Union::list) {
    std::vector<std::uint16_t> offsets;
    for (std::size_t i = 0; i < s.elements; ++i) {
      if (test_bit(s.any, i)) offsets.push_back(static_cast<std::uint16_t>(i));
    }
    sum.emit(offsets, to.bytes());
  } else {
    sum.emit(to.bytes());
  }
  return to.result(sum.union_bitmap());
}

Result merge(const Slice& s) {
  std::vector<std::unique_ptr<GuardedValues>> values;
  std::vector<MergeSource> sources;
  for (const Contribution& c : s.ranks) {
    if (c.form == Form::nothing) continue;
    values.push_back(std::make_unique<GuardedValues>(c.values));
    sources.push_back({.bitmap = c.form == Form::all ? nullptr : c.bitmap.data(),
                       .values = values.back()->bytes().data(),
                       .count = c.offsets.size()});
  }
  Words any(s.any.size(), 7);
  Output to(s);
  const std::size_t count = merge_kernel(s.type, s.op)(sources, s.elements, any.data(),
                                                       static_cast<int>(s.ranks.size()), to.bytes());
  EXPECT_EQ(count, count_bits(s.any));
  return to.result(any);
}

/// `later`: whether the last merge writes to where the result belongs, which has room for more.
Result merge_lists(ListSum& sum, const Slice& s, bool later) {
  std::vector<std::unique_ptr<GuardedValues>> values;
  std::vector<std::vector<std::uint32_t>> lists;
  sum.start(s.type, s.op, static_cast<int>(s.ranks.size()));
  for (const Contribution& c : s.ranks) {
    if (c.offsets.empty()) continue;
    values.push_back(std::make_unique<GuardedValues>(c.values));
    lists.emplace_back(c.offsets.begin(), c.offsets.end());
    sum.add({.offsets = lists.back(), .values = values.back()->bytes().data()});
  }
  Output to(s);
  const std::size_t most = later ? sum.unite_later() : sum.unite();
  std::vector<std::uint32_t> offsets(most);
  const test::Guarded packed(most * element_bytes(s.type));
  offsets.resize(sum.emit(packed.data(), offsets.data()));
  EXPECT_EQ(offsets.size() * element_bytes(s.type), to.bytes().size());
  std::memcpy(to.bytes().data(), packed.data(), to.bytes().size());
  Words any(s.any.size());
  bitmap_of(std::vector<std::uint16_t>(offsets.begin(), offsets.end()), any);
  return to.result(any);
}

bool fits_lists(const Slice& s) {
  std::size_t held = 0;
  for (const Contribution& c : s.ranks) held += c.offsets.size();
  return held <= kMostListed;
}

class ElementSum : public ::testing::TestWithParam<std::tuple<DataType, ReduceOp>> {};

const std::vector<std::vector<Form>> kForms{
    {Form::bitmap, Form::bitmap},
    {Form::offsets, Form::offsets, Form::offsets},
    {Form::all, Form::all},
    {Form::all, Form::bitmap, Form::offsets, Form::nothing},
    {Form::offsets, Form::all, Form::bitmap},
    {Form::bitmap, Form::nothing, Form::bitmap, Form::offsets, Form::offsets},
    {Form::nothing, Form::nothing, Form::offsets},
};

TEST_P(ElementSum, EqualsADenseSum) {
  const auto [type, op] = GetParam();
  std::mt19937_64 random(1);
  std::vector<Slice> slices;
  for (const std::size_t elements : {1, 3, 63, 64, 65, 130, 1000, 5000}) {
    for (const double density : {0.01, 0.1, 0.6, 1.0}) {
      for (const auto& forms : kForms)
        slices.push_back(make_slice(type, op, elements, forms, density, random));
    }
  }
  on_each_target([&] {
    ElementAccumulator sum(5000);  // the same for all slices, so that each must leave it cleared
    ListSum lists;
    for (const Slice& s : slices) {
      const auto where = [&] {
        std::string text = std::to_string(s.elements) + " elements, ranks";
        for (const Contribution& c : s.ranks)
          text += " " + std::to_string(static_cast<int>(c.form)) + ":" + std::to_string(c.offsets.size());
        return text;
      };
      for (const Union as : {Union::own, Union::list})
        ASSERT_EQ(accumulate(sum, s, as), expected(s)) << where();
      if (fits_lists(s)) {
        ASSERT_EQ(merge_lists(lists, s, false), expected(s)) << where();
        ASSERT_EQ(merge_lists(lists, s, true), expected(s)) << where();
      }
      if (s.any == Words(s.any.size())) continue;  // no rank holds anything, and nothing is merged
      ASSERT_EQ(merge(s), expected(s)) << where();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, ElementSum,
                         ::testing::Combine(::testing::ValuesIn(kTypes), ::testing::ValuesIn(kOps)),
                         [](const auto& param_info) {
                           return std::string(name_of(std::get<0>(param_info.param))) + "_" +
                                  std::string(name_of(std::get<1>(param_info.param)));
                         });

float sum_of(const std::vector<std::vector<float>>& ranks, ReduceOp op, const Words& holders) {
  ElementAccumulator sum(1);
  sum.start(DataType::float32, op, static_cast<int>(ranks.size()), 1);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (holders[rank] == 0) continue;
    sum.hold_bitmap(std::span(holders).subspan(rank, 1));
    sum.add_bitmap(std::span(holders).subspan(rank, 1), std::as_bytes(std::span(ranks[rank])));
  }
  float result = 99;
  sum.emit(std::as_writable_bytes(std::span(&result, 1)));
  return result;
}

// A rank that skips an element counts as +0.0.
TEST(ElementSumByHand, SkippedElementsAreZeros) {
  on_each_target([] {
    EXPECT_TRUE(std::signbit(sum_of({{-0.0f}, {-0.0f}}, ReduceOp::sum, {1, 1})));
    EXPECT_FALSE(std::signbit(sum_of({{-0.0f}, {-0.0f}}, ReduceOp::sum, {1, 0})));
    EXPECT_FALSE(std::signbit(sum_of({{-0.0f}, {-0.0f}}, ReduceOp::sum, {0, 1})));
    EXPECT_EQ(sum_of({{3.0f}, {2.0f}}, ReduceOp::min, {1, 1}), 2.0f);
    EXPECT_EQ(sum_of({{3.0f}, {2.0f}}, ReduceOp::min, {1, 0}), 0.0f);
    EXPECT_EQ(sum_of({{-3.0f}, {-2.0f}}, ReduceOp::max, {1, 1}), -2.0f);
    EXPECT_EQ(sum_of({{-3.0f}, {-2.0f}}, ReduceOp::max, {0, 1}), 0.0f);
    EXPECT_EQ(sum_of({{3.0f}, {2.0f}}, ReduceOp::avg, {1, 0}), 1.5f);
  });
}

TEST(ElementSumByHand, AddsInRankOrder) {
  on_each_target([] {
    EXPECT_EQ(sum_of({{1e8f}, {1.0f}, {-1e8f}}, ReduceOp::sum, {1, 1, 1}), 0.0f);
    EXPECT_EQ(sum_of({{1e8f}, {-1e8f}, {1.0f}}, ReduceOp::sum, {1, 1, 1}), 1.0f);
  });
}

// A slice that fails half-way must not be seen in the next one.
TEST(ElementSumByHand, AForgottenSliceLeavesNothing) {
  std::mt19937_64 random(2);
  const Slice s =
      make_slice(DataType::float32, ReduceOp::max, 500, {Form::bitmap, Form::offsets}, 0.3, random);
  on_each_target([&] {
    ElementAccumulator sum(500);
    sum.start(s.type, s.op, 2, s.elements);
    add_values(sum, s.ranks[0], s.elements, s.size());
    EXPECT_EQ(accumulate(sum, s, Union::own), expected(s));
  });
}

RC_GTEST_PROP(ElementSumProperty, EqualsADenseSum, ()) {
  const auto type = *rc::gen::elementOf(kTypes);
  const auto op = *rc::gen::elementOf(kOps);
  const auto elements =
      *rc::gen::oneOf(rc::gen::inRange<std::size_t>(1, 700), rc::gen::just(kMostSliceElements));
  const auto ranks = *rc::gen::inRange<std::size_t>(2, 9);
  const auto forms = *rc::gen::container<std::vector<Form>>(
      ranks, rc::gen::element(Form::all, Form::bitmap, Form::offsets, Form::nothing));
  const auto density = *rc::gen::element(0.001, 0.03, 0.2, 0.7);
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  const Slice s = make_slice(type, op, elements, forms, density, random);
  const bool nothing = s.any == Words(s.any.size());
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const ForcedTarget forced(target);
    ElementAccumulator sum;
    RC_ASSERT(accumulate(sum, s, Union::own) == expected(s));
    RC_ASSERT(accumulate(sum, s, Union::list) == expected(s));
    ListSum lists;
    if (fits_lists(s)) RC_ASSERT(merge_lists(lists, s, *rc::gen::arbitrary<bool>()) == expected(s));
    if (!nothing) RC_ASSERT(merge(s) == expected(s));
  }
}

/// Three ranks hold every 3rd, 5th and 7th of elements that are so far apart, counted from `base`.
template <typename T>
void sum_far_elements(DataType type, std::uint32_t elements, std::uint32_t apart, std::uint32_t base) {
  std::array<std::vector<std::uint32_t>, 3> offsets;
  std::array<std::vector<T>, 3> values;
  std::vector<std::uint32_t> expected_offsets;
  std::vector<T> expected;
  for (std::uint32_t i = 0; i < elements; ++i) {
    T sum = 0;
    for (std::uint32_t r = 0; r < 3; ++r) {
      if (i % (2 * r + 3) != 0) continue;
      offsets[r].push_back(base + i * apart);
      values[r].push_back(static_cast<T>(i * (r + 1)));
      sum += values[r].back();
    }
    if (i % 3 != 0 && i % 5 != 0 && i % 7 != 0) continue;
    expected_offsets.push_back(i * apart);
    expected.push_back(sum);
  }
  on_each_target([&] {
    ListSum sum;
    for (const bool later : {false, true}) {
      sum.start(type, ReduceOp::sum, 3, base);
      for (std::size_t r = 0; r < 3; ++r)
        sum.add({.offsets = offsets[r], .values = std::as_bytes(std::span(values[r])).data()});
      const std::size_t most = later ? sum.unite_later() : sum.unite();
      ASSERT_EQ(later ? expected.size() : most, expected.size());
      std::vector<std::uint32_t> found_offsets(most);
      std::vector<T> found(most);
      ASSERT_EQ(sum.emit(std::as_writable_bytes(std::span(found)).data(), found_offsets.data()),
                expected.size());
      found_offsets.resize(expected.size());
      found.resize(expected.size());
      EXPECT_EQ(found_offsets, expected_offsets);
      EXPECT_EQ(found, expected);
    }
  });
}

// Several slices in a row are one list, whose offsets have more than 16 bits. The last ones are so far apart
// that not even two of them are in one turn of a merge by vectors, and end with the greatest offset.
TEST(ListSums, OffsetsMayHave32Bits) {
  for (const std::uint32_t base : {0u, 99u}) {
    for (const std::uint32_t elements : {1u, 15u, 50u, 95u, 400u, 50000u}) {
      for (const std::uint32_t apart : {1u, 40009u, 0xffffff00u / 50000}) {
        sum_far_elements<float>(DataType::float32, elements, apart, base);
        sum_far_elements<double>(DataType::float64, elements, apart, base);
      }
    }
    sum_far_elements<float>(DataType::float32, 22, (0xfffffffeu - base) / 21, base);
    sum_far_elements<double>(DataType::float64, 22, (0xfffffffeu - base) / 21, base);
  }
}

}  // namespace
}  // namespace nzcl
