#include "runtime/comm/session/session.h"

#include <fmt/format.h>

#include <utility>

#include "nzcl/error.h"
#include "runtime/comm/session/mapped.h"

namespace nzcl::comm {

std::shared_ptr<Session> Session::onto(std::shared_ptr<verbs::Device> device,
                                       verbs::DeviceOptions options) const {
  auto session = std::make_shared<Session>(std::move(device), std::move(options));
  registrations_.add_to(session->registrations_);
  return session;
}

std::shared_ptr<Registration> Session::register_memory(void* data, std::size_t bytes, MemoryKind kind) {
  if (data == nullptr || bytes == 0)
    throw Error(ErrorCode::invalid_argument, "register_buffer: the range is empty");
  if (kind != MemoryKind::host) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("register_buffer: {} memory is not supported yet; copy the gradient to host memory",
                    name_of(kind)));
  }
  const std::span<std::byte> range{static_cast<std::byte*>(data), bytes};
  if (!is_mapped(range)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("register_buffer: {} bytes at {} are not mapped in this process, or not all of them; "
                    "is the pointer stale, or the size in elements?",
                    bytes, data));
  }
  return registrations_.add(range, kind);
}

}  // namespace nzcl::comm
