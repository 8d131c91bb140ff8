#include "verbs/shm/device.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nzcl/error.h"
#include "verbs/descriptors.h"
#include "verbs/shm/bounce_ring.h"
#include "verbs/shm/endpoint.h"
#include "verbs/shm/listener.h"
#include "verbs/shm/passing.h"
#include "verbs/shm/trial.h"

namespace nzcl::verbs::shm {
namespace {

class ShmRegion final : public MemoryRegion {
 public:
  ShmRegion(RegionTable& table, std::span<std::byte> bytes)
      : table_(table), bytes_(bytes), key_(table.add(bytes)) {}
  ~ShmRegion() override { table_.remove(key_); }
  ShmRegion(const ShmRegion&) = delete;
  ShmRegion& operator=(const ShmRegion&) = delete;
  std::span<std::byte> bytes() const noexcept override { return bytes_; }
  RemoteMemory remote() const noexcept override {
    return {reinterpret_cast<std::uint64_t>(bytes_.data()), key_};
  }

 private:
  RegionTable& table_;
  const std::span<std::byte> bytes_;
  const std::uint64_t key_;
};

/// The reason why shm cannot be used, or an empty string. All that endpoints do when they meet is tried on
/// this process itself, because the folder may be missing and a seccomp profile may forbid a call.
std::string what_is_missing() {
  try {
    Listener listener(1);
    int error = 0;
    const Fd caller = call(listener.name(), error);
    const Fd called = listener.accept();
    const Fd memory = segment::make_memory_fd(4096);
    std::byte message{};
    if (error == 0) error = send_message(caller, {&message, 1}, std::array{memory.get()});
    if (error == 0) error = receive_message(called, {&message, 1}).error;
    return error == 0 ? "" : fmt::format("shm: passing a descriptor: {}", error_text(error));
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace

ShmDevice::ShmDevice() : SegmentDevice("shm") {
  limits_.max_write_bytes = kMostBounced;
  limits_.autonomous = false;  // it is they who copy what comes through the ring
  // Its segment, its eventfd, its socket, the memory of a lane, which is there twice while it connects, and
  // those that a peer has just passed.
  limits_.endpoint_descriptors = 8;
  limits_.peer_descriptors = 2;  // the connection and the eventfd of the peer
  // A byte to memory that is not shared is copied into the ring and out of it. A write takes little more than
  // that: it writes and reads two lines that are in the other core's cache.
  limits_.costs = {.segment = 0, .write = 4 << 10, .foreign_byte = 2};
}

std::unique_ptr<MemoryRegion> ShmDevice::register_memory(std::span<std::byte> bytes, MemoryKind) {
  return std::make_unique<ShmRegion>(regions_, bytes);
}

std::unique_ptr<Endpoint> ShmDevice::open_endpoint(const EndpointOptions& options) {
  return std::make_unique<ShmEndpoint>(*this, options);
}

std::unique_ptr<Trial> ShmDevice::begin_trial(const TrialOptions& options) {
  return std::make_unique<ShmTrial>(options);
}

std::shared_ptr<Device> open_device(const DeviceOptions&) {
  remove_leftovers();
  const std::string missing = what_is_missing();
  if (!missing.empty()) throw Error(ErrorCode::unavailable, missing);
  return std::make_shared<ShmDevice>();
}

TransportInfo probe() {
  const std::string missing = what_is_missing();
  if (!missing.empty()) return {"shm", false, missing};
  return {"shm", true, "shared memory, and sockets in /dev/shm to meet"};
}

}  // namespace nzcl::verbs::shm
