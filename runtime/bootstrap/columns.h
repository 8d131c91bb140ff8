// A gather in which each member tells each of the others something of its own. What all say is a table with a
// row for each speaker, of which each member is told its own column and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/bootstrap/frame_bytes.h"
#include "runtime/bootstrap/similar_list.h"

namespace nzcl::bootstrap {

/// How many bytes all strings have in common at their beginnings.
std::size_t common_bytes(const std::vector<std::string>& strings);

/// What one member says to each member of a gather, itself included. What it says to all of them is in the
/// row once, and what it says to several of them too.
class Row {
 public:
  /// By member, in the order of the gather.
  explicit Row(const std::vector<std::string>& texts);
  std::string encode() const;
  /// Throws Error{mismatch} if `text` is not a row for so many members.
  static Row decode(std::string_view text, std::size_t members);

  std::size_t members() const { return ends_of_.size(); }
  /// The beginning of what it says to everybody.
  const std::string& common() const { return common_; }
  /// The different ends, and the index of the one that a member is told.
  const std::vector<std::string>& ends() const { return ends_; }
  std::size_t end_of(std::size_t member) const { return ends_of_[member]; }
  /// The length of the longest text.
  std::size_t longest() const;

 private:
  Row() = default;

  std::string common_;
  std::vector<std::string> ends_;
  std::vector<std::uint32_t> ends_of_;
};

/// Collects the rows of a table in the order of their speakers, and makes a list of each column. Members that
/// are told the same share one list, so with rows that say the same to all there is only one.
class Columns {
 public:
  explicit Columns(std::size_t members) : list_of_(members), lists_(1) {}
  void add(const Row& row);
  /// By member: the frame in which it is told its column by the gather of this name.
  std::vector<FrameBytes> frames(const std::string& name) &&;

 private:
  void divide(const Row& row);

  SimilarWriter commons_;
  std::vector<std::size_t> list_of_;  // by member
  std::vector<SimilarWriter> lists_;
};

}  // namespace nzcl::bootstrap
