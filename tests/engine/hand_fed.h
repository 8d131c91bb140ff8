// One engine alone: the test writes messages into its channels by hand and reads what it wants to send from
// its outbox.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/bitmap.h"
#include "runtime/engine/lane_memory.h"
#include "runtime/engine/operation.h"
#include "runtime/engine/slice_layout.h"
#include "verbs/loopback/network.h"

namespace nzcl::test {

/// A message in parts.
struct Message {
  wire::Header header;
  wire::OperationRecord record;  // upwards with kHasBitmap
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
    std::uint32_t slots = 4;          // of either class
    std::uint64_t slot_bytes = 1024;  // bulk; express slots have 512
    bool mirrored = false;
    std::uint64_t direct_bytes = 1 << 20, ahead_bytes = 0;
  };

  explicit HandFed(const Setup& setup) : context_(make_config(setup)) {
    device_ = network_.device();
    memory_ = std::make_unique<engine::LaneMemory>(context_.config, *device_);
    memory_->attach(context_);
    for (int member = 0; member < context_.config.members.count(); ++member) {
      // Peers' memory is never touched here: any address will do, as long as each has its own.
      if (member != setup.self)
        engine::LaneMemory::attach_peer(context_, member, {static_cast<std::uint64_t>(member + 1) << 32, 1});
    }
  }

  engine::LaneContext& context() { return context_; }
  verbs::Device& device() { return *device_; }
  engine::SliceLayout layout(std::uint64_t epoch, const wire::OperationRecord& r) const {
    return engine::layout_of(context_.config, epoch, r);
  }

  /// Puts a message into the next slot of the channel from `member` and announces it. Lengths of the header
  /// are filled in unless set.
  void feed(int member, wire::Direction direction, const Message& m, wire::Class c = wire::Class::express) {
    feed_sections(member, direction, {m}, c);
  }
  /// The same of several sections: all but the last say kMore, and with `more_at_end` the last one too.
  void feed_sections(int member, wire::Direction direction, std::vector<Message> sections, wire::Class c,
                     bool more_at_end = false) {
    const wire::ChannelId channel{static_cast<std::uint16_t>(member), direction, c};
    const std::uint32_t slot = slots_used_[static_cast<std::size_t>(member)]++ % context_.config.of(c).slots;
    auto* const begin = reinterpret_cast<std::byte*>(
        memory_->remote().address +
        engine::ring_offset(context_.config, context_.config.members.self, channel) +
        slot * context_.config.of(c).slot_bytes);
    std::uint64_t at = 0;
    const auto append = [&](const void* data, std::size_t bytes) {
      if (at + bytes <= context_.config.of(c).slot_bytes) std::memcpy(begin + at, data, bytes);
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
    auto& link = context_.link(c, channel.member);
    (direction == wire::Direction::up ? link.receive_up : link.receive_down)
        .arrived(static_cast<std::uint16_t>(slot));
  }

  struct Sent {
    int peer;
    wire::Immediate immediate;
    bool announced;
    verbs::RemoteMemory target;
    Message message;            // of messages the first section; of direct writes only the payload
    std::vector<Message> more;  // further sections
  };
  /// Takes everything out of the outbox, and gives the buffers back as completions would.
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
                .message = {},
                .more = {}};
      parse(bytes, sent);
      all.push_back(std::move(sent));
      const auto context = engine::WriteContext::decode(w.context);
      if (context.kind == engine::WriteContext::Kind::staging)
        context_.pool(context.size_class).release(context.index);
      context_.outbox.pop(1);
    }
    return all;
  }
  /// Lets an engine go on until it stands still. What it sent then, without credits.
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
  static engine::EngineConfig make_config(const Setup& setup) {
    engine::EngineConfig config;
    config.members = {.self = setup.self, .workers = setup.workers, .dedicated = setup.dedicated};
    config.classes = {engine::ClassConfig{setup.slot_bytes, setup.slots},
                      engine::ClassConfig{512, setup.slots}};
    config.classes[static_cast<std::size_t>(wire::Class::express)].mirrored = setup.mirrored;
    config.max_segments = 4;
    config.gather_bytes = 128;
    config.direct_bytes = setup.direct_bytes;
    config.ahead_bytes = setup.ahead_bytes;
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
      take(m->bitmap.data(), m->header.bitmap_bytes);
      m->payload.resize(m->header.payload_bytes / 4);
      take(m->payload.data(), m->payload.size() * 4);
      if ((m->header.flags & wire::kMore) == 0) break;
    }
    EXPECT_EQ(at, bytes.size()) << "nothing behind the last section";
  }

  verbs::LoopbackNetwork network_;
  engine::LaneContext context_;
  std::shared_ptr<verbs::Device> device_;
  std::unique_ptr<engine::LaneMemory> memory_;
  std::vector<std::uint32_t> slots_used_ = std::vector<std::uint32_t>(16, 0);
};

/// An in-place sum of floats (20, mostly) in blocks of 4: what the tests of one engine reduce.
struct HandMade {
  HandMade(HandFed& fed, std::uint64_t epoch, std::vector<float> values)
      : data(std::move(values)),
        region(fed.device().register_memory(bytes(), MemoryKind::host)),
        operation(fed.layout(epoch, record(data.size())), record(data.size()),
                  engine::InputView{.base = bytes().data(),
                                    .region = region.get(),
                                    .by_ordinal = false,
                                    .place = {},
                                    .stride = 0},
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
