// Tests what queue pairs do when more is asked of them than nzcl's credits would allow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/error.h"
#include "verbs/transport.h"

namespace nzcl::verbs {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

/// Two connected endpoints. The first one writes into the memory of the second.
class QueueLimits : public testing::Test {
 protected:
  void SetUp() override {
    DeviceOptions options;
    options.transport = "ibverbs";
    try {
      for (int i = 0; i < 2; ++i) {
        options.local_rank = i;
        devices_.push_back(open_device(options));
      }
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
    for (PeerId i = 0; i < 2; ++i) {
      endpoints_.push_back(devices_[i]->open_endpoint({.self = i, .peers = 2, .arrivals = arrivals_}));
      regions_.push_back(devices_[i]->register_memory(bytes_[i], MemoryKind::host));
    }
    const std::array addresses{endpoints_[0]->address_for(1), endpoints_[1]->address_for(0)};
    endpoints_[0]->connect(std::array{std::string(), addresses[1]}, Clock::now() + seconds(10));
    endpoints_[1]->connect(std::array{addresses[0], std::string()}, Clock::now() + seconds(10));
    // The queue pairs are made by the first write, which the receiver polls for.
    const Segment segment{bytes_[0].data(), 8, regions_[0].get()};
    const Write write{
        .peer = 1, .segments = {&segment, 1}, .target = regions_[1]->remote(), .immediate = {}, .context = 0};
    ASSERT_EQ(endpoints_[0]->post({&write, 1}), 1u);
    poll_until([&] {
      poll(1, Completion::Kind::written);
      return poll(0, Completion::Kind::written) > 0;
    });
  }

  /// Posts immediates from endpoint 0 to endpoint 1, as many as are accepted, and returns their number.
  int post(int count) {
    int accepted = 0;
    for (; accepted < count; ++accepted) {
      const Segment segment{bytes_[0].data(), 8, regions_[0].get()};
      const Write write{.peer = 1,
                        .segments = {&segment, 1},
                        .target = regions_[1]->remote(),
                        .immediate = static_cast<std::uint32_t>(accepted),
                        .context = 0};
      if (endpoints_[0]->post({&write, 1}) == 0) break;
    }
    return accepted;
  }
  int poll(int endpoint, Completion::Kind kind) {
    std::array<Completion, 32> completions;
    const std::size_t n = endpoints_[static_cast<std::size_t>(endpoint)]->poll(completions);
    int found = 0;
    for (std::size_t i = 0; i < n; ++i) found += completions[i].kind == kind ? 1 : 0;
    return found;
  }
  template <typename Done>
  static void poll_until(Done done) {
    const auto deadline = Clock::now() + seconds(60);
    while (!done() && Clock::now() < deadline) {
    }
  }

  std::size_t arrivals_ = 1;
  std::array<std::vector<std::byte>, 2> bytes_{std::vector<std::byte>(4096), std::vector<std::byte>(4096)};
  std::vector<std::shared_ptr<Device>> devices_;
  std::vector<std::unique_ptr<MemoryRegion>> regions_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

TEST_F(QueueLimits, AReceiverThatPollsGetsMoreImmediatesThanItsQueueHolds) {
  constexpr int kMany = 1000;
  int sent = 0, written = 0, arrived = 0;
  poll_until([&] {
    // There are never more immediates under way than the queue has requests, as with nzcl's credits.
    if (sent < kMany && sent - arrived < 32) sent += post(1);
    written += poll(0, Completion::Kind::written);
    arrived += poll(1, Completion::Kind::arrived);
    return written == kMany && arrived == kMany;
  });
  EXPECT_EQ(written, kMany);
  EXPECT_EQ(arrived, kMany);
}

TEST_F(QueueLimits, AnImmediateWithoutAReceiveRequestFailsAndSaysSo) {
  ASSERT_EQ(post(100), 100);  // the receiver never polls and has fewer receive requests
  int failed = 0;
  poll_until([&] { return (failed += poll(0, Completion::Kind::failed)) > 0; });
  ASSERT_EQ(failed, 1);
  EXPECT_THAT(endpoints_[0]->failure(), HasSubstr("write to peer 1"));
  EXPECT_THAT(endpoints_[0]->failure(), HasSubstr("RNR retry counter exceeded"));
}

/// Endpoints of which more is expected than any queue holds.
class ManyArrivals : public QueueLimits {
 protected:
  ManyArrivals() { arrivals_ = 1 << 20; }
};

TEST_F(ManyArrivals, WaitForARequestUntilTheReceiverPolls) {
  constexpr int kMany = 5000;  // more than there are requests
  int sent = 0, written = 0, failed = 0;
  // The receiver does not poll while the sender posts all that it can. What finds no request stays in the
  // sender's queue.
  const auto later = Clock::now() + seconds(5);
  poll_until([&] {
    sent += post(kMany - sent);
    std::array<Completion, 32> completions;
    for (std::size_t i = endpoints_[0]->poll(completions); i-- > 0;) {
      written += completions[i].kind == Completion::Kind::written ? 1 : 0;
      failed += completions[i].kind == Completion::Kind::failed ? 1 : 0;
    }
    return Clock::now() > later || failed > 0;
  });
  EXPECT_EQ(failed, 0) << endpoints_[0]->failure();
  EXPECT_LT(written, kMany) << "there was a request for each";
  int arrived = 0;
  poll_until([&] {
    sent += post(kMany - sent);
    written += poll(0, Completion::Kind::written);
    arrived += poll(1, Completion::Kind::arrived);
    return written == kMany && arrived == kMany;
  });
  EXPECT_EQ(written, kMany);
  EXPECT_EQ(arrived, kMany);
}

TEST_F(QueueLimits, PostingStopsAtTheQueuesDepth) {
  const int accepted = post(10000);
  EXPECT_GT(accepted, 0);
  EXPECT_LE(accepted, static_cast<int>(devices_[0]->limits().max_posted));
  EXPECT_EQ(static_cast<int>(endpoints_[0]->in_flight()), accepted);
}

class RdmaCm : public testing::Test {
 protected:
  void SetUp() override {
    DeviceOptions options;
    options.transport = "ibverbs";
    options.rdma_cm = true;
    try {
      device_ = open_device(options);
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
  }
  std::unique_ptr<Endpoint> open(PeerId self) const {
    return device_->open_endpoint({.self = self, .peers = 2, .arrivals = 1});
  }
  /// The address of `endpoint` for peer 1, with another token: the token comes last.
  static std::string forged_address(Endpoint& endpoint) {
    std::string address = endpoint.address_for(1);
    address.back() ^= 1;
    return address;
  }
  static std::string error_of(Endpoint& endpoint, const std::vector<std::string>& addresses,
                              seconds timeout = seconds(5)) {
    try {
      endpoint.connect(addresses, Clock::now() + timeout);
    } catch (const Error& e) {
      return e.what();
    }
    return "connected";
  }

  std::shared_ptr<Device> device_;
};

TEST_F(RdmaCm, APeerThatDoesNotKnowTheTokenIsRefused) {
  const auto called = open(0), caller = open(1);
  const std::string address = caller->address_for(0), forged = forged_address(*called);
  std::string of_called;
  {
    const std::jthread other([&] { of_called = error_of(*called, {"", address}); });
    EXPECT_THAT(error_of(*caller, {forged, ""}), HasSubstr("RDMA_CM_EVENT_REJECTED"));
  }
  EXPECT_THAT(of_called, HasSubstr("no connection in time with peer(s) 1"));
}

/// The connection identifiers that the kernel holds, as rdma-resource(8) lists them, one per line.
int connection_identifiers() {
  const auto close = [](std::FILE* f) { ::pclose(f); };
  const std::unique_ptr<std::FILE, decltype(close)> list(::popen("rdma resource show cm_id", "r"), close);
  int lines = 0;
  for (int c = 0; (c = std::fgetc(list.get())) != EOF;) lines += c == '\n' ? 1 : 0;
  return lines;
}

TEST_F(RdmaCm, RefusedRequestsAreFreedWhileTheConnectorStillWaits) {
  const auto called = open(0), caller = open(1);
  const std::string address = caller->address_for(0), expected = called->address_for(1);
  const int before = connection_identifiers();
  ASSERT_GE(before, 2) << "`rdma resource show cm_id` does not list the two listeners";
  std::string of_called;
  {
    const std::jthread other([&] { of_called = error_of(*called, {"", address}, seconds(60)); });
    for (int i = 0; i < 8; ++i) {
      const auto stranger = open(1);
      stranger->address_for(0);
      EXPECT_THAT(error_of(*stranger, {forged_address(*called), ""}), HasSubstr("RDMA_CM_EVENT_REJECTED"));
    }
    // The last request may not be freed yet.
    EXPECT_LE(connection_identifiers(), before + 1);
    EXPECT_EQ(error_of(*caller, {expected, ""}), "connected");
  }
  EXPECT_EQ(of_called, "connected");
}

TEST(QueueLimitsOfADevice, OnDemandPagingIsRefusedWhereThereIsNone) {
  DeviceOptions options;
  options.transport = "ibverbs";
  try {
    open_device(options);
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  options.on_demand_paging = true;
  try {
    open_device(options);
    GTEST_SKIP() << "this device has on-demand paging";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    EXPECT_THAT(e.what(), HasSubstr("no on-demand paging"));
  }
}

TEST_F(QueueLimits, HugePagesAreRegisteredAndWritten) {
  constexpr std::size_t kHuge = 2 << 20;
  std::ofstream("/proc/sys/vm/nr_hugepages") << 4;
  void* p = ::mmap(nullptr, kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  if (p == MAP_FAILED) GTEST_SKIP() << "no huge pages here";
  const std::span<std::byte> huge{static_cast<std::byte*>(p), kHuge};
  {
    const auto region = devices_[1]->register_memory(huge, MemoryKind::host);
    std::fill(bytes_[0].begin(), bytes_[0].end(), std::byte{7});
    const Segment segment{bytes_[0].data(), 4096, regions_[0].get()};
    const Write write{.peer = 1,
                      .segments = {&segment, 1},
                      .target = region->remote().offset(kHuge - 4096),
                      .immediate = 1,
                      .context = 0};
    ASSERT_EQ(endpoints_[0]->post({&write, 1}), 1u);
    int arrived = 0;
    poll_until([&] { return (arrived += poll(1, Completion::Kind::arrived)) > 0; });
    EXPECT_EQ(huge[kHuge - 1], std::byte{7});
    EXPECT_EQ(huge[kHuge - 4097], std::byte{0});
  }
  ::munmap(p, kHuge);
}

}  // namespace
}  // namespace nzcl::verbs
