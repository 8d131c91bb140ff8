#include "runtime/plan/membership.h"

#include <algorithm>

namespace nzcl::engine {

Groups Groups::by_name(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  std::vector<int> group_of;
  for (const std::string& name : names) {
    if (name.empty()) {
      group_of.push_back(-1);
      continue;
    }
    const auto found = std::find(known.begin(), known.end(), name);
    group_of.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(name);
  }
  return Groups(std::move(group_of));
}

bool Groups::all_together() const {
  return std::all_of(group_of_.begin(), group_of_.end(), [](int group) { return group == 0; });
}

bool Groups::leave_some_out() const {
  const auto outside = std::count(group_of_.begin(), group_of_.end(), -1);
  return outside > 0 && outside < static_cast<std::ptrdiff_t>(group_of_.size());
}

int Groups::size_of(int member) const {
  return static_cast<int>(std::count(group_of_.begin(), group_of_.end(), of(member)));
}

int Groups::index_of(int member) const {
  return static_cast<int>(std::count(group_of_.begin(), group_of_.begin() + member, of(member)));
}

}  // namespace nzcl::engine
