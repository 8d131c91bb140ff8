// How much memory the ranks of this host may still take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace perf::allreduce {

/// What the kernel can give without swapping, and without going beyond the memory limit of the control groups
/// that this process is in. Nothing if the kernel does not say.
std::optional<std::uint64_t> free_memory_bytes();

/// For people: "6.9 GiB", "12.0 MiB".
std::string size_text(double bytes);

/// A number by which processes know that they share a host's memory. Below 2^53, so that a double holds it.
double host_number();

}  // namespace perf::allreduce
