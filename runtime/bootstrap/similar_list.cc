#include "runtime/bootstrap/similar_list.h"

#include <algorithm>
#include <utility>

#include "nzcl/error.h"
#include "runtime/bootstrap/numbers.h"

// Each entry of a list begins with a number:
//   4 r + 1   the string before comes r more times; before the first string there is an empty one
//   4 c + 3   a string as long as the one before, with c changes; what follows the last of them is as before
//   2 n       another string, of n bytes
// A change is
//   s         so many bytes are as before
//   f         so many are new
//   f bytes
// and another string is
//   a         so many bytes are those at the front of the string before
//   b         and so many, after the new ones, those at its back
//   n - a - b bytes

namespace nzcl::bootstrap {
namespace {

/// A change of its own takes two bytes, so that fewer equal bytes are not worth one.
constexpr std::size_t kLeastSame = 3;

[[noreturn]] void reject(const char* why) {
  throw Error(ErrorCode::mismatch, std::string("a member sent a list of similar strings that ") + why);
}

/// How many bytes the two have in common at their beginnings.
std::size_t common_front(std::string_view a, std::string_view b) {
  const std::size_t most = std::min(a.size(), b.size());
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin());
}

std::size_t common_back(std::string_view a, std::string_view b) {
  std::size_t n = 0;
  while (n < a.size() && n < b.size() && a[a.size() - 1 - n] == b[b.size() - 1 - n]) ++n;
  return n;
}

/// How many of the bytes at the beginning are new, up to equal ones that are worth another change.
std::size_t new_front(std::string_view before, std::string_view now) {
  for (std::size_t at = 0; at < now.size();) {
    const std::size_t same = common_front(before.substr(at), now.substr(at));
    if (same >= kLeastSame || at + same == now.size()) return at;
    at += same + 1;
  }
  return now.size();
}

/// A string that is as long as the one before.
void put_changes(std::string& text, std::string_view before, std::string_view now) {
  std::string changes;
  std::uint64_t count = 0;
  const auto skip = [&](std::size_t bytes) { before.remove_prefix(bytes), now.remove_prefix(bytes); };
  while (true) {
    const std::size_t same = common_front(before, now);
    skip(same);
    if (now.empty()) break;
    const std::size_t fresh = new_front(before, now);
    put_number(changes, same);
    put_number(changes, fresh);
    changes += now.substr(0, fresh);
    skip(fresh);
    ++count;
  }
  put_number(text, 4 * count + 3);
  text += changes;
}

/// A string of another length: what is equal at both ends, and what is new between them.
void put_other(std::string& text, std::string_view before, std::string_view now) {
  const std::size_t front = common_front(before, now);
  const std::size_t back = common_back(before.substr(front), now.substr(front));
  put_number(text, 2 * now.size());
  put_number(text, front);
  put_number(text, back);
  text += now.substr(front, now.size() - front - back);
}

std::size_t take_length(std::string_view& text) {
  const auto number = take_number(text);
  if (!number) reject("has a number that ends too early or is too large");
  return *number;
}

void take_fresh(std::string_view& text, std::size_t bytes, std::string& now) {
  if (bytes > text.size()) reject("ends too early");
  now += text.substr(0, bytes);
  text.remove_prefix(bytes);
}

std::string take_changes(std::string_view& text, std::string_view before, std::size_t count) {
  std::string now;
  for (; count > 0; --count) {
    const std::size_t same = take_length(text), fresh = take_length(text);
    if (same > before.size()) reject("repeats more than there is");
    if (fresh == 0 || fresh > before.size() - same) reject("has a change that does not fit");
    now += before.substr(0, same);
    take_fresh(text, fresh, now);
    before.remove_prefix(same + fresh);
  }
  return now.append(before);
}

std::string take_other(std::string_view& text, std::string_view before, std::size_t bytes) {
  const std::size_t front = take_length(text), back = take_length(text);
  if (front > before.size() || back > before.size() - front) reject("repeats more than there is");
  if (front + back > bytes) reject("has two ends that do not fit");
  std::string now(before.substr(0, front));
  take_fresh(text, bytes - front - back, now);
  return now.append(before.substr(before.size() - back));
}

}  // namespace

void SimilarWriter::write_repeats() {
  if (repeats_ > 0) put_number(text_, 4 * std::exchange(repeats_, 0) + 1);
}

void SimilarWriter::add(std::string_view string) {
  if (string == before_) {
    ++repeats_;
    return;
  }
  write_repeats();
  if (string.size() == before_.size()) {
    put_changes(text_, before_, string);
  } else {
    put_other(text_, before_, string);
  }
  before_ = string;
}

std::string SimilarWriter::finish() && {
  write_repeats();
  return std::move(text_);
}

std::string encode_similar(std::span<const std::string> strings) {
  SimilarWriter writer;
  for (const std::string& string : strings) writer.add(string);
  return std::move(writer).finish();
}

std::vector<std::string> decode_similar(std::string_view text, std::size_t most_strings,
                                        std::size_t most_bytes) {
  std::vector<std::string> strings;
  std::size_t left = most_bytes;
  const auto make_room = [&](std::size_t count, std::size_t bytes) {
    if (count > most_strings - strings.size()) reject("has more strings than are allowed");
    if (bytes > 0 && count > left / bytes) reject("has more bytes than are allowed");
    left -= count * bytes;
  };
  while (!text.empty()) {
    const std::string before = strings.empty() ? std::string() : strings.back();
    const std::size_t head = take_length(text);
    if (head % 4 == 1) {
      make_room(head / 4, before.size());
      strings.insert(strings.end(), head / 4, before);
    } else if (head % 4 == 3) {
      make_room(1, before.size());
      strings.push_back(take_changes(text, before, head / 4));
    } else {
      make_room(1, head / 2);
      strings.push_back(take_other(text, before, head / 2));
    }
  }
  return strings;
}

}  // namespace nzcl::bootstrap
