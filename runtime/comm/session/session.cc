#include "runtime/comm/session/session.h"

#include <fmt/format.h>

#include <utility>

#include "nzcl/error.h"
#include "runtime/comm/session/mapped.h"
#include "runtime/gpu/find_gpu.h"

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
  const std::span<std::byte> range{static_cast<std::byte*>(data), bytes};
  if (kind == MemoryKind::device) return register_gpu_memory(range);
  if (gpu::is_gpu_memory(range)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("register_buffer: {} bytes at {} are memory of a GPU; register them with "
                            "MemoryKind::device",
                            bytes, data));
  }
  if (!is_mapped(range)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("register_buffer: {} bytes at {} are not mapped in this process, or not all of them; "
                    "is the pointer stale, or the size in elements?",
                    bytes, data));
  }
  return registrations_.add(range, kind);
}

std::shared_ptr<Registration> Session::register_gpu_memory(std::span<std::byte> range) {
  try {
    return registrations_.add(range, gpu::find_gpu(range));
  } catch (const Error& e) {
    throw Error(e.code(), std::string("register_buffer: ") + e.what());
  }
}

}  // namespace nzcl::comm
