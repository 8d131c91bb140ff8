#include "perf/allreduce/free_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>

namespace perf::allreduce {
namespace {

/// Returns the number behind `name` in a file of lines "name 123" or "name: 123".
std::optional<std::uint64_t> number_in(const std::filesystem::path& path, const std::string& name) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    if (std::sscanf(line.c_str(), (name + " %lu").c_str(), &number) == 1) return number;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> only_number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;  // no such file, or "max"
}

/// What the group may still take. Files that it has read can be dropped from memory.
std::optional<std::uint64_t> free_in_group(const std::filesystem::path& group) {
  const auto most = only_number_in(group / "memory.max"), now = only_number_in(group / "memory.current");
  if (!most || !now) return std::nullopt;
  const std::uint64_t files = number_in(group / "memory.stat", "inactive_file").value_or(0);
  const std::uint64_t held = *now - std::min(*now, files);
  return *most - std::min(*most, held);
}

/// The group of this process, of version 2: the line "0::/path".
std::filesystem::path own_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(4);
  }
  return {};
}

}  // namespace

std::optional<std::uint64_t> free_memory_bytes() {
  const auto kib = number_in("/proc/meminfo", "MemAvailable:");
  if (!kib) return std::nullopt;
  std::uint64_t least = *kib << 10;
  const std::filesystem::path root = "/sys/fs/cgroup";
  for (std::filesystem::path group = own_group();; group = group.parent_path()) {
    if (const auto free = free_in_group(root / group)) least = std::min(least, *free);
    if (group.empty()) return least;
  }
}

std::string size_text(double bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

double host_number() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  std::array<char, 256> name{};
  if (id.empty() && ::gethostname(name.data(), name.size() - 1) == 0) id = name.data();
  return static_cast<double>(std::hash<std::string>()(id) >> 11);
}

}  // namespace perf::allreduce
