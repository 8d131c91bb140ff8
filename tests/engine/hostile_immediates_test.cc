// Immediates and messages that no honest peer sends to a lane, with and without checksums. Each fails the
// lane by an error that names the peer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>

#include "runtime/channel/checksum.h"
#include "runtime/lane/lane.h"
#include "verbs/loopback/network.h"

namespace nzcl::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using wire::Direction;
using wire::Immediate;
using wire::Priority;

/// A lane of rank 0, and a bare endpoint by which the test acts as rank 1.
class HostilePeer : public testing::Test {
 protected:
  explicit HostilePeer(bool with_checksums = false, const engine::ChannelConfig& express = {512, 4})
      : ours_(network_.device()), theirs_(network_.device()) {
    engine::LaneOptions options{.config = {}, .timeout = std::chrono::hours(1), .spin = {}, .on_failure = {}};
    options.on_failure = [this](const Failure& f) { failure_ = f.text; };
    options.config.members = {.self = 0, .workers = 2, .dedicated = 0};
    options.config.channels = {engine::ChannelConfig{1024, 4}, express};
    options.config.set_links({});
    lane_config_ = options.config;
    lane_ = std::make_unique<engine::Lane>(options, ours_);
    endpoint_ = theirs_->open_endpoint({.self = 1, .peers = 2, .arrivals = 64});
    byte_ = theirs_->register_memory(std::as_writable_bytes(std::span(bytes_)), MemoryKind::host);
    const std::string lane = lane_->address_for(1);
    // In front of the endpoint's address: where memory is, the seals' secret, whether they have checksums,
    // and an empty address of each exchange.
    constexpr std::size_t kBeforeEndpoint =
        sizeof(verbs::RemoteMemory) + sizeof(std::uint64_t) + 1 + wire::kPriorities;
    std::string here(kBeforeEndpoint, '\0');
    std::memcpy(here.data() + sizeof(verbs::RemoteMemory), &kSecret, sizeof kSecret);
    here[sizeof(verbs::RemoteMemory) + sizeof kSecret] = with_checksums ? 1 : 0;
    here += endpoint_->address_for(0);
    lane_->connect(std::vector<std::string>{"", here}, verbs::Clock::now());
    std::memcpy(&memory_, lane.data(), sizeof memory_);
    endpoint_->connect(std::vector<std::string>{lane.substr(kBeforeEndpoint), ""}, verbs::Clock::now());
  }
  /// Composes a message in the test's own memory, and writes it into slot 0 of the channel up.
  void put_message() {
    wire::Header header;
    header.magic = 7;  // by which it shows that the exchange has read it
    std::memcpy(bytes_.data(), &header, sizeof header);
    write(engine::LaneLayout(lane_config_).ring_offset(0, {1, Direction::up, Priority::bulk}), sizeof header);
  }
  /// Writes the seal behind it, of a lane with this secret.
  void seal(std::uint64_t secret, std::optional<std::uint32_t> checksum = std::nullopt) {
    seal_ = wire::seal_of(secret, bytes_.data(), sizeof(wire::Header));
    if (checksum) seal_ = wire::with_checksum(seal_, *checksum);
    std::memcpy(bytes_.data(), &seal_, sizeof seal_);
    write(engine::LaneLayout(lane_config_).ring_offset(0, {1, Direction::up, Priority::bulk}) +
              sizeof(wire::Header),
          sizeof seal_);
  }
  /// 8 bytes of the lane's memory. Addresses of the loopback transport are those of this process.
  std::uint64_t read(std::uint64_t offset) const {
    std::uint64_t value = 0;
    std::memcpy(&value, reinterpret_cast<const std::byte*>(memory_.address) + offset, sizeof value);
    return value;
  }
  void write(std::uint64_t offset, std::uint32_t bytes) {
    const verbs::Segment segment{byte_->bytes().data(), bytes, byte_.get()};
    const verbs::Write write{.peer = 0,
                             .segments = {&segment, 1},
                             .target = memory_.offset(offset),
                             .immediate = {},
                             .context = 0};
    EXPECT_EQ(endpoint_->post({&write, 1}), 1u);
    std::array<verbs::Completion, 4> done;
    for (int i = 0; i < 8; ++i) endpoint_->poll(done), lane_->drive();
  }
  /// The lane's error after this immediate has arrived; "" if it takes it.
  std::string failure_after(const Immediate& immediate) {
    const verbs::Segment segment{byte_->bytes().data(), 1, byte_.get()};
    const verbs::Write write{.peer = 0,
                             .segments = {&segment, 1},
                             .target = memory_,
                             .immediate = wire::encode(immediate),
                             .context = 0};
    EXPECT_EQ(endpoint_->post({&write, 1}), 1u);
    std::array<verbs::Completion, 4> done;
    for (int i = 0; i < 8; ++i) endpoint_->poll(done), lane_->drive();
    return failure_;
  }

