// The Gloo group beside nzcl's: it does what nzcl does not do itself.
#pragma once

// libtorch was built with Gloo, but says so to its own sources only.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace nzcl_torch {

/// Made collectively with nzcl's group, and not by the first call that needs it: only two ranks take part in
/// a send, and Gloo connects all ranks with each other, so a group that is made by a send could wait for a
/// rank that never sends anything. If it cannot be made, nzcl's group is made all the same, and the calls
/// that need it say why. Thread-safe.
class Fallback {
 public:
  struct Settings {
    int rank = 0, size = 1;
    std::chrono::milliseconds timeout{0};          ///< of Gloo's operations
    std::chrono::milliseconds meeting_timeout{0};  ///< for all ranks to come and connect
    std::string interface;                         ///< nzcl's option
  };

  /// Collective over the ranks of the store, which have just met. Gloo's addresses travel through it.
  Fallback(const c10::intrusive_ptr<c10d::Store>& store, const Settings& settings);
  Fallback(const Fallback&) = delete;
  Fallback& operator=(const Fallback&) = delete;
  ~Fallback() { close(std::chrono::milliseconds(0)); }

  /// Whether NZCL_TORCH_FALLBACK=0 forbids it on this rank.
  bool forbidden() const { return forbidden_; }
  /// Gloo's group, for this call of a user. Throws c10::Error if there is none, and says why.
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group(const char* call);
  /// The timeout of operations that come later.
  void set_timeout(std::chrono::milliseconds timeout);
  /// Ends all operations with errors, on the other ranks too, and those that come later.
  void abort();
  /// Waits until this rank's operations are over, but ends them after `limit`, and frees all of the group.
  void close(std::chrono::milliseconds limit);

 private:
  const int rank_;
  bool forbidden_ = false;
  std::atomic<bool> used_ = false;
  std::mutex mutex_;  // of all below
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::vector<std::shared_ptr<gloo::Context>> contexts_;  // its connections
  std::string missing_;                                   // why there is no group
};

}  // namespace nzcl_torch
