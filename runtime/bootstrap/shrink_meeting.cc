#include "runtime/bootstrap/shrink_meeting.h"

#include <optional>
#include <utility>

#include "nzcl/error.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/meeting_point.h"
#include "runtime/bootstrap/random_secret.h"

namespace nzcl::bootstrap {
namespace {

class ShrinkMeeting final : public Meeting {
 public:
  ShrinkMeeting(MeetingSettings settings, Shrinking& shrinking, std::uint64_t attempt, bool one_host)
      : Meeting(std::move(settings)), shrinking_(shrinking), attempt_(attempt), one_host_(one_host) {}

  bool is_over() const override { return !shrinking_.is_open(attempt_); }

  std::variant<HubPlace, NotYet> place(Deadline) override {
    HubPlace place{.addresses = {}, .port = 0, .secret = secret_, .for_this_user = false};
    if (one_host_) place.addresses = resolve(own_loopback());
    return place;
  }
  void publish(int port, Deadline) override { shrinking_.tell_place(attempt_, encode_point(port, secret_)); }

  std::variant<MeetingPoint, NotYet> find(Deadline deadline) override {
    const auto place = shrinking_.place(attempt_, deadline);
    if (!place) {
      if (is_over()) throw Error(ErrorCode::aborted, "shrink: the attempt is over");
      return NotYet{.why = settings().name(0) + " has not told yet where it listens", .for_long = false};
    }
    auto point = parse_point(*place);
    if (!point)
      throw Error(
          ErrorCode::mismatch,
          settings().name(0) + " told where it listens in a way that this version does not understand");
    return *point;
  }
  bool secret_is_sure() const override { return true; }

 private:
  Shrinking& shrinking_;
  const std::uint64_t attempt_;
  const bool one_host_;
  const std::string secret_ = random_secret();
};

}  // namespace

std::unique_ptr<Meeting> make_shrink_meeting(MeetingSettings settings, Shrinking& shrinking,
                                             std::uint64_t attempt, bool one_host) {
  return std::make_unique<ShrinkMeeting>(std::move(settings), shrinking, attempt, one_host);
}

}  // namespace nzcl::bootstrap
