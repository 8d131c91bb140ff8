// What is logged of connections that are refused, of which strangers can make any number.
#pragma once

#include <string>

namespace nzcl::bootstrap {

/// Logs the first refusals as warnings, and later ones at level debug, so that strangers cannot fill the log.
class Refusals {
 public:
  /// `name` stands in the log's lines.
  explicit Refusals(std::string name) : name_(std::move(name)) {}

  void note(const std::string& from, const std::string& why);
  /// Who was refused last, and why; "" if nobody was.
  const std::string& last() const { return last_; }

 private:
  const std::string name_;
  std::string last_;
  int count_ = 0;
};

}  // namespace nzcl::bootstrap
