// Memory that is kept for the next one who needs as much.
#include "runtime/base/spare_memory.h"

#include <gtest/gtest.h>

namespace nzcl {
namespace {

constexpr std::size_t kLarge = 4 << 20;

TEST(SpareMemory, LeavesALargePieceToTheNext) {
  const auto spare = std::make_shared<SpareMemory>();
  const std::byte* const first = spare->take(kLarge).get();  // given back at once
  SpareMemory::Piece again = spare->take(kLarge / 2);
  EXPECT_EQ(again.get(), first);
  const SpareMemory::Piece other = spare->take(kLarge);
  EXPECT_NE(other.get(), first) << "that one is in use";
  again.reset();
  EXPECT_EQ(spare->take(kLarge).get(), first) << "it is still known to be as large as it is";
}

TEST(SpareMemory, IsNoLongerThanWhatWasGivenBack) {
  const auto spare = std::make_shared<SpareMemory>();
  spare->take(kLarge).reset();
  const SpareMemory::Piece larger = spare->take(2 * kLarge);
  larger[2 * kLarge - 1] = std::byte{1};
}

TEST(SpareMemory, MayBeLeftBehind) {
  auto spare = std::make_shared<SpareMemory>();
  SpareMemory::Piece piece = spare->take(kLarge);
  spare.reset();
  piece[kLarge - 1] = std::byte{1};
  piece.reset();
  SpareMemory::make(kLarge)[kLarge - 1] = std::byte{1};
}

}  // namespace
}  // namespace nzcl
