#include "verbs/ibv/device.h"

#include <fcntl.h>

#include <algorithm>

#include "verbs/ibv/constants.h"
#include "verbs/ibv/endpoint.h"
#include "verbs/lent_pages.h"

namespace nzcl::verbs::ibv {
namespace {

class IbvRegion final : public MemoryRegion {
 public:
  IbvRegion(Handle<ibv_mr> mr, std::span<std::byte> bytes)
      : MemoryRegion(mr.get()), mr_(std::move(mr)), bytes_(bytes) {}
  std::span<std::byte> bytes() const noexcept override { return bytes_; }
  RemoteMemory remote() const noexcept override {
    return {reinterpret_cast<std::uint64_t>(bytes_.data()), mr_->rkey};
  }

 private:
  Handle<ibv_mr> mr_;
  std::span<std::byte> bytes_;
};

class IbvGpuRegion final : public MemoryRegion {
 public:
  IbvGpuRegion(Handle<ibv_mr> mr, std::span<std::byte> bytes, std::unique_ptr<LentPages> pages)
      : MemoryRegion(mr.get(), false), pages_(std::move(pages)), mr_(std::move(mr)), bytes_(bytes) {}
  std::span<std::byte> bytes() const noexcept override { return bytes_; }
  RemoteMemory remote() const noexcept override {
    return {reinterpret_cast<std::uint64_t>(bytes_.data()), mr_->rkey};
  }

 private:
  const std::unique_ptr<LentPages> pages_;  // of an emulated GPU
  const Handle<ibv_mr> mr_;
  const std::span<std::byte> bytes_;
};

bool is_fatal(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_WQ_FATAL:
      return true;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      return false;
  }
  return false;
}

}  // namespace

IbvDevice::IbvDevice(const DeviceOptions& options) : open_(open_port(options)) {
  const Port& port = open_.port;
  name_ = fmt::format("ibverbs {}:{}", port.device, port.number);
  domain_ = owned(ibv_alloc_pd(context()), name_ + ": allocating a protection domain");
  check(ibv_query_device(context(), &attributes_), name_ + ": asking for the device's limits");
  const int flags = ::fcntl(context()->async_fd, F_GETFL);
  check(::fcntl(context()->async_fd, F_SETFL, flags | O_NONBLOCK) == 0 ? 0 : errno,
        name_ + ": making events non-blocking");
  connection_.traffic_class = static_cast<std::uint8_t>(options.traffic_class);
  connection_.service_level = static_cast<std::uint8_t>(options.service_level);
  connection_.ack_timeout = options.ack_timeout > 0 ? static_cast<std::uint8_t>(options.ack_timeout)
                                                    : ack_timeout_for(options.timeout_s);
  connection_.call_patience = call_patience_for(options.timeout_s);
  connection_.rdma_cm = options.rdma_cm;
  if (options.inline_bytes > 0) connection_.inline_bytes = options.inline_bytes;
  if (options.on_demand_paging) require_on_demand_paging();

  limits_.max_segments = std::min<std::size_t>(kMaxSegments, static_cast<std::size_t>(attributes_.max_sge));
  if (options.max_segments > 0) limits_.max_segments = std::min(limits_.max_segments, options.max_segments);
  limits_.max_write_bytes = port.max_message_bytes;
  limits_.max_posted = kMaxPosted;
  // RC places the writes of a queue pair in order, and the completion of an immediate after all of them. A
  // region with relaxed ordering keeps this: the completion entry is written without relaxed ordering, so
  // that no earlier write may still be under way when it is visible.
  limits_.ordered = true;
  limits_.autonomous = true;
  limits_.link_gbps = port.link_gbps;
  limits_.costs = {.segment = kSegmentCost, .write = kWriteCost, .foreign_byte = 0};
  limits_.endpoint_descriptors = 2;  // a completion channel and the device's events
  limits_.peer_descriptors = options.rdma_cm ? 1 : 0;
}

