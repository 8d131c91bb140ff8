// Runs one engine alone. The test writes messages into the engine's channels by hand, and reads from the
// outbox what the engine wants to send.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/bitmap.h"
#include "runtime/channel/lane_memory.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/slice_layout.h"
#include "verbs/loopback/network.h"

namespace nzcl::test {

/// A section of a message, in its parts.
struct Message {
  wire::Header header;
  wire::OperationRecord record;  // only in contributions that have kHasBitmap
  std::vector<std::uint64_t> bitmap;
  std::vector<float> payload;

  friend void PrintTo(const Message& m, std::ostream* out) {
    *out << "sequence " << m.header.sequence << ", flags " << m.header.flags << ", " << m.payload.size()
         << " values";
  }
};

class HandFed {
 public:
  /// By default two workers and one dedicated aggregator (member 2).
  struct Setup {
    int self;
    int workers = 2, dedicated = 1;
    std::uint32_t slots = 4;          // at either priority
    std::uint64_t slot_bytes = 1024;  // of bulk slots; express slots have 512
    bool one_hop = false;
    std::uint64_t direct_bytes = 1 << 20, ahead_bytes = 0;
    bool ordered = false;
    std::uint64_t tile_block_bytes = 0;
    bool doubling = false;      // slots of 2048 bytes for it
    bool merging = false;       // slots like those of bulk messages for it
    int unordered_member = -1;  // with `ordered`, the link to this member is unordered all the same
  };

  explicit HandFed(const Setup& setup) : context_(make_config(setup)) {
    device_ = network_.device();
    memory_ = std::make_unique<engine::LaneMemory>(context_.config, *device_);
    memory_->attach(context_);
    for (int member = 0; member < context_.config.members.count(); ++member) {
      // Nothing is ever written to a peer here, so any address will do as long as each peer has its own.
      if (member != setup.self)
        memory_->attach_peer(context_, member, {static_cast<std::uint64_t>(member + 1) << 32, 1});
    }
  }

  engine::LaneContext& context() { return context_; }
  verbs::Device& device() { return *device_; }
  engine::SliceLayout layout(std::uint64_t epoch, const wire::OperationRecord& r) const {
    return engine::layout_of(context_.config, epoch, r);
  }

  /// Puts a message into the next slot of the channel from `member` and announces it. Lengths in the header
  /// are filled in where the test has left them at 0.
  void feed(int member, wire::Direction direction, const Message& m,
            wire::Priority c = wire::Priority::express) {
    feed_sections(member, direction, {m}, c);
  }
  /// The same for a message of several sections. All but the last have the flag kMore; with `more_at_end` the
  /// last one has it too, which is wrong.
  void feed_sections(int member, wire::Direction direction, std::vector<Message> sections, wire::Priority c,
                     bool more_at_end = false) {
    const std::uint32_t slot =
        slots_used_[static_cast<std::size_t>(member)]++ % context_.config.channel(c).slots;
    std::byte* const begin = slot_of(member, direction, c, slot);
    std::uint64_t at = 0;
    const auto append = [&](const void* data, std::size_t bytes) {
      if (at + bytes <= context_.config.channel(c).slot_bytes) std::memcpy(begin + at, data, bytes);
      at += bytes;
    };
    for (std::size_t i = 0; i < sections.size(); ++i) {
      Message& m = sections[i];
      if (m.header.bitmap_bytes == 0) m.header.bitmap_bytes = static_cast<std::uint32_t>(m.bitmap.size() * 8);
      if (m.header.payload_bytes == 0)
        m.header.payload_bytes = static_cast<std::uint32_t>(m.payload.size() * 4);
      if (i + 1 < sections.size() || more_at_end) m.header.flags |= wire::kMore;
      at = wire::aligned_section(at);
      append(&m.header, sizeof m.header);
      if (direction == wire::Direction::up && (m.header.flags & wire::kHasBitmap))
        append(&m.record, sizeof m.record);
      if (!m.bitmap.empty()) append(m.bitmap.data(), m.bitmap.size() * 8);
      if (!m.payload.empty()) append(m.payload.data(), m.payload.size() * 4);
    }
    context_.arrived({static_cast<std::uint16_t>(member), direction, c}, static_cast<std::uint16_t>(slot));
  }

