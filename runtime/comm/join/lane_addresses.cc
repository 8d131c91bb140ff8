#include "runtime/comm/join/lane_addresses.h"

#include <fmt/format.h>

#include <algorithm>
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

/// What differs between two texts, with zeros where they are alike; or the text itself, if they are not
/// equally long. The lanes of a member have much in common, and zeros are what all members then have in
/// common. It is its own inverse.
std::string difference(const std::string& before, std::string text) {
  if (before.size() != text.size()) return text;
  std::transform(text.begin(), text.end(), before.begin(), text.begin(),
                 [](char a, char b) { return static_cast<char>(a ^ b); });
  return text;
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
  for (std::size_t l = 0; l < lanes_.size(); ++l)
    strings.push_back(l == 0 ? lanes_[l].common : difference(lanes_[l - 1].common, lanes_[l].common));
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    const std::string& end = lanes_[l].ends[member];
    strings.push_back(l == 0 ? end : difference(lanes_[l - 1].ends[member], end));
  }
  return bootstrap::encode_strings(strings);
}

std::vector<std::string> LaneAddresses::decode(const std::string& text, std::size_t lanes,
                                               const std::string& who) {
  auto strings = decode_strings_of(who, text);
  if (strings.size() != 2 * lanes)
    throw Error(ErrorCode::mismatch,
                fmt::format("{} gave addresses of {} lane(s) in {} strings, but {} are used", who,
                            strings.size() / 2, strings.size(), lanes));
  for (const std::size_t first :
       {std::size_t{0}, lanes}) {  // of what all are told, and of what this member is
    for (std::size_t l = first + 1; l < first + lanes; ++l)
      strings[l] = difference(strings[l - 1], std::move(strings[l]));
  }
  for (std::size_t l = 0; l < lanes; ++l) strings[l] += strings[lanes + l];
  strings.resize(lanes);
  return strings;
}

}  // namespace nzcl::comm
