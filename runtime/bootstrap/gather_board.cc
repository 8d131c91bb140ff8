#include "runtime/bootstrap/gather_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/base/list_text.h"
#include "runtime/bootstrap/columns.h"

namespace nzcl::bootstrap {
namespace {

using Kind = GatherFrame::Kind;

[[noreturn]] void deny(const std::string& what) {
  throw Error(ErrorCode::denied, "it sent a frame of a gather that the protocol does not allow: " + what);
}

/// Precondition: the position is among the members.
std::size_t index_of(const std::vector<int>& members, std::size_t position) {
  if (members.empty()) return position;
  return static_cast<std::size_t>(std::find(members.begin(), members.end(), static_cast<int>(position)) -
                                  members.begin());
}

FrameBytes failed_frame(const std::string& name, const Failure& failure) {
  return FrameBytes::of(encode(
      GatherFrame{.kind = Kind::failed, .name = name, .members = {}, .parts = {}, .failure = failure}));
}

}  // namespace

bool GatherBoard::Gather::has(std::size_t position) const {
  return members.empty() || index_of(members, position) < members.size();
}

GatherBoard::Answers GatherBoard::Gather::answer_those_here(const FrameBytes& frame,
                                                            std::optional<std::size_t> except) const {
  Answers answers;
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (here[i] && member(i) != except) answers.push_back({member(i), frame});
  }
  return answers;
}

void GatherBoard::check(std::size_t from, const GatherFrame& frame) const {
  if (frame.kind == Kind::parts || frame.kind == Kind::failed) deny("only the hub says how it has ended");
  if (frame.members.empty()) return;
  std::set<int> distinct;
  for (const int member : frame.members) {
    if (member < 0 || static_cast<std::size_t>(member) >= names_.size()) deny("a member that does not exist");
    if (!distinct.insert(member).second) deny("a member twice");
  }
  if (!distinct.contains(static_cast<int>(from))) deny("its sender is not among the members");
}

GatherBoard::Entry GatherBoard::find_or_open(const GatherFrame& frame) {
  const auto [entry, opened] = gathers_.try_emplace(frame.name);
  Gather& gather = entry->second;
  if (!opened) {
    if (gather.members != frame.members) deny("other members than in a frame before");
    if (gather.kind != frame.kind) deny("a part where others have sent rows, or the other way round");
    return entry;
  }
  if (gathers_.size() > kMostGathers) {
    gathers_.erase(entry);
    deny("too many gathers at a time");
  }
  gather.kind = frame.kind;
  gather.members = frame.members;
  gather.awaited = count(frame.members);
  gather.parts.resize(gather.awaited);
  gather.here.resize(gather.awaited);
  return entry;
}

GatherBoard::Answers GatherBoard::take(std::size_t from, GatherFrame frame) {
  check(from, frame);
  if (const auto member = first_that_left(frame)) {
    if (frame.kind == Kind::late) return {};
    return {{from, failed_frame(frame.name, closed_by(frame.name, *member))}};
  }
  if (frame.kind == Kind::late) {
    const Entry entry = gathers_.find(frame.name);
    if (entry == gathers_.end() || entry->second.failure) return {};  // the answer is on its way
    if (entry->second.members != frame.members) deny("other members than in a frame before");
    return fail(entry, {ErrorCode::timeout, fmt::format("{}: {} did not come within the bootstrap timeout",
                                                        frame.name, missing(entry->second))});
  }
  std::string& part = frame.parts.front();
  const std::size_t bytes =
      frame.kind == Kind::row ? Row::decode(part, count(frame.members)).longest() : part.size();
  const Entry entry = find_or_open(frame);
  Gather& gather = entry->second;
  const std::size_t index = index_of(frame.members, from);
  if (gather.here[index]) deny("a second part");
  gather.here[index] = true;
  gather.bytes += bytes;
  --gather.awaited;
  return take_part(entry, from, index, std::move(part));
}

GatherBoard::Answers GatherBoard::take_part(Entry entry, std::size_t from, std::size_t index,
                                            std::string part) {
  Gather& gather = entry->second;
  if (gather.failure) {
    Answers answers{{from, failed_frame(entry->first, *gather.failure)}};
    forget_if_over(entry);
    return answers;
  }
  if (gather.bytes > kGatherLimit) {
    return fail(entry,
                {ErrorCode::unsupported,
                 fmt::format("{}: its members have {} bytes to tell each other, but at most {} are allowed",
                             entry->first, gather.bytes, kGatherLimit)});
  }
  gather.parts[index] = std::move(part);
  if (gather.awaited > 0) return {};
  auto ended = gathers_.extract(entry);
  return end_well(ended.key(), std::move(ended.mapped()));
}

/// All have come: each is told what all have said, or what all have said to it.
GatherBoard::Answers GatherBoard::end_well(const std::string& name, Gather gather) {
  if (gather.kind == Kind::part) {
    return gather.answer_those_here(FrameBytes::of(encode(GatherFrame{
        .kind = Kind::parts, .name = name, .members = {}, .parts = std::move(gather.parts), .failure = {}})));
  }
  const std::size_t count = gather.parts.size();
  Columns columns(count);
  for (std::string& part : gather.parts) columns.add(Row::decode(std::exchange(part, {}), count));
  const std::vector<FrameBytes> frames = std::move(columns).frames(name);
  Answers answers;
  for (std::size_t i = 0; i < count; ++i) answers.push_back({gather.member(i), frames[i]});
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

std::optional<std::size_t> GatherBoard::first_that_left(const GatherFrame& frame) const {
  if (left_.empty()) return std::nullopt;
  if (frame.members.empty()) return *left_.begin();
  for (const int member : frame.members) {
    if (left_.contains(static_cast<std::size_t>(member))) return static_cast<std::size_t>(member);
  }
  return std::nullopt;
}

/// Its gathers need not be kept for those that come later, because take() knows that it has left.
GatherBoard::Answers GatherBoard::left(std::size_t member) {
  left_.insert(member);
  Answers answers;
  std::erase_if(gathers_, [&](const auto& named) {
    const auto& [name, gather] = named;
    if (!gather.has(member)) return false;
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
  for (std::size_t i = 0; i < gather.here.size(); ++i) {
    if (!gather.here[i]) append_item(list, names_[gather.member(i)]);
  }
  return list;
}

/// A gather whose members have all been answered is over. One that has failed waits for those that come
/// later.
void GatherBoard::forget_if_over(Entry entry) {
  if (entry->second.failure && entry->second.awaited == 0) gathers_.erase(entry);
}

}  // namespace nzcl::bootstrap