  /// Puts any bytes at the beginning of a channel's next slot, leaves what lay behind them, and announces the
  /// slot. Where the engine still holds that slot, the announcement is ignored.
  void feed_bytes(int member, wire::Direction direction, wire::Priority c,
                  std::span<const std::uint8_t> bytes) {
    const wire::ChannelId id{static_cast<std::uint16_t>(member), direction, c};
    std::uint32_t& used = bytes_fed_[wire::encode({.kind = {}, .channel = id, .value = 0})];
    const std::uint32_t slot = used % context_.config.channel(c).slots;
    const std::size_t n = std::min<std::size_t>(bytes.size(), context_.config.channel(c).slot_bytes);
    if (n > 0) std::memcpy(slot_of(member, direction, c, slot), bytes.data(), n);
    if (context_.arrived(id, static_cast<std::uint16_t>(slot))) ++used;
  }
  /// Empties the outbox, and gives the staging buffers back as the writes' completions would.
  void drop_sent() {
    while (!context_.outbox.empty()) {
      const auto context = engine::WriteContext::decode(context_.outbox.pending().front().context);
      if (context.staging) context_.pool(context.priority).release(*context.staging);
      context_.outbox.pop(1);
    }
  }

  struct Sent {
    int peer;
    wire::Immediate immediate;
    bool announced;
    verbs::RemoteMemory target;
    std::size_t bytes;          // of the whole message
    bool reads_operation;       // the test must call Operation::local_write_done() in place of its completion
    Message message;            // a message's first section; a direct write has only a payload
    std::vector<Message> more;  // a message's further sections
  };
  /// Takes everything out of the outbox, and gives the staging buffers back as the writes' completions would.
  std::vector<Sent> take_sent() {
    std::vector<Sent> all;
    while (!context_.outbox.empty()) {
      const verbs::Write& w = context_.outbox.pending().front();
      std::vector<std::byte> bytes;
      for (const auto& s : w.segments) bytes.insert(bytes.end(), s.data, s.data + s.bytes);
      Sent sent{.peer = static_cast<int>(w.peer),
                .immediate = wire::decode(w.immediate.value_or(0)),
                .announced = w.immediate.has_value(),
                .target = w.target,
                .bytes = bytes.size(),
                .reads_operation = engine::WriteContext::decode(w.context).operation.has_value(),
                .message = {},
                .more = {}};
      parse(bytes, sent);
      all.push_back(std::move(sent));
      const auto context = engine::WriteContext::decode(w.context);
      if (context.staging) context_.pool(context.priority).release(*context.staging);
      context_.outbox.pop(1);
    }
    return all;
  }
  /// Steps an engine until nothing moves. Returns what was sent, without the writes that only return credits.
  template <typename Engine>
  std::vector<Sent> run(Engine& engine) {
    while (engine.step()) {
    }
    auto sent = take_sent();
    std::erase_if(sent, [](const Sent& s) { return s.immediate.kind == wire::Immediate::Kind::credit; });
    return sent;
  }
  std::string failure() const { return context_.failure ? context_.failure->text : ""; }

