#include "runtime/comm/session/mapped.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace nzcl::comm {

bool is_mapped(std::span<const std::byte> range) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(range.data());
  const std::uintptr_t first = address / page * page;
  if (range.size() > UINTPTR_MAX - address) return false;  // the range would end beyond all addresses
  // With MS_ASYNC, Linux only walks the list of mappings, and reports ENOMEM if there is a hole. It writes
  // nothing back. Other errors do not mean that there is a hole.
  return ::msync(reinterpret_cast<void*>(first), address - first + range.size(), MS_ASYNC) == 0 ||
         errno != ENOMEM;
}

}  // namespace nzcl::comm
