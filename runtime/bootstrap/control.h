// The control plane: a star of authenticated TCP connections around one member that lives as long as the
// communicator. It is what members make of a meeting, and all that they tell each other goes over it. It
// tells every member about the first failure, notices members that die, and lets all leave together.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "runtime/base/failure.h"
#include "runtime/bootstrap/columns.h"
#include "runtime/bootstrap/meeting.h"
#include "runtime/bootstrap/regrouping.h"

namespace nzcl::bootstrap {

/// How far a member has come with its operations, which all members start in the same order.
struct Progress {
  std::uint64_t begun = 0;     // how many it has started, including those that it refused
  std::uint64_t wanted = 0;    // the same without refused ones at the end, for which it does not wait
  std::uint64_t finished = 0;  // all operations before this number are over
};

/// Owns one thread ("nzcl-control"), which sleeps until one of its sockets has something to read. All calls
/// are thread-safe. Member 0 is the *hub*: every other member has one connection, to the hub. If the hub
/// dies, the first living member behind it takes its place.
///
/// How a failure ends the communicator:
///  1. A member calls abort(), or its connection closes. The hub learns of either.
///  2. The hub sends the failure to all members, and ignores every later one. If a transport reported a lost
///     peer, the hub first waits for a second whether a connection closes: a closed connection tells for
///     certain which member has died, while a transport often cannot say it.
///  3. Every member stops posting writes, waits until its own writes have ended, and calls quiesced().
///  4. When all members that live have called it, wait_quiesced() returns true on all of them. Only now may
///     buffers be given back to their owners, because no write can arrive any more.
/// A member that has reported a failure and hears nothing from the hub fails by itself.
///
/// How the members leave in good order: all call leave(), and then pass steps 3 and 4 without a failure.
class ControlPlane {
 public:
  /// Collective. Returns when all members have come to the meeting and are connected. Throws Error{timeout}
  /// that names who has not come by the deadline, and what is wrong with the meeting otherwise; all that have
  /// come learn it. Until settle(), a member that leaves has left the meeting, and then it has died.
  /// All are told `introduction`, a text in UTF-8 of at most some ten KiB.
  static std::unique_ptr<ControlPlane> join(Meeting& meeting, Deadline deadline,
                                            std::string introduction = {});
  /// Those of all members, by position.
  virtual const std::vector<std::string>& introductions() const = 0;

  struct Settings {
    /// The members' names by position, for error messages: "rank 3", "aggregator 0".
    std::vector<std::string> names;
    /// By position, whether the member stays until all others have left. Empty: no member does.
    std::vector<bool> serves;
    /// All members are in one network namespace, so each listens on its loopback address only.
    bool one_host = false;
  };
  /// Collective, once the members know each other, and before they tell each other addresses of memory: from
  /// now on, they find out without the hub which of them have died. Throws what gather() throws.
  virtual void settle(Settings settings, Deadline deadline) = 0;
  /// The same in two halves, for callers that tell each other more at the same time. From open_port() on,
  /// this member listens, and calls the others by their names. Returns what all others are to be told of it.
  virtual std::string open_port(Settings settings) = 0;
  /// `told` is what open_port() has returned on all members, by position. Throws Error{mismatch} for anything
  /// else.
  virtual void settle(const std::vector<std::string>& told) = 0;
  /// `progress` says how far this member has come. If the communicator fails, or has failed, `on_failure`
  /// runs once, after failed() has become true. Both run on the control thread and must not block.
  virtual void watch(std::function<Progress()> progress, std::function<void()> on_failure) = 0;
  /// Forgets both. When it has returned, neither runs any more. Not to be called by them.
  virtual void unwatch() = 0;
  /// The address of this host on its connections with the other members ("10.0.0.7"), or "" if there are
  /// none, or only within the host.
  virtual const std::string& local_address() const = 0;
  virtual ~ControlPlane() = default;

  /// Reports a failure to the hub. Only the first failure of a communicator counts. Does not block.
  virtual void abort(Failure failure) = 0;
  /// Does so after this time, unless do_not_abort() is called before. Neither blocks.
  virtual void abort_after(std::chrono::nanoseconds time, Failure failure) = 0;
  virtual void do_not_abort() = 0;
  virtual bool failed() const noexcept = 0;  // costs one atomic load
  virtual std::optional<Failure> failure() const = 0;

  /// Says that no write of this member is in flight, and that none will follow.
  virtual void quiesced() = 0;
  /// Returns true when every member that lives has called quiesced(), and false when the deadline comes
  /// first. To be called after failed() has become true, or after leave() has returned true.
  virtual bool wait_quiesced(Deadline deadline) = 0;

  /// Says that this member has started `operations` operations and waits for them. If a member has left that
  /// did not join all of these, the communicator fails with Error{invalid_usage}, which names it, as soon as
  /// everybody has finished those that it did join. Costs one atomic load unless a member has left.
  virtual void has_begun(std::uint64_t operations) = 0;
  /// Collective. Returns true when all members have called it. No operation may be started afterwards.
  /// Members that serve call it too, but nobody waits for them. A connection that closes afterwards is not a
  /// failure. Until it returns, members must go on serving each other. Returns false when the deadline comes
  /// first, or when the communicator has failed.
  virtual bool leave(Deadline deadline) = 0;

  // --- Gathers: collectives of some members, for which each call brings a name that is used once. Gathers of
  // different names are independent of each other and may be under way at the same time.

  /// Collective over `members`, positions in the order of the parts, this member among them, or over all
  /// members of the control plane if the list is empty; all pass the same. Returns the parts of all, or
  /// nothing when all members of the control plane have left. All members get the same outcome, because the
  /// hub decides it: at the deadline of the first of them, it is Error{timeout} that names who is missing,
  /// also for those that come later; if one of them has left, it is Error{invalid_usage}. Neither fails the
  /// communicator. Throws the communicator's Error if it fails meanwhile. Deadline::max() means no deadline.
  virtual std::optional<std::vector<std::string>> gather(const std::string& name,
                                                         const std::vector<int>& members, std::string part,
                                                         Deadline deadline) = 0;
  /// The same, but each member has a row with a text for each of the members, and returns what these have
  /// told it. No member is told what is meant for another one.
  virtual std::optional<std::vector<std::string>> tell_each(const std::string& name,
                                                            const std::vector<int>& members, const Row& row,
                                                            Deadline deadline) = 0;

  /// By which members make a communicator that takes the place of theirs. It works once the control plane has
  /// settled, and a communicator that has not failed yet fails by it.
  virtual Regrouping& regrouping() = 0;
};

}  // namespace nzcl::bootstrap
