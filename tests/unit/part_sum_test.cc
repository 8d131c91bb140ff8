// PartSum, in every way in which it sums, against a plain sum of the dense tiles.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/offsets.h"
#include "runtime/kernels/reduce.h"
#include "runtime/tile/part_sum.h"
#include "runtime/tile/tile_codec.h"

namespace nzcl::engine {
namespace {

using Form = TilePart::Form;

/// What one rank holds of a tile: some of its units, and the dense tile that this makes.
struct RankTile {
  std::vector<std::uint64_t> bitmap;
  std::vector<std::uint16_t> offsets;
  std::vector<float> values, dense;

  RankTile(const wire::TileShape& shape, double density, std::mt19937& random)
      : bitmap(words_for(shape.units())), dense(shape.elements) {
    for (std::size_t unit = 0; unit < shape.units(); ++unit) {
      if (std::uniform_real_distribution<>()(random) >= density) continue;
      set_bit(std::span(bitmap), unit);
      offsets.push_back(static_cast<std::uint16_t>(unit));
      for (std::size_t e = unit * shape.unit; e < std::min((unit + 1) * shape.unit, shape.elements); ++e)
        values.push_back(dense[e] = static_cast<float>(random() % 2001) / 8 - 125);
    }
  }
  TilePart part(const wire::TileShape& shape, Form form) const {
    if (offsets.empty()) return {};
    if (values.size() == shape.elements) form = Form::all;
    TilePart p{.form = form, .units = offsets.size(), .count = values.size(), .bitmap = {}, .offsets = {}};
    if (form == Form::bitmap) p.bitmap = bitmap;
    if (form == Form::offsets) p.offsets = offsets;
    p.values = std::as_bytes(std::span(values)).data();
    return p;
  }
};

/// Sums tiles of these ranks with the same PartSum, and compares each sum with the plain one.
class Checked {
 public:
  Checked(std::size_t ranks, const wire::TileShape& shape) : shape_(shape), sum_(ranks, shape.elements * 4) {}

  void check(const std::vector<RankTile>& ranks, ReduceOp op, std::mt19937& random) {
    sum_.start(DataType::float32, op, shape_);
    std::vector<std::uint64_t> any(words_for(shape_.units()));
    std::vector<const std::byte*> dense;
    for (const RankTile& rank : ranks) {
      sum_.add(rank.part(shape_, random() % 2 == 0 ? Form::bitmap : Form::offsets));
      for (std::size_t w = 0; w < any.size(); ++w) any[w] |= rank.bitmap[w];
      dense.push_back(std::as_bytes(std::span(rank.dense)).data());
    }
    const TilePart result = sum_.unite();
    ASSERT_EQ(result.units, set_size(any));
    std::vector<float> found(result.count), expected(shape_.elements);
    sum_.write(std::as_writable_bytes(std::span(found)).data());
    reduce_kernel(DataType::float32, op)(std::as_writable_bytes(std::span(expected)).data(), dense.data(),
                                         dense.size(), shape_.elements,
                                         {.ranks = static_cast<int>(ranks.size()), .with_zero = false});
    std::size_t at = 0;
    for (const std::uint16_t unit : as_offsets(result, sum_.scratch().offsets())) {
      ASSERT_TRUE(test_bit(any, unit));
      for (std::size_t e = unit * shape_.unit; e < std::min((unit + 1) * shape_.unit, shape_.elements); ++e)
        ASSERT_EQ(std::memcmp(&found[at++], &expected[e], sizeof(float)), 0) << "element " << e;
    }
    EXPECT_EQ(at, result.count);
  }

 private:
  const wire::TileShape shape_;
  PartSum sum_;
};

class PartSums : public ::testing::TestWithParam<std::size_t> {};

/// Densities that take each of the ways, and tiles that follow one another in different ones.
TEST_P(PartSums, AreThoseOfDenseTiles) {
  const std::size_t ranks = GetParam();
  std::mt19937 random(7);
  for (const wire::TileShape& shape : {wire::TileShape(5000), wire::TileShape(65536), wire::TileShape(1, 1),
                                       wire::TileShape(4999, 4), wire::TileShape(6000, 100)}) {
    Checked sums(ranks, shape);
    for (const double density : {0.0, 0.0005, 0.005, 0.04, 0.3, 1.0, 0.002}) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::min}) {
        SCOPED_TRACE(testing::Message()
                     << shape.elements << " elements, units of " << shape.unit << ", density " << density);
        std::vector<RankTile> tiles;
        for (std::size_t r = 0; r < ranks; ++r)
          tiles.emplace_back(shape, r == 1 && random() % 2 == 0 ? 0.5 : density, random);
        ASSERT_NO_FATAL_FAILURE(sums.check(tiles, op, random));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PartSums, testing::Values(1, 2, 3, 5, 16, 17));

}  // namespace
}  // namespace nzcl::engine
