// Opens transports by name, and implements what they have in common.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "nzcl/error.h"
#include "verbs/cma/device.h"
#include "verbs/ibv/device.h"
#include "verbs/mixed/device.h"
#include "verbs/mixed/pair.h"
#include "verbs/ofi/device.h"
#include "verbs/shm/device.h"
#include "verbs/transport.h"
#include "verbs/trial.h"

namespace nzcl::verbs {

std::span<std::byte> Device::allocate(std::size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw Error(ErrorCode::system, std::strerror(errno));
  return {static_cast<std::byte*>(p), bytes};
}

void EndpointOptions::throw_if_halted() const {
  if (halted != nullptr && halted->load(std::memory_order_acquire))
    throw Error(ErrorCode::aborted, "the communicator has failed while its members connected");
}

std::unique_ptr<MemoryRegion> Device::register_gpu_memory(const GpuMemory&) {
  throw Error(ErrorCode::unsupported,
              name() + ": this transport does not reach memory of a GPU; ibverbs between all ranks does");
}

std::unique_ptr<Trial> Device::begin_trial(const TrialOptions&) { return nullptr; }

void Device::release(std::span<std::byte> bytes) noexcept { ::munmap(bytes.data(), bytes.size()); }

std::shared_ptr<Device> open_device(const DeviceOptions& options) {
  if (options.transport == "loopback") {
    throw Error(ErrorCode::unavailable,
                "transport loopback joins threads of one process: make the communicators from a LocalGroup");
  }
  if (TransportPair::of(options.transport)) return mixed::open_device(options);
  if (options.transport == "cma") return cma::open_device(options);
  if (options.transport == "shm") return shm::open_device(options);
  if (options.transport == "ibverbs") return ibv::open_device(options);
  return ofi::open_device(options);
}

double link_gbps(const DeviceOptions& options) try {
  if (const auto pair = TransportPair::of(options.transport)) {
    DeviceOptions between = options;
    between.transport = pair->between;
    return link_gbps(between);
  }
  if (options.transport == "loopback" || options.transport == "cma" || options.transport == "shm") return 0;
  return options.transport == "ibverbs" ? ibv::link_gbps(options) : ofi::link_gbps(options);
} catch (const Error&) {
  return 0;
}

bool may_write_processes() { return cma::probe().available; }

std::vector<TransportInfo> list_transports() {
  std::vector<TransportInfo> all{
      {"loopback", true, "threads of one process (LocalGroup)"}, cma::probe(), shm::probe(), ibv::probe()};
  for (const char* name :
       {"tcp", "verbs;ofi_rxm", "efa", "psm3", "opx", "tcp;ofi_rxm", "sockets", "libfabric-shm"})
    all.push_back(ofi::probe(name));
  return all;
}

}  // namespace nzcl::verbs