void IbvDevice::require_on_demand_paging() {
  ibv_device_attr_ex extended{};
  check(ibv_query_device_ex(context(), nullptr, &extended),
        name_ + ": asking whether it has on-demand paging");
  const auto& odp = extended.odp_caps;
  const std::uint32_t needed = IBV_ODP_SUPPORT_WRITE;
  if ((odp.general_caps & IBV_ODP_SUPPORT) == 0 || (odp.per_transport_caps.rc_odp_caps & needed) != needed) {
    throw Error(ErrorCode::unsupported,
                name_ + ": this device has no on-demand paging for writes: leave NZCL_ON_DEMAND_PAGING off");
  }
  access_ |= IBV_ACCESS_ON_DEMAND;
}

std::unique_ptr<MemoryRegion> IbvDevice::register_memory(std::span<std::byte> bytes, MemoryKind) {
  auto handle = owned(ibv_reg_mr(domain_.get(), bytes.data(), bytes.size(), access_),
                      fmt::format("{}: registering {} MiB", name_, bytes.size() >> 20));
  return std::make_unique<IbvRegion>(std::move(handle), bytes);
}

/// Without relaxed ordering: what a GPU promises its kernels of a device's writes, it promises of those that
/// come in order. A kernel's device does not take a memfd for a dmabuf, so that is mapped and registered at
/// the addresses of the emulated GPU.
std::unique_ptr<MemoryRegion> IbvDevice::register_gpu_memory(const GpuMemory& memory) {
  constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  const std::string what = fmt::format("{}: registering {} MiB of a GPU", name_, memory.bytes.size() >> 20);
  const auto address = reinterpret_cast<std::uint64_t>(memory.bytes.data());
  std::unique_ptr<LentPages> pages;
  ibv_mr* mr = nullptr;
  if (LentPages::are_in(memory)) {
    pages = std::make_unique<LentPages>(memory);
    mr = ibv_reg_mr_iova(domain_.get(), pages->bytes().data(), pages->bytes().size(), address, kAccess);
  } else {
    mr =
        ibv_reg_dmabuf_mr(domain_.get(), memory.offset, memory.bytes.size(), address, memory.dmabuf, kAccess);
    if (mr == nullptr && (errno == EOPNOTSUPP || errno == EPROTONOSUPPORT))
      throw Error(ErrorCode::unsupported, what + ": its driver takes no dmabuf");
  }
  return std::make_unique<IbvGpuRegion>(owned(mr, what), memory.bytes, std::move(pages));
}

std::unique_ptr<Endpoint> IbvDevice::open_endpoint(const EndpointOptions& options) {
  return std::make_unique<IbvEndpoint>(*this, options);
}

bool IbvDevice::check_events() noexcept {
  if (fatal_.load(std::memory_order_acquire)) return true;
  const std::unique_lock lock(event_mutex_, std::try_to_lock);
  if (!lock) return false;
  ibv_async_event event;
  while (ibv_get_async_event(context(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    ibv_ack_async_event(&event);
    if (!is_fatal(type)) continue;
    fatal_text_ = fmt::format("{}: {}", name_, ibv_event_type_str(type));
    fatal_.store(true, std::memory_order_release);
    return true;
  }
  return false;
}

std::string IbvDevice::fatal_event() const {
  const std::scoped_lock lock(event_mutex_);
  return fatal_text_;
}

std::shared_ptr<Device> open_device(const DeviceOptions& options) {
  return std::make_shared<IbvDevice>(options);
}

double link_gbps(const DeviceOptions& options) { return open_port(options).port.link_gbps; }

TransportInfo probe() {
  TransportInfo info{"ibverbs", false, ""};
  try {
    const OpenPort open = open_port({});
    const Port& p = open.port;
    info.detail =
        fmt::format("native verbs on {}:{}, {}, GID {}, MTU {}", p.device, p.number,
                    p.ethernet ? "RoCE" : "InfiniBand", p.gid.index, 128 << static_cast<int>(p.mtu));
    info.available = true;
    info.link_gbps = p.link_gbps;
  } catch (const Error& e) {
    info.detail = e.what();
  }
  return info;
}

}  // namespace nzcl::verbs::ibv
