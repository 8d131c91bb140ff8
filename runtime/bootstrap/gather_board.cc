#include "runtime/bootstrap/gather_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/base/list_text.h"

namespace nzcl::bootstrap {
namespace {

using Kind = GatherFrame::Kind;

[[noreturn]] void deny(const std::string& what) {
  throw Error(ErrorCode::denied, "it sent a frame of a gather that the protocol does not allow: " + what);
}

std::size_t index_of(const std::vector<int>& members, std::size_t position) {
  return static_cast<std::size_t>(std::find(members.begin(), members.end(), static_cast<int>(position)) -
                                  members.begin());
}

std::string failed_frame(const std::string& name, const Failure& failure) {
  return encode(
      GatherFrame{.kind = Kind::failed, .name = name, .members = {}, .parts = {}, .failure = failure});
}

}  // namespace

bool GatherBoard::Gather::all_here() const {
  return std::find(here.begin(), here.end(), false) == here.end();
}

GatherBoard::Answers GatherBoard::Gather::answer_those_here(const std::string& frame,
                                                            std::optional<std::size_t> except) const {
  Answers answers;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto member = static_cast<std::size_t>(members[i]);
    if (here[i] && member != except) answers.push_back({member, frame});
  }
  return answers;
}

void GatherBoard::check(std::size_t from, const GatherFrame& frame) const {
  std::set<int> distinct;
  for (const int member : frame.members) {
    if (member < 0 || static_cast<std::size_t>(member) >= names_.size()) deny("a member that does not exist");
    if (!distinct.insert(member).second) deny("a member twice");
  }
  if (!distinct.contains(static_cast<int>(from))) deny("its sender is not among the members");
  if (frame.kind == Kind::parts || frame.kind == Kind::failed) deny("only the hub says how it has ended");
}

GatherBoard::Entry GatherBoard::find_or_open(const GatherFrame& frame) {
  const auto [entry, opened] = gathers_.try_emplace(frame.name);
  Gather& gather = entry->second;
  if (!opened) {
    if (gather.members != frame.members) deny("other members than in a frame before");
    return entry;
  }
  if (gathers_.size() > kMostGathers) {
    gathers_.erase(entry);
    deny("too many gathers at a time");
  }
  gather.members = frame.members;
  gather.parts.resize(frame.members.size());
  gather.here.resize(frame.members.size());
  return entry;
}

GatherBoard::Answers GatherBoard::take(std::size_t from, GatherFrame frame) {
  check(from, frame);
  for (const int position : frame.members) {
    const auto member = static_cast<std::size_t>(position);
    if (!left_[member]) continue;
    if (frame.kind != Kind::part) return {};
    return {{from, failed_frame(frame.name, closed_by(frame.name, member))}};
  }
  if (frame.kind == Kind::late) {
    const Entry entry = gathers_.find(frame.name);
    if (entry == gathers_.end() || entry->second.failure) return {};  // the answer is on its way
    if (entry->second.members != frame.members) deny("other members than in a frame before");
    return fail(entry, {ErrorCode::timeout, fmt::format("{}: {} did not come within the bootstrap timeout",
                                                        frame.name, missing(entry->second))});
  }
  const Entry entry = find_or_open(frame);
  const std::size_t index = index_of(frame.members, from);
  if (entry->second.here[index]) deny("a second part");
  entry->second.here[index] = true;
  return take_part(entry, from, index, std::move(frame.parts.front()));
}

GatherBoard::Answers GatherBoard::take_part(Entry entry, std::size_t from, std::size_t index,
                                            std::string part) {
  Gather& gather = entry->second;
  if (gather.failure) {
    Answers answers{{from, failed_frame(entry->first, *gather.failure)}};
    forget_if_over(entry);
    return answers;
  }
  gather.parts[index] = std::move(part);
  if (!gather.all_here()) return {};
  std::string frame = encode(GatherFrame{.kind = Kind::parts,
                                         .name = entry->first,
                                         .members = {},
                                         .parts = std::move(gather.parts),
                                         .failure = {}});
  if (frame.size() > kFrameLimit) {
    return fail(entry,
                {ErrorCode::unsupported,
                 fmt::format("{}: its members have {} bytes to tell each other, but at most {} are allowed",
                             entry->first, frame.size(), kFrameLimit)});
  }
  Answers answers;
  for (const int member : gather.members) answers.push_back({static_cast<std::size_t>(member), frame});
  gathers_.erase(entry);
  return answers;
}

GatherBoard::Answers GatherBoard::fail(Entry entry, Failure failure) {
  Gather& gather = entry->second;
  Answers answers;
  if (!gather.failure) {
    answers = gather.answer_those_here(failed_frame(entry->first, failure));
    gather.failure = std::move(failure);
    gather.parts = {};
  }
  forget_if_over(entry);
  return answers;
}

/// Its gathers need not be kept for those that come later, because take() knows that it has left.
GatherBoard::Answers GatherBoard::left(std::size_t member) {
  left_[member] = true;
  Answers answers;
  std::erase_if(gathers_, [&](const auto& named) {
    const auto& [name, gather] = named;
    if (index_of(gather.members, member) == gather.members.size()) return false;
    if (gather.failure) return true;
    for (Answer& answer : gather.answer_those_here(failed_frame(name, closed_by(name, member)), member))
      answers.push_back(std::move(answer));
    return true;
  });
  return answers;
}

Failure GatherBoard::closed_by(const std::string& name, std::size_t member) const {
  return {ErrorCode::invalid_usage, fmt::format("{}: {} has closed the communicator", name, names_[member])};
}

std::string GatherBoard::missing(const Gather& gather) const {
  std::string list;
  for (std::size_t i = 0; i < gather.members.size(); ++i) {
    if (gather.here[i]) continue;
    append_item(list, names_[static_cast<std::size_t>(gather.members[i])]);
  }
  return list;
}

/// A gather whose members have all been answered is over. One that has failed waits for those that come
/// later.
void GatherBoard::forget_if_over(Entry entry) {
  if (entry->second.failure && entry->second.all_here()) gathers_.erase(entry);
}

}  // namespace nzcl::bootstrap
