// Requests that are made again and again, and the buffers that they name.
#include "runtime/comm/request/recent_requests.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "verbs/loopback/network.h"

namespace nzcl::comm {
namespace {

class RecentRequestsTest : public testing::Test {
 protected:
  RecentRequestsTest() {
    config_.members.workers = 2;
    config_.channels[static_cast<std::size_t>(wire::Priority::express)] = {.slot_bytes = 8192, .slots = 8};
    config_.channels[static_cast<std::size_t>(wire::Priority::bulk)] = {.slot_bytes = 8192, .slots = 8};
    add();
  }
  void add() {
    input_handle_ = registrations_.add(std::as_writable_bytes(std::span(input_)), MemoryKind::host);
    output_handle_ = registrations_.add(std::as_writable_bytes(std::span(output_)), MemoryKind::host);
  }
  AllreduceRequest request() {
    return {.input = input_.data(), .output = output_.data(), .count = 10, .block_elems = 4};
  }
  /// Does what a first request of its kind does.
  void make(const AllreduceRequest& request) {
    Prepared p;
    p.record = shape_of(request, WireType::as_is);
    prepare(request, registrations_, p);
    recent_.remember(request, registrations_, p);
  }
  bool recalls(const AllreduceRequest& request) {
    Prepared p;
    return recent_.recall(request, p);
  }

  verbs::LoopbackNetwork network_;
  Registrations registrations_{network_.device()};
  engine::EngineConfig config_;
  RecentRequests recent_{config_};
  std::vector<float> input_ = std::vector<float>(10000), output_ = input_;
  std::shared_ptr<Registration> input_handle_, output_handle_;
};

TEST_F(RecentRequestsTest, ARequestComesToTheSameAgain) {
  Prepared first, again;
  first.record = shape_of(request(), WireType::as_is);
  prepare(request(), registrations_, first);
  recent_.remember(request(), registrations_, first);
  ASSERT_TRUE(recent_.recall(request(), again));
  EXPECT_TRUE(again.record.same_operation(first.record));
  EXPECT_EQ(again.record.output_address, first.record.output_address);
  EXPECT_EQ(again.record.output_key, first.record.output_key);
  EXPECT_EQ(again.known, first.known);
  EXPECT_EQ(again.input.base, first.input.base);
  EXPECT_EQ(again.output.base, first.output.base);
  EXPECT_EQ(again.input_bytes.size(), 40u);
  EXPECT_EQ(again.output_bytes.data(), first.output_bytes.data());
  EXPECT_EQ(again.regions, first.regions);
  ASSERT_TRUE(again.layout);
  EXPECT_EQ(again.layout->blocks(), 3u);
}

TEST_F(RecentRequestsTest, TheTagIsThatOfTheNewRequest) {
  AllreduceRequest r = request();
  r.tag = 1;
  make(r);
  r.tag = 2;
  Prepared p;
  ASSERT_TRUE(recent_.recall(r, p));
  EXPECT_EQ(p.record.tag, 2u);
}

TEST_F(RecentRequestsTest, AnythingElseThatDiffersCounts) {
  make(request());
  const std::uint64_t bitmap = 7;
  const std::vector<void (*)(AllreduceRequest&)> changes = {
      [](AllreduceRequest& r) { r.count = 9; },
      [](AllreduceRequest& r) { r.input = r.output; },
      [](AllreduceRequest& r) { r.type = DataType::int32; },
      [](AllreduceRequest& r) { r.op = ReduceOp::max; },
      [](AllreduceRequest& r) { r.block_elems = 5; },
      [](AllreduceRequest& r) { r.dense = true; },
      [](AllreduceRequest& r) { r.timeout = std::chrono::seconds(1); },
      [](AllreduceRequest& r) { r.wire_type = WireType::float16; },
      [](AllreduceRequest& r) { r.algorithm = Algorithm::push; },
      [](AllreduceRequest& r) { r.expected_density = 0.5; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    AllreduceRequest r = request();
    changes[i](r);
    EXPECT_FALSE(recalls(r)) << "change " << i;
  }
  AllreduceRequest with_bitmap = request();
  with_bitmap.bitmap = {&bitmap, 1};
  EXPECT_FALSE(recalls(with_bitmap));
  EXPECT_TRUE(recalls(request()));
}

TEST_F(RecentRequestsTest, ABufferThatIsNotRegisteredAnyMoreIsNotRecalled) {
  make(request());
  const auto region = output_handle_->region;  // as an operation has it
  output_handle_ = nullptr;
  EXPECT_FALSE(recalls(request()));
  add();
  EXPECT_FALSE(recalls(request()));  // other pages may lie at the address now
  make(request());
  EXPECT_TRUE(recalls(request()));
}

TEST_F(RecentRequestsTest, DoesNotKeepMemoryRegistered) {
  make(request());
  const std::weak_ptr<const verbs::MemoryRegion> region = input_handle_->region;
  input_handle_ = nullptr;
  EXPECT_TRUE(region.expired());
}

TEST_F(RecentRequestsTest, LargeRequestsAreNotRemembered) {
  AllreduceRequest r = request();
  r.count = 10000;
  make(r);
  EXPECT_FALSE(recalls(r));
}

}  // namespace
}  // namespace nzcl::comm
