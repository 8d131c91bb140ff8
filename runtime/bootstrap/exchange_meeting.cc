#include "runtime/bootstrap/exchange_meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "nzcl/error.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/meeting_point.h"
#include "runtime/bootstrap/random_secret.h"

namespace nzcl::bootstrap {
namespace {

// The first letter of a part: what a member has to say in this round, or why it gives up. The parts of
// versions that met in another way began with a D.
constexpr char kPart = 'M', kFailure = 'E';
constexpr int kRounds = 2;

class ExchangeMeeting final : public Meeting {
 public:
  ExchangeMeeting(MeetingSettings settings, Allgather allgather,
                  std::function<std::optional<Failure>()> ended_by)
      : Meeting(std::move(settings)), allgather_(std::move(allgather)), ended_by_(std::move(ended_by)) {}

  std::optional<Failure> ended_by() const override { return ended_by_ ? ended_by_() : std::nullopt; }

  std::variant<HubPlace, NotYet> place(Deadline deadline) override {
    if (place_.secret.empty()) {
      const auto hosts = round(host_id(), deadline);
      const bool one_host =
          std::all_of(hosts.begin(), hosts.end(), [&](const auto& host) { return host == hosts.front(); });
      if (one_host) place_.addresses = resolve(own_loopback());
      place_.secret = random_secret();
    }
    return place_;
  }
  void publish(int port, Deadline deadline) override { round(encode_point(port, place_.secret), deadline); }

  std::variant<MeetingPoint, NotYet> find(Deadline deadline) override {
    if (!point_) {
      round(host_id(), deadline);
      point_ = parse_point(round("", deadline).front());
      if (!point_)
        throw Error(ErrorCode::mismatch, settings().name(0) +
                                             " told where it listens in a way that this version does not "
                                             "understand");
    }
    return *point_;
  }
  bool secret_is_sure() const override { return true; }

  void give_up(const Failure& why, Deadline deadline) noexcept override {
    if (over_ || rounds_ == kRounds) return;
    over_ = true;
    try {
      allgather_(kFailure + json_text({{"code", static_cast<int>(why.code)}, {"text", why.text}}), deadline);
    } catch (const std::exception&) {  // the caller has its own failure, which comes first
    }
  }

 private:
  std::vector<std::string> round(const std::string& mine, Deadline deadline) {
    over_ = true;  // until the round has ended well
    auto parts = allgather_(kPart + mine, deadline);
    if (parts.size() != static_cast<std::size_t>(size()))
      throw Error(ErrorCode::mismatch,
                  "the meeting returned a list that does not have one part for each member");
    for (std::string& part : parts) {
      if (part.starts_with(kFailure)) throw parse_error(std::string_view(part).substr(1));
      if (!part.starts_with(kPart))
        throw Error(ErrorCode::mismatch,
                    "members run different versions of nzcl, which meet in different ways");
      part.erase(0, 1);
    }
    over_ = false;
    ++rounds_;
    return parts;
  }

  const Allgather allgather_;
  const std::function<std::optional<Failure>()> ended_by_;  // or none
  HubPlace place_;                     // without a secret until the members' hosts are known
  std::optional<MeetingPoint> point_;  // once member 0 has told it
  int rounds_ = 0;                     // that have ended well
  bool over_ = false;                  // no round can follow, because one has failed
};

}  // namespace

std::unique_ptr<Meeting> make_exchange_meeting(MeetingSettings settings, Allgather allgather,
                                               std::function<std::optional<Failure>()> ended_by) {
  return std::make_unique<ExchangeMeeting>(std::move(settings), std::move(allgather), std::move(ended_by));
}

}  // namespace nzcl::bootstrap
