#include "runtime/bootstrap/regroup_meeting.h"

#include <optional>
#include <utility>

#include "nzcl/error.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/meeting_point.h"
#include "runtime/bootstrap/random_secret.h"

namespace nzcl::bootstrap {
namespace {

/// The first member listens for the members of the attempt alone.
class RegroupMeeting : public Meeting {
 public:
  RegroupMeeting(MeetingSettings settings, Regrouping& regrouping, std::uint64_t attempt, bool one_host)
      : Meeting(std::move(settings)), regrouping_(regrouping), attempt_(attempt), one_host_(one_host) {}

  std::optional<Failure> ended_by() const override {
    if (regrouping_.is_open(attempt_)) return std::nullopt;
    return Failure{ErrorCode::aborted, "the attempt to replace the communicator is over"};
  }

  std::variant<HubPlace, NotYet> place(Deadline) override {
    HubPlace place{.addresses = {}, .port = 0, .secret = secret_, .for_this_user = false};
    if (one_host_) place.addresses = resolve(own_loopback());
    return place;
  }
  void publish(int port, Deadline) override { tell(port, secret_); }

  std::variant<MeetingPoint, NotYet> find(Deadline deadline) override {
    const auto place = regrouping_.place(attempt_, deadline);
    if (!place)
      return NotYet{.why = settings().name(0) + " has not told yet where it listens", .for_long = false};
    auto point = parse_point(*place);
    if (!point)
      throw Error(
          ErrorCode::mismatch,
          settings().name(0) + " told where it listens in a way that this version does not understand");
    return *point;
  }
  bool secret_is_sure() const override { return true; }

 protected:
  void tell(int port, const std::string& secret) {
    regrouping_.tell_place(attempt_, encode_point(port, secret));
  }

 private:
  Regrouping& regrouping_;
  const std::uint64_t attempt_;
  const bool one_host_;
  const std::string secret_ = random_secret();
};

/// The first member listens where others find it too.
class OpenRegroupMeeting final : public RegroupMeeting {
 public:
  OpenRegroupMeeting(MeetingSettings settings, Regrouping& regrouping, std::uint64_t attempt,
                     std::unique_ptr<Meeting> open)
      : RegroupMeeting(std::move(settings), regrouping, attempt, false), open_(std::move(open)) {}

  std::variant<HubPlace, NotYet> place(Deadline deadline) override {
    auto place = open_->place(deadline);
    if (const auto* found = std::get_if<HubPlace>(&place)) secret_ = found->secret;
    return place;
  }
  void publish(int port, Deadline deadline) override {
    open_->publish(port, deadline);
    tell(port, secret_);
  }
  void all_have_come() override { open_->all_have_come(); }

 private:
  const std::unique_ptr<Meeting> open_;
  std::string secret_;
};

}  // namespace

std::unique_ptr<Meeting> make_regroup_meeting(MeetingSettings settings, Regrouping& regrouping,
                                              std::uint64_t attempt, bool one_host) {
  return std::make_unique<RegroupMeeting>(std::move(settings), regrouping, attempt, one_host);
}

std::unique_ptr<Meeting> make_regroup_meeting(MeetingSettings settings, Regrouping& regrouping,
                                              std::uint64_t attempt, std::unique_ptr<Meeting> open) {
  if (!open) return make_regroup_meeting(std::move(settings), regrouping, attempt, false);
  return std::make_unique<OpenRegroupMeeting>(std::move(settings), regrouping, attempt, std::move(open));
}

}  // namespace nzcl::bootstrap
