#include "runtime/comm/join/split_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "nzcl/error.h"
#include "runtime/base/json_text.h"

namespace nzcl::comm {
namespace {

using nlohmann::json;

int read_int(const json& value) {
  // A number that is unsigned and too large for std::int64_t would become another one.
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT32_MAX});
  const std::int64_t number = fits ? value.get<std::int64_t>() : 0;
  if (!fits || number < std::numeric_limits<int>::min() || number > std::numeric_limits<int>::max())
    throw Error(ErrorCode::mismatch, "split: a member sent a number that is no int");
  return static_cast<int>(number);
}

}  // namespace

std::string SplitChoice::encode() const { return json_text({{"color", color}, {"key", key}}); }

SplitChoice SplitChoice::decode(const std::string& text) {
  try {
    const json j = json::parse(text);
    return {.color = read_int(j.at("color")), .key = read_int(j.at("key"))};
  } catch (const json::exception& e) {
    throw Error(
        ErrorCode::mismatch,
        fmt::format("split: a member sent a choice that this version does not understand: {}", e.what()));
  }
}

std::vector<SplitGroup> plan_split(const engine::Membership& parent, const std::vector<std::string>& said) {
  const engine::Members& members = parent.members;
  std::map<int, std::vector<std::pair<int, int>>> by_color;  // key and rank of each worker
  for (int rank = 0; rank < members.workers; ++rank) {
    const auto position = static_cast<std::size_t>(parent.position_of[static_cast<std::size_t>(rank)]);
    const SplitChoice choice = SplitChoice::decode(said.at(position));
    if (choice.color >= 0) by_color[choice.color].emplace_back(choice.key, rank);
  }
  std::vector<SplitGroup> groups;
  for (auto& [color, workers] : by_color) {
    std::sort(workers.begin(), workers.end());
    SplitGroup group{.color = color, .members = {}, .workers = static_cast<int>(workers.size())};
    for (const auto& [key, rank] : workers) group.members.push_back(rank);
    for (int a = 0; a < members.dedicated; ++a) group.members.push_back(members.aggregator_member(a));
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace nzcl::comm
