// The first part of a split: the members of a communicator tell each other their colours, and each finds out
// which new communicators it is to join. runtime/bootstrap/README.md describes the whole.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/bootstrap/control.h"
#include "runtime/comm/join/part.h"
#include "runtime/comm/join/split_plan.h"

namespace nzcl::comm {

/// Numbers the splits of one communicator. Workers call split() in the same order, and a dedicated aggregator
/// waits for one split after another, so a split has the same number everywhere. Thread-safe.
class Splitter {
 public:
  /// `parent` must outlive it.
  explicit Splitter(const Introduction& parent) : parent_(parent) {}

  /// One call of split(). It has its number from the beginning. While it lives, close() waits.
  class Turn {
   public:
    /// Throws Error{invalid_usage} after close().
    explicit Turn(Splitter& splitter) : splitter_(splitter), number_(splitter.begin()) {}
    ~Turn() { splitter_.end(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    std::uint64_t number() const { return number_; }

   private:
    Splitter& splitter_;
    const std::uint64_t number_;
  };

  /// Collective over the workers. Returns nothing if the colour is negative. Throws what
  /// ControlPlane::gather() throws, and Error{invalid_usage} if all have left.
  std::optional<Part> split(bootstrap::ControlPlane& control, const Turn& turn, SplitChoice choice,
                            bootstrap::Deadline deadline) const;
  /// For a dedicated aggregator, on one thread: waits for the next split, and returns what is to be joined
  /// for each colour. Returns nothing when the communicator has failed, or when a worker has
  /// left, after which no split can end well any more.
  std::optional<std::vector<Part>> next(bootstrap::ControlPlane& control);

  /// Collective over the members of the group, which all know it. `name` is of no other group. The new
  /// communicator does a part of this one's work: it names its members as this one does, and leaves to a
  /// cost model how it exchanges.
  Part part(bootstrap::ControlPlane& control, const SplitGroup& group, const std::string& name) const;

  /// Refuses further turns, and waits until those that have begun are over.
  void close();

 private:
  std::uint64_t begin();
  void end();
  /// The groups, or nothing if all have left.
  std::optional<std::vector<SplitGroup>> meet(bootstrap::ControlPlane& control, std::uint64_t number,
                                              std::string said, bootstrap::Deadline deadline) const;
  /// `name` tells these rounds from all others of the control plane, and `session` the communicator.
  Part join(bootstrap::ControlPlane& control, const SplitGroup& group, const std::string& name,
            const std::string& session) const;
  Part join(bootstrap::ControlPlane& control, std::uint64_t number, const SplitGroup& group) const;

  const Introduction& parent_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::uint64_t next_ = 0;  // the number of the next split
  int under_way_ = 0;
  bool closed_ = false;
};

}  // namespace nzcl::comm