  static constexpr std::uint64_t kSecret = 0x1234567887654321;  // of rank 1's seals
  verbs::LoopbackNetwork network_;
  engine::EngineConfig lane_config_;
  std::shared_ptr<verbs::Device> ours_, theirs_;
  std::unique_ptr<engine::Lane> lane_;
  std::unique_ptr<verbs::Endpoint> endpoint_;
  std::array<std::byte, 64> bytes_{};
  std::unique_ptr<verbs::MemoryRegion> byte_;
  verbs::RemoteMemory memory_;
  std::uint64_t seal_ = 0;
  std::string failure_;
};

constexpr wire::ChannelId kDown{1, Direction::down, Priority::bulk}, kUp{1, Direction::up, Priority::bulk};

TEST_F(HostilePeer, ASlotThatDoesNotExist) {
  EXPECT_THAT(failure_after({Immediate::Kind::message, kUp, 4}),
              StartsWith("rank 1 announced a message in a slot that its channel does not have"));
}
/// A lane on which nothing is exchanged at one of the priorities that may have direct writes.
class HostilePeerOfAFewPriorities : public HostilePeer {
 protected:
  HostilePeerOfAFewPriorities() : HostilePeer(false, {512, 0}) {}
};
TEST_F(HostilePeerOfAFewPriorities, ADirectWriteAtAnotherOne) {
  EXPECT_THAT(failure_after({Immediate::Kind::direct, {1, Direction::down, Priority::express}, 0}),
              StartsWith("rank 1 announced a direct write at a priority that nothing is exchanged at"));
}
TEST_F(HostilePeer, AMessageAtAPriorityWithoutChannels) {
  EXPECT_THAT(failure_after({Immediate::Kind::message, {1, Direction::up, Priority::merging}, 0}),
              StartsWith("rank 1 announced a message in a slot that its channel does not have"));
}
TEST_F(HostilePeer, ACreditAtAPriorityWithoutChannels) {
  EXPECT_THAT(failure_after({Immediate::Kind::credit, {1, Direction::up, Priority::doubling}, 1}),
              StartsWith("rank 1 returned more credits than it was sent messages"));
}
TEST_F(HostilePeer, AMessageThatIsNotThere) {
  EXPECT_THAT(failure_after({Immediate::Kind::message, kUp, 0}),
              StartsWith("rank 1 announced a message that is not there"));
}
TEST_F(HostilePeer, AMessageWithoutItsLastBytes) {
  put_message();
  seal(kSecret + 1);  // what lies there is not the seal of this message
  EXPECT_THAT(failure_after({Immediate::Kind::message, kUp, 0}),
              StartsWith("rank 1 announced a message that is not there"));
}
TEST_F(HostilePeer, AWholeMessageIsTaken) {
  put_message();
  seal(kSecret);
  EXPECT_THAT(failure_after({Immediate::Kind::message, kUp, 0}),
              HasSubstr("does not begin with nzcl's magic number"));
}
/// A peer whose messages carry checksums.
class ChecksummedPeer : public HostilePeer {
 protected:
  ChecksummedPeer() : HostilePeer(true) {}
  std::uint32_t checksum() const {
    return engine::checksum_of(std::span(bytes_).first(sizeof(wire::Header)));
  }
};

