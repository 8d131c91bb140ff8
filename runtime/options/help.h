// The table of options, for people.
#pragma once

#include <string>

#include "runtime/options/resolve.h"

namespace nzcl {

/// Name, value and origin of every option, one per line.
std::string describe_options(const Resolved& resolved);
/// Names, types, defaults, ranges and meanings as a Markdown table: README.md holds it.
std::string options_markdown();

}  // namespace nzcl
