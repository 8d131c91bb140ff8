// What the engines of one lane are told once, and never changes. Equal on all members where it shapes the
// wire.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/engine/members.h"
#include "runtime/wire/immediate.h"
#include "runtime/wire/message.h"

namespace nzcl::engine {

/// Operations that may be in flight on a communicator; a further call waits for a place.
inline constexpr std::uint32_t kMaxOperations = 64;

/// Slices that a worker may have started with one owner in one class and not seen complete. It bounds the
/// aggregator's bitmaps (window x ranks x slot/2 bytes) and is enough for the next slices' bitmaps to be
/// there before the current one is summed.
inline constexpr std::uint64_t kWindow = 16;
static_assert(65536 % kWindow == 0, "direct immediates name a slice by its sequence modulo 2^16");
/// Fewer only as far as ahead_bytes says, but these: while one is summed the next one is sent.
inline constexpr std::uint64_t kLeastWindow = 2;
/// The same where the class is mirrored: a worker sees its own aggregator's progress only, and that may be as
/// far ahead of another's as the other's worker is ahead of its aggregator.
inline constexpr std::uint64_t kMirroredWindow = kWindow / 2;

/// How far bitmaps that do not fit one message with their data run ahead of the data.
inline constexpr std::uint64_t kBitmapsAhead = 2;

/// A bulk message of so many bytes is worth its costs; smaller ones take further slices along. (8 ranks on
/// links of 1 Gb/s, d = 0.01: 89, 78 and 72 ms with 16, 32 and 64 KiB; contributions of 64, 48 and 32 KiB, d
/// = 0.04: 90.0, 91.5, 91.3 % of the bound, 0.01 61.8, 62.1, 61.3.)
inline constexpr std::uint64_t kWorthAMessage = 48 << 10;

struct ClassConfig {
  std::uint64_t slot_bytes = 0;  // multiple of 64
  std::uint32_t slots = 0;       // per channel, 1 .. 32768
  // Messages stay in the sender's staging buffers and are read there (verbs::Limits::readable); otherwise
  // they are written into rings of the receiver.
  bool lent = false;
  // One hop: a worker sends its slices of this class to every aggregator, and each sums them for the worker
  // of its own member. All workers are aggregators, and a slice is one message (so only the express class).
  bool mirrored = false;
};

struct EngineConfig {
  Members members;
  int lane = 0;
  int lanes = 1;
  std::array<ClassConfig, wire::kClasses> classes;  // by wire::Class
  std::size_t max_segments = 1;                     // 1 .. verbs::kMaxSegments
  std::uint64_t gather_bytes = 4096;
  std::uint64_t direct_bytes = 16384;
  bool ordered = false;  // the transport shows writes in order (verbs::Limits::ordered)
  std::uint64_t slice_bytes = 0;
  // What a worker's incomplete slices may keep of its cache (each weighs by its data, at most its part of the
  // tensor), divided evenly between owners; kLeastWindow slices with each may be more. 0: what kWindow
  // allows.
  std::uint64_t ahead_bytes = 0;
  int numa_node = -1;  // for channels and staging buffers; -1: anywhere

  const ClassConfig& of(wire::Class c) const { return classes[static_cast<std::size_t>(c)]; }
  /// Gather entries of a message: what is lent is composed in one piece, and so is what is mirrored, as the
  /// result may replace its source before it has left.
  std::size_t segments_of(wire::Class c) const { return of(c).lent || of(c).mirrored ? 1 : max_segments; }
  std::uint32_t owners() const { return static_cast<std::uint32_t>(members.aggregators() * lanes); }
};

/// The largest tensor that travels as one express slice: with its bitmap and a message's fixed parts it fills
/// a slot.
inline std::uint64_t express_bytes(const EngineConfig& config) {
  return config.of(wire::Class::express).slot_bytes - wire::kMaxOverhead;
}

}  // namespace nzcl::engine
