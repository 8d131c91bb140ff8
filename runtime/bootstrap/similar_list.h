// A list of byte strings of which each is much like the one before it, as one byte string. Members say nearly
// the same of themselves, so what they have in common travels once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nzcl::bootstrap {

/// Writes such a list, one string after the other. A copy goes on on its own.
class SimilarWriter {
 public:
  void add(std::string_view string);
  /// Ends the list.
  std::string finish() &&;

 private:
  void write_repeats();

  std::string text_;
  std::string before_;         // the string that was added last
  std::uint64_t repeats_ = 0;  // how often it was added again since it was written
};

std::string encode_similar(std::span<const std::string> strings);
/// Throws Error{mismatch} when `text` was not made by a SimilarWriter, and when the list has more than
/// `most_strings` strings, or more than `most_bytes` bytes in all.
std::vector<std::string> decode_similar(std::string_view text, std::size_t most_strings,
                                        std::size_t most_bytes);

}  // namespace nzcl::bootstrap
