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

Groups Groups::among(const std::vector<int>& members) const {
  std::vector<std::string> names;
  for (const int member : members) names.push_back(of(member) < 0 ? "" : std::to_string(of(member)));
  return by_name(names);
}

bool Groups::all_together() const {
  return std::all_of(group_of_.begin(), group_of_.end(), [](int group) { return group == 0; });
}

bool Groups::leave_some_out() const {
  const auto outside = std::count(group_of_.begin(), group_of_.end(), -1);
  return outside > 0 && outside < static_cast<std::ptrdiff_t>(group_of_.size());
}

int Groups::most_together() const {
  int most = 0;
  for (const int group : group_of_) {
    if (group >= 0)
      most = std::max(most, static_cast<int>(std::count(group_of_.begin(), group_of_.end(), group)));
  }
  return most;
}

std::vector<int> Groups::group_of_member(int member) const {
  std::vector<int> members;
  for (int other = 0; other < static_cast<int>(group_of_.size()); ++other) {
    if (other == member || together(member, other)) members.push_back(other);
  }
  return members;
}

int Groups::size_of(int member) const {
  return static_cast<int>(std::count(group_of_.begin(), group_of_.end(), of(member)));
}

int Groups::index_of(int member) const {
  return static_cast<int>(std::count(group_of_.begin(), group_of_.begin() + member, of(member)));
}

Membership membership_among(const Membership& whole, const std::vector<int>& members, int workers) {
  Membership m;
  m.members.workers = workers;
  m.members.dedicated = static_cast<int>(members.size()) - workers;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto number = static_cast<int>(i);
    if (members[i] == whole.members.self) m.members.self = number;
    m.member_of.push_back(number);
    m.position_of.push_back(number);
    const auto position = static_cast<std::size_t>(whole.position_of[static_cast<std::size_t>(members[i])]);
    const std::string& name = whole.names[position];  // "rank 3 (pid 17 on host x)"
    m.names.push_back(m.members.name(number) + name.substr(std::min(name.find(" ("), name.size())));
  }
  m.hosts = whole.hosts.among(members);
  m.networks = whole.networks.among(members);
  m.process_spaces = whole.process_spaces.among(members);
  m.cores = whole.cores.among(members);
  for (const int member : members) {
    if (!whole.nodes.empty()) m.nodes.push_back(whole.nodes[static_cast<std::size_t>(member)]);
    if (!whole.links.empty()) m.links.push_back(whole.links[static_cast<std::size_t>(member)]);
  }
  m.lanes = whole.lanes;
  m.cache_bytes = whole.cache_bytes;
  m.members_per_core = whole.members_per_core;
  return m;
}

}  // namespace nzcl::engine
