// The control plane: a star of authenticated TCP connections around member 0 that lives as long as the
// communicator. It tells every member about the first failure, notices members that die, and lets all leave
// together.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "nzcl/error.h"
#include "runtime/bootstrap/bootstrap.h"

namespace nzcl::bootstrap {

/// The first failure of a communicator, the same on every member.
struct Failure {
  ErrorCode code = ErrorCode::internal;
  std::string text;
};

/// Owns one thread ("nzcl-control") that sleeps in the sockets. All calls are thread-safe.
///
/// Abort protocol: any member's abort(), or a lost connection, reaches member 0 (the hub); the hub sends the
/// first failure to all (a transport's report of a lost peer only after a second in which no member's
/// connection closed: the closed connection knows better who died); every member stops posting writes and
/// calls quiesced(); when all living members have, wait_quiesced() returns true everywhere, and only then may
/// buffers be given back to their owners.
class ControlPlane {
 public:
  struct Settings {
    std::vector<std::string> names;  // of the members, for messages: "rank 3", "aggregator 0"
    std::vector<bool> serves;        // members that stay until all others have left; empty: none
  };
  /// Collective over `bootstrap`. `on_failure` runs once, on the control thread, after failed() has become
  /// true; it must not block.
  static std::unique_ptr<ControlPlane> join(Bootstrap& bootstrap, Settings settings, Deadline deadline,
                                            std::function<void()> on_failure);
  virtual ~ControlPlane() = default;

  /// Reports a failure; only the first of the communicator counts. Does not block.
  virtual void abort(Failure failure) = 0;
  virtual bool failed() const noexcept = 0;  // cheap: one atomic load
  virtual std::optional<Failure> failure() const = 0;

  virtual void quiesced() = 0;
  /// True when every living member is quiet; false when the deadline came first. After failed(), or after
  /// leave() returned true.
  virtual bool wait_quiesced(Deadline deadline) = 0;

  /// Collective goodbye: true when all members have said it, but for those that serve: they only wait for it.
  /// After it a lost connection is no failure. Until it returns, members go on serving each other. False:
  /// deadline, or failed().
  virtual bool leave(Deadline deadline) = 0;
};

}  // namespace nzcl::bootstrap
