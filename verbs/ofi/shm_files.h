// The files that a device of libfabric's shm has in /dev/shm.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "verbs/ofi/shm_room.h"
#include "verbs/trial.h"

namespace nzcl::verbs::ofi {

/// Sees to it that endpoints have all their memory from the beginning, so that none ends the process later.
/// Thread-safe.
class ShmFiles {
 public:
  /// Keeps room for the endpoints that are announced. Throws Error{unavailable} if there is none, or if there
  /// are more members than libfabric's shm can join.
  std::unique_ptr<Trial> begin_trial(const TrialOptions& options);

  /// To be called before an endpoint is opened. Throws Error{unavailable} if there is no room for it.
  void make_room();
  /// To be called with the address of an endpoint that has been opened. Throws Error{system}.
  static void fill(const std::string& address);

 private:
  std::mutex mutex_;
  std::shared_ptr<ShmRoom> room_;  // nullptr: none is kept
};

}  // namespace nzcl::verbs::ofi
