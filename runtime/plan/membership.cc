#include "runtime/plan/membership.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace nzcl::engine {

Groups::Groups(std::vector<int> group_of) : group_of_(std::move(group_of)) {
  for (const int group : group_of_) {
    const auto index = static_cast<std::size_t>(group);
    if (group < 0) continue;
    if (index >= sizes_.size()) sizes_.resize(index + 1);
    ++sizes_[index];
  }
}

Groups Groups::by_name(const std::vector<std::string>& names) {
  std::unordered_map<std::string_view, int> known;
  std::vector<int> group_of;
  for (const std::string& name : names) {
    const auto next = static_cast<int>(known.size());
    group_of.push_back(name.empty() ? -1 : known.try_emplace(name, next).first->second);
  }
  return Groups(std::move(group_of));
}

Groups Groups::among(const std::vector<int>& members) const {
  std::vector<int> numbers(sizes_.size(), -1), group_of;  // new numbers by old ones
  int next = 0;
  for (const int member : members) {
    const int group = of(member);
    if (group >= 0 && numbers[static_cast<std::size_t>(group)] < 0)
      numbers[static_cast<std::size_t>(group)] = next++;
    group_of.push_back(group < 0 ? -1 : numbers[static_cast<std::size_t>(group)]);
  }
  return Groups(std::move(group_of));
}

bool Groups::all_together() const {
  return std::all_of(group_of_.begin(), group_of_.end(), [](int group) { return group == 0; });
}

int Groups::most_together() const {
  return sizes_.empty() ? 0 : *std::max_element(sizes_.begin(), sizes_.end());
}

std::vector<int> Groups::group_of_member(int member) const {
  std::vector<int> members;
  for (int other = 0; other < static_cast<int>(group_of_.size()); ++other) {
    if (other == member || together(member, other)) members.push_back(other);
  }
  return members;
}

std::vector<std::vector<int>> Groups::all_members() const {
  std::vector<std::vector<int>> groups(sizes_.size()), alone;
  for (int member = 0; member < static_cast<int>(group_of_.size()); ++member) {
    if (of(member) < 0) {
      alone.push_back({member});
    } else {
      groups[static_cast<std::size_t>(of(member))].push_back(member);
    }
  }
  groups.insert(groups.end(), alone.begin(), alone.end());
  return groups;
}

int Groups::size_of(int member) const {
  return of(member) < 0 ? 1 : sizes_[static_cast<std::size_t>(of(member))];
}

int Groups::index_of(int member) const {
  if (of(member) < 0) return 0;
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
  m.scan_streams = whole.scan_streams;
  m.lanes = whole.lanes;
  m.cache_bytes = whole.cache_bytes;
  m.may_have_gpus = whole.may_have_gpus;
  m.members_per_core = whole.members_per_core;
  return m;
}

}  // namespace nzcl::engine
