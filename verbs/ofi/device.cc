#include "verbs/ofi/device.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "verbs/link_speed.h"
#include "verbs/ofi/domains.h"
#include "verbs/ofi/endpoint.h"
#include "verbs/ofi/handles.h"
#include "verbs/ofi/keep_signals.h"
#include "verbs/ofi/shm_files.h"
#include "verbs/ofi/shm_name.h"

namespace nzcl::verbs::ofi {
namespace {

constexpr std::uint32_t kApiVersion = FI_VERSION(1, 17);
/// Most writes in flight. More would gain nothing on software providers, but would need a longer completion
/// queue.
constexpr std::size_t kMaxPosted = 256;

/// Over TCP libfabric connects a peer at the first write to it or from it. With connections to so many,
/// operations of log N steps go among thousands of members.
constexpr std::size_t kLeastConnections = 32;

/// The name of libfabric's provider, whose "shm" has another one here, because nzcl has a shm of its own.
constexpr const char* kShm = "libfabric-shm";
std::string provider_of(const std::string& transport) { return transport == kShm ? "shm" : transport; }

bool is_tcp(const std::string& transport) {
  return transport == "tcp" || transport == "net" || transport == "tcp;ofi_rxm";
}

/// Where the endpoints shall listen: at an address of this host, or on a network interface. Both are empty if
/// nothing is known, and then libfabric chooses. Over TCP the narrowest network is taken that reaches all
/// members.
struct Wanted {
  std::string address, interface;

