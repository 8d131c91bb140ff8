// Which memory for indices is refused, at the largest tensors that each type can index.
#include "runtime/operation/index_memory.h"

#include <gtest/gtest.h>

namespace nzcl::engine {
namespace {

constexpr std::uint64_t kOf31Bits = std::uint64_t{1} << 31, kOf32Bits = std::uint64_t{1} << 32;

TEST(IndexMemory, HoldsTheIndexOfTheLastBlockOrIsRefused) {
  std::int64_t memory = 0;
  const IndexBuffer int32(&memory, IndexType::int32), uint32(&memory, IndexType::uint32),
      int64(&memory, IndexType::int64);
  EXPECT_FALSE(wrong_with_index_memory(int32, 0));
  EXPECT_FALSE(wrong_with_index_memory(int32, kOf31Bits));
  EXPECT_TRUE(wrong_with_index_memory(int32, kOf31Bits + 1));
  EXPECT_FALSE(wrong_with_index_memory(uint32, kOf32Bits));
  EXPECT_TRUE(wrong_with_index_memory(uint32, kOf32Bits + 1));
  EXPECT_FALSE(wrong_with_index_memory(int64, std::uint64_t{1} << 62));
}

TEST(IndexMemory, ThatIsNotGivenHoldsAnything) {
  EXPECT_FALSE(wrong_with_index_memory({nullptr, IndexType::int32}, kOf32Bits));
}

TEST(IndexMemory, OfATypeThatDoesNotExistIsRefused) {
  EXPECT_EQ(wrong_with_index_memory({nullptr, static_cast<IndexType>(3)}, 1), "index type 3 does not exist");
}

}  // namespace
}  // namespace nzcl::engine