TEST_F(ChecksummedPeer, AMessageWithItsChecksumIsTaken) {
  put_message();
  seal(kSecret, checksum());
  EXPECT_THAT(failure_after({Immediate::Kind::message, kUp, 0}),
              HasSubstr("does not begin with nzcl's magic number"));
}
TEST_F(ChecksummedPeer, AMessageWithAnotherChecksum) {
  put_message();
  seal(kSecret, checksum() ^ 0x100);
  EXPECT_THAT(failure_after({Immediate::Kind::message, kUp, 0}),
              StartsWith("rank 0 received a message of rank 1 about operation 0, slice 0, whose bytes do not "
                         "have the CRC32C"));
}
TEST_F(ChecksummedPeer, AMessageWithoutItsLastBytes) {
  put_message();
  seal(~kSecret, checksum());
  EXPECT_THAT(failure_after({Immediate::Kind::message, kUp, 0}),
              StartsWith("rank 1 announced a message that is not there"));
}

TEST_F(HostilePeer, AMessageThatWasTakenAlready) {
  put_message();
  seal(kSecret);
  failure_after({Immediate::Kind::message, kUp, 0});
  EXPECT_NE(read(engine::LaneLayout(lane_config_).ring_offset(0, kUp) + sizeof(wire::Header)), seal_)
      << "what stays in the slot is not taken for a message again";
}
TEST_F(HostilePeer, CreditsForNothing) {
  EXPECT_THAT(failure_after({Immediate::Kind::credit, kUp, 1}),
              StartsWith("rank 1 returned more credits than it was sent messages"));
}
TEST_F(HostilePeer, DirectWritesUpwards) {
  EXPECT_THAT(failure_after({Immediate::Kind::direct, kUp, 0}),
              StartsWith("rank 1 announced a direct write upwards"));
}
TEST_F(HostilePeer, DirectWritesForNothing) {
  EXPECT_EQ(failure_after({Immediate::Kind::direct, kDown, 0}),
            "rank 1 announced a direct write for a slice that is not running");
}
TEST_F(HostilePeer, MergingWithoutChannelsForIt) {
  EXPECT_THAT(failure_after({Immediate::Kind::message, {1, Direction::up, Priority::merging}, 0}),
              StartsWith("rank 1 announced a message in a slot that its channel does not have"));
}
TEST_F(HostilePeer, CreditsOfMergingWithoutChannelsForIt) {
  EXPECT_THAT(failure_after({Immediate::Kind::credit, {1, Direction::up, Priority::merging}, 1}),
              StartsWith("rank 1 returned more credits than it was sent messages"));
}
TEST_F(HostilePeer, DoublingWithoutChannelsForIt) {
  EXPECT_THAT(failure_after({Immediate::Kind::message, {1, Direction::up, Priority::doubling}, 0}),
              StartsWith("rank 1 announced a message in a slot that its channel does not have"));
}
TEST_F(HostilePeer, CreditsOfDoublingWithoutChannelsForIt) {
  EXPECT_THAT(failure_after({Immediate::Kind::credit, {1, Direction::up, Priority::doubling}, 1}),
              StartsWith("rank 1 returned more credits than it was sent messages"));
}
TEST_F(HostilePeer, MembersThatDoNotExist) {
  EXPECT_THAT(failure_after({Immediate::Kind::message, {7, Direction::up, Priority::bulk}, 0}),
              HasSubstr("does not exist, and something came from it (immediate 0x001c0000)"));
}
TEST_F(HostilePeer, ThisMember) {
  EXPECT_THAT(failure_after({Immediate::Kind::message, {0, Direction::up, Priority::bulk}, 0}),
              StartsWith("rank 0 is this one, and something came from it"));
}

}  // namespace
}  // namespace nzcl::test