  explicit Wanted(const DeviceOptions& options) {
    if (options.transport == kShm) return;  // it uses no network
    if (options.interface.empty()) {
      if (is_tcp(options.transport)) address = options.loopback_reaches_all ? "127.0.0.1" : options.met_at;
      return;
    }
    // The names of interfaces may contain dots (eth0.100), but no colons.
    in_addr v4;
    const bool is_address = options.interface.find(':') != std::string::npos ||
                            ::inet_pton(AF_INET, options.interface.c_str(), &v4) == 1;
    (is_address ? address : interface) = options.interface;
  }
};

/// Asks for all that `provider` offers for one-sided writes with 4 bytes of remote completion data, from this
/// `address` of this host unless it is empty.
int ask(const std::string& provider, const std::string& address, Info& offers) {
  const Info hints(fi_allocinfo());
  hints->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  // Memory may be registered by one thread while another one polls.
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->av_type = FI_AV_TABLE;
  hints->fabric_attr->prov_name = ::strdup(provider.c_str());
  const std::string source = provider == "shm" ? shm_name() : address;
  fi_info* found = nullptr;
  const int code = source.empty()
                       ? fi_getinfo(kApiVersion, nullptr, nullptr, 0, hints.get(), &found)
                       : fi_getinfo(kApiVersion, source.c_str(), nullptr, FI_SOURCE, hints.get(), &found);
  offers.reset(found);
  return code;
}

/// The first offer on the requested interface. libfabric could be told by a domain name among the hints, but
/// its TCP providers ignore that.
Info choose(const std::string& transport, const std::string& interface, const Info& offers) {
  std::set<std::string> names;
  for (const fi_info* offer = offers.get(); offer != nullptr; offer = offer->next) {
    if (interface.empty() || interface == offer->domain_attr->name) return Info(fi_dupinfo(offer));
    names.insert(offer->domain_attr->name);
  }
  throw Error(ErrorCode::unavailable, fmt::format("transport {}: there is no interface {}, but there are {}",
                                                  transport, interface, fmt::join(names, ", ")));
}

/// Asks the best provider. Over TCP that is `net`, if there is one (libfabric 1.16 and 1.17). Otherwise it is
/// `tcp`, whose reliable datagrams are its own from 1.18 on, when net became a part of it, and those of
/// ofi_rxm before.
int get_info(const std::string& transport, const std::string& address, Info& offers) {
  if (transport == "tcp" && ask("net", address, offers) == 0) return 0;
  return ask(provider_of(transport), address, offers);
}

bool is_loopback(const fi_info& info) {
  const auto* address = static_cast<const sockaddr*>(info.src_addr);
  if (address == nullptr) return false;
  if (info.addr_format == FI_SOCKADDR_IN) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return info.addr_format == FI_SOCKADDR_IN6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

/// Refuses the loopback interface, to which libfabric falls back when no other one is up, if some members are
/// on other hosts.
void require_way_out(const DeviceOptions& options, const fi_info& info) {
  if (options.one_host || !options.interface.empty() || !is_loopback(info)) return;
  throw Error(ErrorCode::unavailable,
              fmt::format("transport {}: only the loopback interface is up here, but not all members are on "
                          "this host; set NZCL_INTERFACE to a network interface or its address",
                          options.transport));
}

/// The costs of a write come from nzcl_write_bw, and those of a gather entry from what the kernel takes for
/// one entry of an I/O vector: perf/results/tuning.md has the measurements.
Costs costs_of(const std::string& provider) {
  if (provider == "shm") return {.segment = 8 << 10, .write = 16 << 10, .foreign_byte = 0};
  if (provider == "tcp;ofi_rxm") return {.segment = 8 << 10, .write = 48 << 10, .foreign_byte = 0};
  if (provider == "net" || provider == "tcp")
    return {.segment = 8 << 10, .write = 32 << 10, .foreign_byte = 0};
  // Other providers are assumed to have a device that sends by itself.
  return {.segment = 2 << 10, .write = 8 << 10, .foreign_byte = 0};
}

/// What the provider says of its link or, over TCP, what the kernel says of the network interface.
double gbps_of(const fi_info& info) {
  const fid_nic* nic = info.nic;
  if (nic != nullptr && nic->link_attr != nullptr && nic->link_attr->speed > 0)
    return static_cast<double>(nic->link_attr->speed) / 1e9;
  return interface_gbps(info.domain_attr->name);
}

class OfiDevice final : public Device {
 public:
  /// `address` is the address that the user gave, or empty.
  OfiDevice(Info info, const std::string& address)
      : info_(std::move(info)), provider_(info_->fabric_attr->prov_name) {
    const KeepSignals keep;
    name_ = fmt::format("{} ({}{}{})", provider_ == "shm" ? kShm : provider_, info_->domain_attr->name,
                        address.empty() ? "" : ", ", address);
    fid_fabric* fabric = nullptr;
    check(fi_fabric(info_->fabric_attr, &fabric, nullptr), name_ + ": opening the fabric",
          ErrorCode::unavailable);
    fabric_.reset(fabric);
    domains_.emplace(fabric, info_.get(), name_);
    if (provider_ == "shm") shm_.emplace();
    if (info_->domain_attr->cq_data_size < 4) {
      throw Error(ErrorCode::unavailable,
                  fmt::format("{}: the provider has {} bytes of remote completion data, but nzcl needs 4",
                              name_, info_->domain_attr->cq_data_size));
    }
    limits_.max_segments = std::clamp<std::size_t>(
        info_->tx_attr->rma_iov_limit ? info_->tx_attr->iov_limit : 1, 1, kMaxSegments);
    limits_.max_write_bytes = std::min<std::size_t>(info_->ep_attr->max_msg_size, std::size_t{1} << 30);
    limits_.max_posted = std::min(info_->tx_attr->size, kMaxPosted);
    // The provider must keep the order of writes of every size that nzcl may post, remote completion data
    // included.
    limits_.ordered = (info_->tx_attr->msg_order & FI_ORDER_WAW) != 0 &&
                      info_->ep_attr->max_order_waw_size >= limits_.max_write_bytes;
    limits_.link_gbps = gbps_of(*info_);
    limits_.costs = costs_of(provider_);
    if (provider_ != "shm") {
      limits_.endpoint_descriptors = 8, limits_.peer_descriptors = 1;  // sockets and epoll
      if (is_tcp(provider_)) limits_.least_peers = kLeastConnections;
    }
  }

  std::string name() const override { return name_; }
  const Limits& limits() const noexcept override { return limits_; }

  std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind) override {
    return domains_->register_memory(bytes);
  }

  std::unique_ptr<Endpoint> open_endpoint(const EndpointOptions& options) override {
    const KeepSignals keep;
    if (shm_) shm_->make_room();
    auto endpoint = std::make_unique<OfiEndpoint>(fabric_.get(), domains_->for_endpoint(), info_.get(), name_,
                                                  limits_, options);
    if (shm_) ShmFiles::fill(endpoint->name());
    return endpoint;
  }

  std::unique_ptr<Trial> begin_trial(const TrialOptions& options) override {
    return shm_ ? shm_->begin_trial(options) : nullptr;
  }

 private:
  Info info_;
  std::string provider_, name_;
  Handle<fid_fabric> fabric_;
  std::optional<Domains> domains_;
  std::optional<ShmFiles> shm_;  // of the provider shm
  Limits limits_;
};

}  // namespace

namespace {

/// libfabric does not say that its shm is missing only because /dev/shm is too small.
std::string shm_hint(const std::string& transport) {
  if (transport != kShm) return {};
  return fmt::format(" ({}; libfabric wants {} MiB for each of the machine's {} cores)", shm_free_text(),
                     kShmEndpointBytes >> 20, ::sysconf(_SC_NPROCESSORS_ONLN));
}

/// Finds the provider and the interface that the options ask for. Throws Error{unavailable}.
Info find(const DeviceOptions& options, const Wanted& wanted) {
  Info offers;
  const int code = get_info(options.transport, wanted.address, offers);
  if (code != 0) {
    throw Error(ErrorCode::unavailable,
                fmt::format("transport {}{}: libfabric offers no such provider with one-sided writes: {}{}; "
                            "`nzcl_info` lists what there is",
                            options.transport, options.interface.empty() ? "" : " on " + options.interface,
                            fi_strerror(-code), shm_hint(options.transport)));
  }
  Info info = choose(options.transport, wanted.interface, offers);
  require_way_out(options, *info);
  return info;
}

}  // namespace

std::shared_ptr<Device> open_device(const DeviceOptions& options) {
  if (options.transport == kShm) remove_shm_leftovers();
  const Wanted wanted(options);
  Info info = find(options, wanted);
  return std::make_shared<OfiDevice>(std::move(info), wanted.address);
}

double link_gbps(const DeviceOptions& options) { return gbps_of(*find(options, Wanted(options))); }

TransportInfo probe(const std::string& transport) try {
  Info info;
  const int code = get_info(transport, "", info);
  if (code != 0)
    return {transport, false,
            fmt::format(
                "libfabric {}: {}{}", provider_of(transport),
                code == -FI_ENODATA ? "no such provider, or no device that it can use" : fi_strerror(-code),
                shm_hint(transport))};
  return {transport, true,
          fmt::format("libfabric {} on {}", info->fabric_attr->prov_name, info->domain_attr->name),
          gbps_of(*info)};
} catch (const Error& e) {  // libfabric could not be loaded
  return {transport, false, e.what()};
}

}  // namespace nzcl::verbs::ofi
