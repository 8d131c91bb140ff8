// Which instruction sets the kernels can use here.
#pragma once

#include <string>
#include <vector>

namespace nzcl {

/// Instruction sets that the kernels are compiled for and this CPU has, best first, in Highway's names:
/// "AVX3" is AVX-512.
std::vector<std::string> kernel_targets();

/// The one that the kernels run on: the best, unless a test has forced another.
std::string active_kernel_target();

}  // namespace nzcl
