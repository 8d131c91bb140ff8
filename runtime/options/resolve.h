// Where settings come from: defaults, then the caller's code, then a file, then the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nzcl/options.h"

namespace nzcl {

struct Resolved {
  Options options;
  std::vector<std::string>
      origins;  // by setting, in the table's order: "default", "code", "file x.toml", "NZCL_TRANSPORT"
  std::vector<std::string> warnings;  // unknown NZCL_* variables, with what may have been meant
};

/// Looks up one variable.
using Lookup = std::function<std::optional<std::string>(const char* name)>;
/// The process's own.
std::optional<std::string> process_environment(const char* name);
std::vector<std::string> process_variables();  // names only

/// `variables`: the names of all variables, to find unknown ones. Throws Error{invalid_argument} naming
/// option and origin.
Resolved resolve(const Options& base, const Lookup& lookup, const std::vector<std::string>& variables);

}  // namespace nzcl