 private:
  std::byte* slot_of(int member, wire::Direction direction, wire::Priority c, std::uint32_t slot) const {
    const wire::ChannelId channel{static_cast<std::uint16_t>(member), direction, c};
    return reinterpret_cast<std::byte*>(
        memory_->remote(verbs::Level::between).address +
        engine::LaneLayout(context_.config).ring_offset(context_.config.members.self, channel) +
        slot * context_.config.channel(c).stride());
  }
  static engine::EngineConfig make_config(const Setup& setup) {
    engine::EngineConfig config;
    config.members = {.self = setup.self, .workers = setup.workers, .dedicated = setup.dedicated};
    config.channels = {engine::ChannelConfig{setup.slot_bytes, setup.slots},
                       engine::ChannelConfig{512, setup.slots}};
    if (setup.doubling)
      config.channels[static_cast<std::size_t>(wire::Priority::doubling)] = {2048, setup.slots};
    if (setup.merging)
      config.channels[static_cast<std::size_t>(wire::Priority::merging)] = config.channels[0];
    config.one_hop = setup.one_hop;
    config.max_segments = 4;
    config.set_links({.ordered = setup.ordered, .gather_bytes = 128});
    if (setup.unordered_member >= 0)
      config.links[static_cast<std::size_t>(setup.unordered_member)].ordered = false;
    config.direct_bytes = setup.direct_bytes;
    config.ahead_bytes = setup.ahead_bytes;
    config.tile_block_bytes = setup.tile_block_bytes;
    return config;
  }
  static void parse(const std::vector<std::byte>& bytes, Sent& sent) {
    std::size_t at = 0;
    const auto take = [&](void* to, std::size_t n) {
      if (n > 0) std::memcpy(to, bytes.data() + at, n);
      at += n;
    };
    if (!sent.announced || sent.immediate.kind != wire::Immediate::Kind::message) {
      sent.message.payload.resize(bytes.size() / 4);
      return take(sent.message.payload.data(), sent.message.payload.size() * 4);
    }
    for (Message* m = &sent.message;; m = &sent.more.emplace_back()) {
      at = wire::aligned_section(at);
      take(&m->header, sizeof(wire::Header));
      if (sent.immediate.channel.direction == wire::Direction::up && (m->header.flags & wire::kHasBitmap))
        take(&m->record, sizeof(wire::OperationRecord));
      m->bitmap.resize(m->header.bitmap_bytes / 8);
      take(m->bitmap.data(), m->bitmap.size() * 8);
      m->payload.resize(m->header.payload_bytes / 4);
      take(m->payload.data(), m->payload.size() * 4);
      if ((m->header.flags & wire::kMore) == 0) break;
    }
    ASSERT_EQ(at + wire::kSealBytes, bytes.size()) << "nothing behind the last section but the seal";
    std::uint64_t seal = 0;
    take(&seal, sizeof seal);
    EXPECT_EQ(seal, wire::seal_of(0, bytes.data(), bytes.size() - sizeof seal))
        << "of a lane without a secret";
  }

  verbs::LoopbackNetwork network_;
  engine::LaneContext context_;
  std::shared_ptr<verbs::Device> device_;
  std::unique_ptr<engine::LaneMemory> memory_;
  std::vector<std::uint32_t> slots_used_ =
      std::vector<std::uint32_t>(static_cast<std::size_t>(context_.config.members.count()), 0);
  std::map<std::uint32_t, std::uint32_t> bytes_fed_;  // messages fed, by the channel's number in immediates
};

/// The operation in the tests of one engine: a sum in place of floats, mostly 20 of them, in blocks of 4.
struct HandMade {
  HandMade(HandFed& fed, std::uint64_t epoch, std::vector<float> values)
      : HandMade(fed, epoch, std::move(values), record()) {}
  /// `r` is the operation's record, but for its count.
  HandMade(HandFed& fed, std::uint64_t epoch, std::vector<float> values, wire::OperationRecord r)
      : data(std::move(values)),
        region(fed.device().register_memory(bytes(), MemoryKind::host)),
        operation(fed.layout(epoch, (r.count = data.size(), r)), r,
                  engine::InputView{.base = bytes().data(), .region = region.get()},
                  engine::OutputView{.base = bytes().data(), .region = region.get()}, 1) {
    operation.epoch = epoch;
  }
  static wire::OperationRecord record(std::uint64_t count = 20) {
    wire::OperationRecord record;
    record.count = count;
    record.block_elems = 4;
    return record;
  }
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(data)); }

  std::vector<float> data;
  std::unique_ptr<verbs::MemoryRegion> region;
  engine::Operation operation;
};

}  // namespace nzcl::test
