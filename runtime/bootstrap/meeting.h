// How the members of a communicator find its hub: where member 0 listens, and with which secret. It is all
// that a meeting yields; whatever else members tell each other goes over the control plane.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "runtime/base/failure.h"
#include "runtime/base/json_text.h"
#include "runtime/bootstrap/addresses.h"

namespace nzcl::bootstrap {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// What a process does in the job.
enum class Role { worker, aggregator };

/// Where member 0 can be reached, and the secret that both sides prove to know.
struct MeetingPoint {
  Addresses addresses;  // which the members try in turn
  int port = 0;
  std::string secret;
};

/// Where member 0 listens.
struct HubPlace {
  Addresses addresses;  // none: on every interface
  int port = 0;         // 0: the system chooses one
  std::string secret;
  /// The secret is this meeting's own. Member 0 hands it to processes of its user on its host (user_key.h).
  bool for_this_user = false;
};

/// What stands in for a place that is not known yet. It is asked for again until the deadline.
struct NotYet {
  std::string why;
  /// It may be long until the place is known: this is logged once, and asked for less often.
  bool for_long = false;
};

struct MeetingSettings {
  int position = 0, size = 1;            // of this member, and of the meeting
  std::string session;                   // only members of the same session meet
  std::string who;                       // this member, for error messages: "rank 3 (pid 17 on host)"
  std::function<std::string(int)> name;  // the member at a position, for error messages: "rank 3"
  std::string point_name;  // the meeting point, for error messages: "10.0.0.1:29500 (from MASTER_ADDR)"
};

/// A meeting of size() members. Its calls belong to the control path: they may block, and what they throw
/// ends the meeting. Used by one thread, once.
class Meeting {
 public:
  explicit Meeting(MeetingSettings settings) : settings_(std::move(settings)) {
    settings_.session = valid_utf8(settings_.session);  // so that it equals what arrives in a hello
  }
  virtual ~Meeting() = default;
  const MeetingSettings& settings() const { return settings_; }
  int rank() const { return settings_.position; }  // this member's position, 0 .. size() - 1
  int size() const { return settings_.size; }

  /// Why this meeting cannot end well any more, if so. Asked again and again by all members.
  virtual std::optional<Failure> ended_by() const { return std::nullopt; }
  /// Throws that as an Error.
  void throw_if_ended() const {
    if (const auto failure = ended_by()) throw Error(failure->code, failure->text);
  }

  // --- On member 0
  /// Where to listen. Called before every attempt.
  virtual std::variant<HubPlace, NotYet> place(Deadline deadline) = 0;
  /// Member 0 listens at this port.
  virtual void publish(int /*port*/, Deadline) {}
  virtual void all_have_come() {}

  // --- On every other member
  /// Where member 0 listens. Called before every attempt to connect.
  virtual std::variant<MeetingPoint, NotYet> find(Deadline deadline) = 0;
  /// Whether this member gives up if somebody at the meeting point does not know the secret. Otherwise the
  /// point may have been left over by another job, and find() is called again.
  virtual bool secret_is_sure() const { return false; }

  /// Tells the others that this member will not come, if the meeting has a way to do so. Does not throw.
  virtual void give_up(const Failure& /*why*/, Deadline) noexcept {}

 private:
  MeetingSettings settings_;
};

}  // namespace nzcl::bootstrap
