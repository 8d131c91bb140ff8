#include "runtime/bootstrap/similar_list.h"

#include <algorithm>
#include <utility>

#include "nzcl/error.h"
#include "runtime/bootstrap/numbers.h"

// Each entry of a list begins with a number:
//   2 r + 1   the string before comes r more times; before the first string there is an empty one
//   2 n       a string of n bytes, made of pieces until it has them all
// A piece takes bytes from the string before, from a place that begins at its front and moves on with what is
// taken:
//   s         so many bytes are taken
//   2 f + x   then f new bytes follow; the place moves on by f as well if x is 0, and by the next number if
//             it is 1
//   f bytes

namespace nzcl::bootstrap {
namespace {

/// A piece of its own takes two bytes, so that fewer equal bytes are not worth one.
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

/// How many of the bytes at the beginning are new, up to equal ones that are worth a piece.
std::size_t new_front(std::string_view before, std::string_view now) {
  for (std::size_t at = 0; at < now.size();) {
    const std::size_t same = common_front(before.substr(at), now.substr(at));
    if (same >= kLeastSame || at + same == now.size()) return at;
    at += same + 1;
  }
  return now.size();
}

/// The pieces of a string that is as long as the one before.
void put_changes(std::string& text, std::string_view before, std::string_view now) {
  while (!now.empty()) {
    const std::size_t same = common_front(before, now);
    before.remove_prefix(same), now.remove_prefix(same);
    const std::size_t fresh = new_front(before, now);
    put_number(text, same);
    put_number(text, 2 * fresh);
    text += now.substr(0, fresh);
    before.remove_prefix(fresh), now.remove_prefix(fresh);
  }
}

/// The pieces of a string of another length: what is equal at both ends, and what is new between them.
void put_middle(std::string& text, std::string_view before, std::string_view now) {
  const std::size_t front = common_front(before, now);
  const std::size_t back = common_back(before.substr(front), now.substr(front));
  const std::string_view fresh = now.substr(front, now.size() - front - back);
  put_number(text, front);
  put_number(text, 2 * fresh.size() + 1);
  put_number(text, before.size() - front - back);
  text += fresh;
  if (back == 0) return;
  put_number(text, back);
  put_number(text, 0);
}

std::size_t take_length(std::string_view& text) {
  const auto number = take_number(text);
  if (!number) reject("has a number that ends too early or is too large");
  return *number;
}

/// Appends one piece to a string that is to have `bytes` bytes. `before` begins at the place from which bytes
/// are taken.
void take_piece(std::string_view& text, std::string_view& before, std::string& now, std::size_t bytes) {
  const std::size_t same = take_length(text), head = take_length(text), fresh = head / 2;
  const std::size_t skipped = head % 2 == 0 ? fresh : take_length(text);
  if (same > before.size()) reject("repeats more than there is");
  if (same + fresh + skipped == 0 || same + fresh > bytes - now.size())
    reject("has a piece that does not fit");
  if (fresh > text.size()) reject("ends too early");
  now.append(before.substr(0, same)).append(text.substr(0, fresh));
  before.remove_prefix(std::min(before.size(), same + skipped));
  text.remove_prefix(fresh);
}

}  // namespace

void SimilarWriter::write_repeats() {
  if (repeats_ > 0) put_number(text_, 2 * std::exchange(repeats_, 0) + 1);
}

void SimilarWriter::add(std::string_view string) {
  if (string == before_) {
    ++repeats_;
    return;
  }
  write_repeats();
  put_number(text_, 2 * string.size());
  if (string.size() == before_.size()) {
    put_changes(text_, before_, string);
  } else if (!string.empty()) {
    put_middle(text_, before_, string);
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
    if (head % 2 == 1) {
      make_room(head / 2, before.size());
      strings.insert(strings.end(), head / 2, before);
      continue;
    }
    make_room(1, head / 2);
    std::string now;
    for (std::string_view place = before; now.size() < head / 2;) take_piece(text, place, now, head / 2);
    strings.push_back(std::move(now));
  }
  return strings;
}

}  // namespace nzcl::bootstrap
