// The one table of settings: everything that is said about an option comes from here.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "nzcl/options.h"

namespace nzcl {

/// What an option's text may be, beyond its C++ type.
enum class SettingKind { number, bytes, seconds, text, choice, secret };

struct Setting {
  using Field =
      std::variant<int Options::*, std::uint64_t Options::*, double Options::*, std::string Options::*>;
  std::string_view name;  // "slot_bytes"; the variable is NZCL_SLOT_BYTES
  Field field;
  SettingKind kind;
  double low = 0, high = std::numeric_limits<double>::infinity();  // of numbers, both allowed
  std::string_view choices;                                        // "auto|on|off"
  std::string_view meaning;
  bool or_zero = false;  // 0, which is below `low`, leaves the choice to nzcl

  std::string variable() const;
  std::string type() const;   // "bytes"
  std::string range() const;  // "0, 4K .. 16M"; "" = any
  std::string text(
      const Options& options) const;  // the value as a person would write it; secrets are never shown
  /// Parses and checks. Throws Error{invalid_argument}; `origin` tells the user where the bad text stands.
  void set(Options& options, std::string_view value, std::string_view origin) const;
  /// Throws Error{invalid_argument} when the value is out of range.
  void check(const Options& options, std::string_view origin) const;
};

std::span<const Setting> settings();
/// nullptr if there is none.
const Setting* find_setting(std::string_view name);

}  // namespace nzcl
