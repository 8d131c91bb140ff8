// Texts about the options, for people to read.
#pragma once

#include <string>

#include "runtime/options/resolve.h"

namespace nzcl {

/// The name, value and origin of every option, one option per line.
std::string describe_options(const Resolved& resolved);
/// The variables, defaults, ranges and meanings of all options as a Markdown table. OPTIONS.md in this folder
/// contains it.
std::string options_markdown();

}  // namespace nzcl
