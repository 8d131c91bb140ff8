// How messages are stored into staging buffers that other members read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/plan/engine_config.h"
#include "runtime/plan/tuning.h"

namespace nzcl::engine {

/// Reads one byte of every line, and returns how long that took for each KiB.
double read_ns_per_kib(const std::byte* sample, std::uint64_t bytes) noexcept;

/// Chooses, for one peer, between stores that leave a lent message in this core's caches, and stores that go
/// past them to memory (*streamed*).
///
/// Between cores that share a cache, a message that lies there is read faster than from memory. Between cores
/// that share none, lines that are dirty in the other core's cache come several times more slowly than from
/// memory. Which of the two holds is not known beforehand and may change while a program runs, because
/// threads move between cores, and virtual machines between hosts. So it is measured: now and then the
/// receiver of a lent message times how long a sample of it takes to read. The distance between two cores is
/// the same both ways, so what this member measures as a reader it uses as a writer, and nothing has to be
/// told. Both ways stay known, because one message of kStagingTrial is stored in the other way.
///
/// For one thread.
class StagingWay {
 public:
  explicit StagingWay(Staging forced = Staging::automatic) : forced_(forced) {}

  /// Returns true if the next message should be streamed.
  bool next_is_streamed() {
    if (forced_ != Staging::automatic) return forced_ == Staging::streamed;
    return (++messages_ % kStagingTrial == 0) != streamed_;
  }
  /// What holds at present, without the trials.
  bool streamed() const { return forced_ == Staging::automatic ? streamed_ : forced_ == Staging::streamed; }

  /// Returns true if the message that has just come should be timed: every one that was stored in the way
  /// that is not used at present, and few of the others.
  bool should_time(bool streamed) {
    if (forced_ != Staging::automatic) return false;
    return streamed != streamed_ || ++arrivals_ % kStagingSample == 0;
  }
  /// Takes the time that a sample of a message took to read, in ns per KiB.
  void add(bool streamed, double ns_per_kib);
  /// The mean time to read one KiB, or 0 if that was never measured.
  double read_ns(bool streamed) const { return read_ns_[streamed ? 1 : 0]; }

 private:
  /// Decides which way is used from now on. Between kCachedFrom and kStreamedFrom nothing changes.
  void choose();

  Staging forced_;
  bool streamed_ = false;
  std::uint32_t messages_ = 0, arrivals_ = 0;
  std::array<double, 2> read_ns_{};  // cached, streamed
};

}  // namespace nzcl::engine
