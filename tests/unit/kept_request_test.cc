// A request is kept with all that it refers to.
#include "runtime/comm/request/kept_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace nzcl::comm {
namespace {

using testing::Each;
using testing::ElementsAre;

template <typename T>
std::shared_ptr<KeptRequest> kept(const T& request) {
  return KeptRequest::of(&request);
}

TEST(KeptRequest, HasItsOwnBitmap) {
  std::vector<std::uint64_t> bitmap{3, 5};
  const auto copy = kept(AllreduceRequest{.count = 100, .bitmap = bitmap, .tag = 9});
  bitmap.assign(2, 0);
  const auto* const request = std::get<const AllreduceRequest*>(copy->request());
  EXPECT_THAT(request->bitmap, ElementsAre(3, 5));
  EXPECT_EQ(request->count, 100u);
  EXPECT_EQ(request->tag, 9u);
}

template <typename T>
class KeptIndices : public testing::Test {};
using IndexTypes = testing::Types<std::int32_t, std::uint32_t, std::int64_t>;
TYPED_TEST_SUITE(KeptIndices, IndexTypes);

TYPED_TEST(KeptIndices, AreItsOwn) {
  std::vector<TypeParam> indices{1, 4, 7};
  const auto copy = kept(SparseAllreduceRequest{.indices = indices, .count = 1000});
  indices.assign(3, 0);
  const auto* const request = std::get<const SparseAllreduceRequest*>(copy->request());
  ASSERT_EQ(request->indices.size(), 3u);
  EXPECT_EQ(request->indices.type(), kIndexType<TypeParam>);
  std::array<TypeParam, 3> read{};
  std::memcpy(read.data(), request->indices.data(), sizeof read);
  EXPECT_THAT(read, ElementsAre(1, 4, 7));
}

TEST(KeptRequest, HasItsOwnCounts) {
  std::vector<std::uint64_t> counts{3, 4}, bitmap{1};
  const AllgatherRequest request{.counts = counts, .bitmap = bitmap};
  const auto copy = kept(request_of(request, 1, 2));
  counts.assign(2, 0), bitmap.assign(1, 0);
  const auto* const of = std::get<const CollectiveRequest*>(copy->request());
  EXPECT_THAT(of->counts, ElementsAre(3, 4));
  EXPECT_THAT(of->bitmap, ElementsAre(1));
}

TEST(KeptRequest, OfACompressorThereIsNone) { EXPECT_EQ(kept(CompressedRequest{}), nullptr); }

TEST(KeptRequest, RestoresAnInputThatWasCopied) {
  std::array<float, 4> data{1, 2, 3, 4};
  const auto copy = kept(AllreduceRequest{.count = data.size()});
  EXPECT_FALSE(copy->is_spoiled());
  copy->note_overwritten(std::as_writable_bytes(std::span(data)), true);
  EXPECT_FALSE(copy->is_spoiled());
  data.fill(0);
  copy->restore_input();
  EXPECT_THAT(data, ElementsAre(1, 2, 3, 4));
}

TEST(KeptRequest, CannotRestoreOneThatWasNot) {
  std::array<float, 4> data{};
  const auto copy = kept(AllreduceRequest{.count = data.size()});
  copy->note_overwritten(std::as_writable_bytes(std::span(data)), false);
  EXPECT_TRUE(copy->is_spoiled());
  copy->restore_input();
  EXPECT_THAT(data, Each(0));
}

}  // namespace
}  // namespace nzcl::comm
