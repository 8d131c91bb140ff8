#include "runtime/comm/join/lane_addresses.h"

#include <fmt/format.h>

#include <utility>

#include "nzcl/error.h"
#include "runtime/bootstrap/columns.h"
#include "runtime/bootstrap/string_list.h"

namespace nzcl::comm {
namespace {

std::vector<std::string> decode_strings_of(const std::string& who, const std::string& text) {
  try {
    return bootstrap::decode_strings(text);
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("{}: the addresses of its lanes: {}", who, e.what()));
  }
}

}  // namespace

void LaneAddresses::add(const std::vector<std::string>& addresses) {
  const std::size_t common = bootstrap::common_bytes(addresses);
  Lane lane{.common = addresses.front().substr(0, common), .ends = {}};
  for (const std::string& address : addresses) lane.ends.push_back(address.substr(common));
  lanes_.push_back(std::move(lane));
}

std::string LaneAddresses::told(std::size_t member) const {
  std::vector<std::string> strings;
  for (const Lane& lane : lanes_) strings.push_back(lane.common);
  for (const Lane& lane : lanes_) strings.push_back(lane.ends[member]);
  return bootstrap::encode_strings(strings);
}

std::vector<std::string> LaneAddresses::decode(const std::string& text, std::size_t lanes,
                                               const std::string& who) {
  auto strings = decode_strings_of(who, text);
  if (strings.size() != 2 * lanes)
    throw Error(ErrorCode::mismatch,
                fmt::format("{} gave addresses of {} lane(s) in {} strings, but {} are used", who,
                            strings.size() / 2, strings.size(), lanes));
  for (std::size_t l = 0; l < lanes; ++l) strings[l] += strings[lanes + l];
  strings.resize(lanes);
  return strings;
}

}  // namespace nzcl::comm
