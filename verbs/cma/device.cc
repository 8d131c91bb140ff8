#include "verbs/cma/device.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "nzcl/error.h"
#include "verbs/cma/costs.h"
#include "verbs/cma/endpoint.h"
#include "verbs/cma/handles.h"
#include "verbs/cma/held_peers.h"
#include "verbs/cma/permission.h"
#include "verbs/cma/trial.h"
#include "verbs/segment/mapping.h"

namespace nzcl::verbs::cma {
namespace {

class CmaRegion final : public MemoryRegion {
 public:
  explicit CmaRegion(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes() const noexcept override { return bytes_; }
  RemoteMemory remote() const noexcept override {
    return {reinterpret_cast<std::uint64_t>(bytes_.data()), 0};
  }

 private:
  std::span<std::byte> bytes_;
};

/// The reason why cma cannot be used, or an empty string. The permission to write other processes is read;
/// the system calls are tried on this process itself, because a seccomp profile may forbid them.
std::string what_is_missing() {
  if (const std::string forbidden = what_forbids(read_permission()); !forbidden.empty()) return forbidden;
  int from = 7, to = 0;
  const iovec source{&from, sizeof from}, target{&to, sizeof to};
  if (::process_vm_writev(::getpid(), &source, 1, &target, 1, 0) != sizeof from)
    return fmt::format("process_vm_writev: {}", std::strerror(errno));
  try {
    const Fd fd = segment::make_memory_fd(4096);
    Process(::getpid()).take_fd(fd.get());
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

}  // namespace

CmaDevice::CmaDevice() : SegmentDevice("cma") {
  // With ptrace_scope 1, Yama lets only ancestors write a process's memory, unless that process allows more.
  // The peers run as the same user and have met this process, so all processes of the user are allowed.
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  limits_.max_write_bytes = std::size_t{1} << 30;
  limits_.autonomous = true;         // the writer copies without any help of the receiver
  limits_.endpoint_descriptors = 4;  // its segment, its eventfd, and the memory of slots and staging buffers
  limits_.peer_descriptors = HeldPeers::kDescriptors;
  limits_.least_peers = 1;
  limits_.take_turns = true;
  limits_.costs = measure_costs();
}

std::unique_ptr<MemoryRegion> CmaDevice::register_memory(std::span<std::byte> bytes, MemoryKind) {
  return std::make_unique<CmaRegion>(bytes);
}

std::unique_ptr<Endpoint> CmaDevice::open_endpoint(const EndpointOptions& options) {
  return std::make_unique<CmaEndpoint>(*this, options);
}

std::unique_ptr<Trial> CmaDevice::begin_trial(const TrialOptions& options) {
  return std::make_unique<CmaTrial>(options);
}

std::shared_ptr<Device> open_device(const DeviceOptions&) {
  const std::string missing = what_is_missing();
  if (!missing.empty())
    throw Error(ErrorCode::unavailable, fmt::format("transport cma: {}; use NZCL_TRANSPORT=shm", missing));
  return std::make_shared<CmaDevice>();
}

TransportInfo probe() {
  const std::string missing = what_is_missing();
  if (!missing.empty()) return {"cma", false, missing};
  return {"cma", true, "shared memory and process_vm_writev"};
}

}  // namespace nzcl::verbs::cma
