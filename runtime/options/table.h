// The table of all options: their names, ranges and meanings, in help texts, documents and errors, come from
// here.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "nzcl/options.h"

namespace nzcl {

/// How the text of an option is read and checked, as far as its C++ type does not say it.
enum class SettingKind { number, bytes, seconds, text, choice, secret, transport };

/// A field that is one of several choices: an enumeration or bool, as the number that it is in C++.
struct Choice {
  int (*get)(const Options& options);
  void (*put)(Options& options, int value);
  int first;  // the value of the first choice; the others follow
};

/// One option. The tables have one for every field of Options and of Tuning.
struct Setting {
  using Field =
      std::variant<int Options::*, std::uint64_t Options::*, double Options::*, std::string Options::*,
                   int Tuning::*, std::uint64_t Tuning::*, double Tuning::*, Choice>;
  std::string_view name;  // "timeout_s"; the variable is NZCL_TIMEOUT_S
  Field field;
  SettingKind kind;
  double low = 0, high = std::numeric_limits<double>::infinity();  // bounds of a number, both allowed
  std::string_view choices;  // "auto|on|off", in the order of their values
  std::string_view meaning;
  bool or_zero = false;  // 0 is allowed too, although it is below `low`, and leaves the choice to nzcl

  std::string variable() const;  // "NZCL_TIMEOUT_S"; a tuning has none, and is named in NZCL_TUNE
  std::string type() const;      // "a number of bytes"
  std::string range() const;     // "0, 4K .. 16M"; "": everything is allowed
  /// The value as a person would write it. Secrets are never shown.
  std::string text(const Options& options) const;
  /// Parses, checks and stores a value. Throws Error{invalid_argument}, in which `origin` says where the bad
  /// value comes from.
  void set(Options& options, std::string_view value, std::string_view origin) const;
  /// Throws Error{invalid_argument} when the value is out of range.
  void check(const Options& options, std::string_view origin) const;
};

/// The fields of Options but `tune`.
std::span<const Setting> settings();
/// The fields of Tuning.
std::span<const Setting> tunings();
/// The setting of this name, or nullptr if there is none.
const Setting* find_in(std::span<const Setting> settings, std::string_view name);

/// The field that a member pointer of Setting::field stands for.
template <typename T>
const T& value_in(const Options& options, T Options::*member) {
  return options.*member;
}
template <typename T>
const T& value_in(const Options& options, T Tuning::*member) {
  return options.tune.*member;
}
template <typename T>
T& value_in(Options& options, T Options::*member) {
  return options.*member;
}
template <typename T>
T& value_in(Options& options, T Tuning::*member) {
  return options.tune.*member;
}
inline int value_in(const Options& options, const Choice& choice) { return choice.get(options); }

}  // namespace nzcl
