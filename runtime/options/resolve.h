// Finds the value of every option: from the defaults, then the caller's code, then a file, then the
// environment. Later sources override earlier ones.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nzcl/options.h"

namespace nzcl {

struct Resolved {
  Options options;
  /// Where each value comes from, in the order of the table: "default", "code", "file x.toml" or
  /// "NZCL_TRANSPORT".
  std::vector<std::string> origins;
  std::vector<std::string> tuning_origins;  ///< the same for the tunings
  /// One for each unknown NZCL_* variable, with the option that may have been meant.
  std::vector<std::string> warnings;
};

/// Returns the value of one environment variable, or nullopt if it is not set.
using Lookup = std::function<std::optional<std::string>(const char* name)>;
/// The Lookup of this process's own environment.
std::optional<std::string> process_environment(const char* name);
/// The names of all variables in this process's environment.
std::vector<std::string> process_variables();

/// Starts from `base`, whose values come from the caller's code. `variables` are the names of all variables,
/// among which unknown ones are looked for. Throws Error{invalid_argument} that names the option and the
/// origin of a bad value.
Resolved resolve(const Options& base, const Lookup& lookup, const std::vector<std::string>& variables);

}  // namespace nzcl
