#include "runtime/bootstrap/meeting_point.h"

#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "runtime/bootstrap/host_address.h"

namespace nzcl::bootstrap {

using nlohmann::json;

std::string encode_point(int port, const std::string& secret) {
  return json_text({{"hosts", host_addresses()}, {"host_id", host_id()}, {"port", port}, {"secret", secret}});
}

std::optional<MeetingPoint> parse_point(const std::string& text) {
  try {
    const json j = json::parse(text);
    const json& port = j.at("port");
    if (!port.is_number_integer() || port < 1 || port > 65535) return std::nullopt;
    MeetingPoint point{.addresses = {}, .port = port, .secret = j.at("secret")};
    std::vector<std::string> hosts = j.at("hosts");
    if (j.at("host_id") == host_id()) hosts = {own_loopback()};
    for (const std::string& host : hosts) point.addresses.push_back(asio::ip::make_address(host));
    if (!point.addresses.empty()) return point;
  } catch (const json::exception&) {
  } catch (const std::system_error&) {
  }
  return std::nullopt;
}

}  // namespace nzcl::bootstrap
