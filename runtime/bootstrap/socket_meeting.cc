#include "runtime/bootstrap/socket_meeting.h"

#include <fmt/format.h>

#include <utility>

#include "nzcl/error.h"
#include "runtime/base/list_text.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/random_secret.h"
#include "runtime/bootstrap/user_key.h"

namespace nzcl::bootstrap {
namespace {

std::variant<Addresses, NotYet> resolved(const SocketPlace& place) {
  try {
    Addresses all = place.resolve(place.host);
    if (!all.empty()) return all;
    return NotYet{.why = fmt::format("the host {} has no address", place.host), .for_long = true};
  } catch (const std::system_error& e) {
    return NotYet{.why = fmt::format("cannot resolve the host {}: {}", place.host, e.code().message()),
                  .for_long = true};
  }
}

void require_secret(const SocketPlace& place, const Addresses& addresses) {
  if (!place.secret.empty() || are_loopback(addresses)) return;
  throw Error(ErrorCode::denied, fmt::format("bootstrap: {} is not a loopback address, so the job's secret "
                                             "is needed: set NZCL_SECRET on every rank to the line "
                                             "that nzcl_info --new-secret prints once",
                                             place.host));
}

/// Whether the host names loopback on every machine, and not only on the one that has this name.
bool is_loopback_everywhere(const std::string& host) {
  return is_address(host) || host.find("localhost") != host.npos || host == "ip6-loopback";
}

std::string addresses_text(const Addresses& addresses) {
  std::string list;
  for (const auto& address : addresses) append_item(list, address.to_string());
  return list;
}

/// Where member 0 listens: on all interfaces, because other hosts may know this host by an address that none
/// of its own interfaces has; or on the loopback addresses that the host is given by.
HubPlace listen_at(const SocketPlace& place, const Addresses& addresses) {
  HubPlace hub{.addresses = {}, .port = place.port, .secret = place.secret};
  if (!are_loopback(addresses)) return hub;
  // Debian gives a host's own name the address 127.0.1.1, but only on this host.
  if (!place.secret.empty() && !is_loopback_everywhere(place.host)) {
    log().info(
        "rank 0: {} is {} here, which only this host can reach; other hosts may know it by another address, "
        "so "
        "rank 0 listens on every interface",
        place.host, addresses_text(addresses));
    return hub;
  }
  hub.addresses = addresses;
  return hub;
}

/// With a secret, member 0 need not know its own address: its name may be published only after it has begun.
std::variant<HubPlace, NotYet> find_hub_place(const SocketPlace& place, const std::string& own_secret) {
  const auto found = resolved(place);
  const auto* addresses = std::get_if<Addresses>(&found);
  if (addresses == nullptr && place.secret.empty()) return std::get<NotYet>(found);
  if (addresses == nullptr) return HubPlace{.addresses = {}, .port = place.port, .secret = place.secret};
  require_secret(place, *addresses);
  HubPlace hub = listen_at(place, *addresses);
  if (!place.secret.empty()) return hub;
  hub.secret = own_secret;
  hub.for_this_user = true;
  return hub;
}

std::variant<MeetingPoint, NotYet> find_meeting_point(const SocketPlace& place) {
  const auto found = resolved(place);
  if (const auto* reason = std::get_if<NotYet>(&found)) return *reason;
  const auto& addresses = std::get<Addresses>(found);
  require_secret(place, addresses);
  if (!place.secret.empty())
    return MeetingPoint{.addresses = addresses, .port = place.port, .secret = place.secret};
  auto key = ask_for_key(place.port);
  if (const auto* reason = std::get_if<NotYet>(&key)) return *reason;
  return MeetingPoint{.addresses = addresses, .port = place.port, .secret = std::get<std::string>(key)};
}

class SocketMeeting final : public Meeting {
 public:
  SocketMeeting(MeetingSettings settings, SocketPlace place)
      : Meeting(std::move(settings)), place_(std::move(place)) {}

  std::variant<HubPlace, NotYet> place(Deadline) override { return find_hub_place(place_, own_secret_); }
  std::variant<MeetingPoint, NotYet> find(Deadline) override { return find_meeting_point(place_); }
  /// Without a secret, the key that was handed out may be that of another session's meeting, which has ended.
  bool secret_is_sure() const override { return !place_.secret.empty(); }

 private:
  const SocketPlace place_;
  const std::string own_secret_ = rank() == 0 ? random_secret() : "";
};

}  // namespace

std::unique_ptr<Meeting> make_socket_meeting(MeetingSettings settings, SocketPlace place) {
  settings.point_name = fmt::format("{}:{} ({})", place.host, place.port, place.why);
  return std::make_unique<SocketMeeting>(std::move(settings), std::move(place));
}

}  // namespace nzcl::bootstrap
