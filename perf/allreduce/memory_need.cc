#include "perf/allreduce/memory_need.h"

#include <fmt/format.h>

#include <algorithm>

#include "nzcl/error.h"
#include "perf/allreduce/free_memory.h"
#include "perf/allreduce/totals.h"

namespace perf::allreduce {
namespace {

constexpr double kBuffers = 3;

int ranks_of_this_host(nzcl::Communicator& communicator) {
  const auto self = static_cast<std::size_t>(communicator.rank());
  std::vector<double> hosts(static_cast<std::size_t>(communicator.size()));
  hosts[self] = host_number();
  const double own = hosts[self];
  hosts = Totals(communicator, hosts.size()).sum(hosts);
  return static_cast<int>(std::ranges::count(hosts, own));
}

}  // namespace

double least_bytes_of_rank(const Settings& settings) {
  return kBuffers * static_cast<double>(settings.sizes().back());
}

void require_memory(const Settings& settings, int ranks, std::optional<std::uint64_t> free) {
  const double need = least_bytes_of_rank(settings) * ranks;
  if (!free || need <= static_cast<double>(*free)) return;
  throw nzcl::Error(
      nzcl::ErrorCode::system,
      fmt::format("a size of {} needs {} of memory for {} rank(s) of this host ({} buffers each), and {} are "
                  "free: give a smaller -e (or -b), or fewer ranks",
                  size_text(static_cast<double>(settings.sizes().back())), size_text(need), ranks, kBuffers,
                  size_text(static_cast<double>(*free))));
}

void require_memory(const Settings& settings, nzcl::Communicator& communicator) {
  require_memory(settings, ranks_of_this_host(communicator), free_memory_bytes());
}

}  // namespace perf::allreduce
