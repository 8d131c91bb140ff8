#include "runtime/bootstrap/columns.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "nzcl/error.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/numbers.h"
#include "runtime/bootstrap/string_list.h"

namespace nzcl::bootstrap {
namespace {

[[noreturn]] void reject(const char* why) {
  throw Error(ErrorCode::mismatch, std::string("a member sent a row that ") + why);
}

/// Runs of members that are told the same: two numbers for each, the index of the end and how many members.
std::string encode_runs(const std::vector<std::uint32_t>& ends_of) {
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < ends_of.size(); begin = end) {
    while (end < ends_of.size() && ends_of[end] == ends_of[begin]) ++end;
    put_number(text, ends_of[begin]);
    put_number(text, end - begin);
  }
  return text;
}

std::vector<std::uint32_t> decode_runs(std::string_view text, std::size_t members, std::size_t ends) {
  std::vector<std::uint32_t> ends_of;
  while (!text.empty()) {
    const auto end = take_number(text), count = take_number(text);
    if (!end || !count) reject("has a number that ends too early or is too large");
    if (*end >= ends) reject("has no text for one of its members");
    if (*count > members - ends_of.size()) reject("is for too many members");
    ends_of.insert(ends_of.end(), *count, static_cast<std::uint32_t>(*end));
  }
  if (ends_of.size() != members) reject("is not for all members");
  return ends_of;
}

}  // namespace

std::size_t common_bytes(const std::vector<std::string>& strings) {
  if (strings.empty()) return 0;
  const std::string& first = strings.front();
  std::size_t common = first.size();
  for (const std::string& s : strings) {
    const auto most = static_cast<std::ptrdiff_t>(std::min(common, s.size()));
    common =
        static_cast<std::size_t>(std::mismatch(s.begin(), s.begin() + most, first.begin()).first - s.begin());
  }
  return common;
}

Row::Row(const std::vector<std::string>& texts) {
  const std::size_t common = common_bytes(texts);
  std::map<std::string_view, std::uint32_t> known;
  for (const std::string& text : texts) {
    const std::string_view end = std::string_view(text).substr(common);
    const auto [at, fresh] = known.try_emplace(end, static_cast<std::uint32_t>(ends_.size()));
    if (fresh) ends_.emplace_back(end);
    ends_of_.push_back(at->second);
  }
  if (!texts.empty()) common_ = texts.front().substr(0, common);
}

std::string Row::encode() const {
  return encode_strings({common_, encode_runs(ends_of_), encode_similar(ends_)});
}

Row Row::decode(std::string_view text, std::size_t members) {
  auto strings = decode_strings(text);
  if (strings.size() != 3) reject("has not three parts");
  Row row;
  row.common_ = std::move(strings[0]);
  row.ends_ = decode_similar(strings[2], members, kPartLimit);
  row.ends_of_ = decode_runs(strings[1], members, row.ends_.size());
  return row;
}

std::size_t Row::longest() const {
  std::size_t longest = 0;
  for (const std::string& end : ends_) longest = std::max(longest, end.size());
  return common_.size() + longest;
}

/// Members that share a list and are now told different things have lists of their own from now on. The first
/// of them keep the list.
void Columns::divide(const Row& row) {
  std::vector<std::optional<std::size_t>> kept(lists_.size());       // by list: the end that goes on there
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> added;  // by list and end
  for (std::size_t member = 0; member < list_of_.size(); ++member) {
    std::size_t& list = list_of_[member];
    const std::size_t end = row.end_of(member);
    if (!kept[list]) kept[list] = end;
    if (kept[list] == end) continue;
    const auto [at, fresh] = added.try_emplace({list, end}, lists_.size());
    if (fresh) lists_.push_back(SimilarWriter(lists_[list]));
    list = at->second;
  }
}

void Columns::add(const Row& row) {
  commons_.add(row.common());
  if (row.ends().size() > 1) divide(row);
  std::vector<bool> done(lists_.size());
  for (std::size_t member = 0; member < list_of_.size(); ++member) {
    const std::size_t list = list_of_[member];
    if (!done[list]) lists_[list].add(row.ends()[row.end_of(member)]);
    done[list] = true;
  }
}

std::vector<FrameBytes> Columns::frames(const std::string& name) && {
  const FrameBytes commons = FrameBytes::of(encode_commons(name, std::move(commons_).finish()));
  std::vector<FrameBytes> of_list;
  for (SimilarWriter& list : lists_)
    of_list.push_back({commons.first, FrameBytes::of(encode_ends(std::move(list).finish())).first});
  std::vector<FrameBytes> all;
  for (const std::size_t list : list_of_) all.push_back(of_list[list]);
  return all;
}

}  // namespace nzcl::bootstrap
