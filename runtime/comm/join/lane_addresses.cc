#include "runtime/comm/join/lane_addresses.h"

#include <fmt/format.h>

#include "nzcl/error.h"
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

LaneAddresses LaneAddresses::decode(const std::string& text, std::size_t lanes, std::size_t members,
                                    const std::string& who) {
  LaneAddresses all(members);
  all.addresses_ = decode_strings_of(who, text);
  if (all.addresses_.size() != lanes * members) {
    throw Error(ErrorCode::mismatch,
                fmt::format("{} gave {} addresses of its lanes; {} lane(s) have {} for {} members", who,
                            all.addresses_.size(), lanes, lanes * members, members));
  }
  return all;
}

std::string LaneAddresses::encode() const { return bootstrap::encode_strings(addresses_); }

}  // namespace nzcl::comm
