#include "verbs/ofi/endpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

namespace nzcl::verbs::ofi {
namespace {

constexpr std::size_t kBurst = 64;  // completions that poll() reads per call

std::size_t bytes_of(std::span<const Segment> segments) {
  std::size_t bytes = 0;
  for (const Segment& s : segments) bytes += s.bytes;
  return bytes;
}

// libfabric 2 deprecates wait sets. Only the provider `net` needs them, which went with libfabric 1.18.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
int open_wait_set(fid_fabric* fabric, fid_wait*& set) {
  fi_wait_attr attributes{.wait_obj = FI_WAIT_FD, .flags = 0};
  return fi_wait_open(fabric, &attributes, &set);
}
bool may_sleep_on(fid_wait* set) { return fi_wait(set, 0) == -FI_ETIMEDOUT; }
#pragma GCC diagnostic pop

}  // namespace

OfiEndpoint::OfiEndpoint(fid_fabric* fabric, Domains::ForEndpoint domain, fi_info* info,
                         std::string device_name, const Limits& limits, const EndpointOptions& options)
    : fabric_(fabric),
      domain_(std::move(domain.domain)),
      keys_(domain.keys),
      device_name_(std::move(device_name)),
      provider_(info->fabric_attr->prov_name),
      level_(options.level),
      limits_(limits),
      contexts_(limits.max_posted),
      peers_(options.peers, FI_ADDR_NOTAVAIL),
      in_flight_(limits.max_posted) {
  for (std::uint32_t next = 0; InFlight & f : in_flight_) f.next_free = ++next;
  open_queue(limits.max_posted + options.arrivals);
  fi_av_attr av_attr{};
  av_attr.type = FI_AV_TABLE;
  av_attr.count = options.peers;
  fid_av* av = nullptr;
  check(fi_av_open(domain_.get(), &av_attr, &av, nullptr), device_name_ + ": opening an address vector");
  addresses_.reset(av);
  fid_ep* ep = nullptr;
  check(fi_endpoint(domain_.get(), info, &ep, nullptr), device_name_ + ": opening an endpoint");
  endpoint_.reset(ep);
  check(fi_ep_bind(ep, &av->fid, 0), device_name_ + ": binding the address vector");
  check(fi_ep_bind(ep, &queue_->fid, FI_TRANSMIT | FI_RECV), device_name_ + ": binding the completion queue");
  check(fi_enable(ep), device_name_ + ": enabling the endpoint");
}

/// Opens the completion queue, with a descriptor to sleep on if the provider has one that is known to work.
/// shm has none that works between processes, and an endpoint of verbs;ofi_rxm that has one crashes when it
/// is closed (libfabric 1.17 on Soft-RoCE). Endpoints without a descriptor are polled in small steps.
void OfiEndpoint::open_queue(std::size_t size) {
  fi_cq_attr attributes{};
  attributes.format = FI_CQ_FORMAT_DATA;
  attributes.size = size;
  attributes.wait_obj = FI_WAIT_NONE;
  if (provider_ == "net") {
    // With `net`, fi_trywait leaves the descriptor of a queue readable for ever (libfabric 1.17). The
    // descriptor of a wait set works.
    fid_wait* set = nullptr;
    check(open_wait_set(fabric_, set), device_name_ + ": opening a wait set");
    wait_set_.reset(set);
    attributes.wait_obj = FI_WAIT_SET;
    attributes.wait_set = set;
  } else if (provider_.starts_with("tcp") || provider_ == "sockets") {
    attributes.wait_obj = FI_WAIT_FD;
  }
  fid_cq* queue = nullptr;
  check(fi_cq_open(domain_.get(), &attributes, &queue, nullptr),
        device_name_ + ": opening a completion queue");
  queue_.reset(queue);
  if (attributes.wait_obj == FI_WAIT_NONE) return;
  check(fi_control(wait_set_ ? &wait_set_->fid : &queue->fid, FI_GETWAIT, &wait_fd_),
        device_name_ + ": asking for a descriptor to sleep on");
}

std::string OfiEndpoint::name() const {
  std::string name(256, '\0');
  std::size_t bytes = name.size();
  check(fi_getname(&endpoint_->fid, name.data(), &bytes),
        device_name_ + ": asking for the endpoint's address");
  name.resize(bytes);
  return name;
}

/// An address consists of the provider's name, a zero byte, and libfabric's own address.
std::string OfiEndpoint::address_for(PeerId) { return provider_ + '\0' + name(); }

void OfiEndpoint::connect(std::span<const std::string> addresses, Deadline) {
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i].empty()) continue;
    const std::string provider = addresses[i].substr(0, addresses[i].find('\0'));
    if (provider != provider_) {
      throw Error(
          ErrorCode::mismatch,
          fmt::format(
              "{}: peer {} uses libfabric's provider {}; all members need the same libfabric, and the "
              "same NZCL_TRANSPORT and FI_PROVIDER",
              device_name_, i, provider));
    }
    const std::string name = addresses[i].substr(std::min(provider.size() + 1, addresses[i].size()));
    if (name.empty() || fi_av_insert(addresses_.get(), name.data(), 1, &peers_[i], 0, nullptr) != 1) {
      throw Error(ErrorCode::transport,
                  fmt::format("{}: libfabric refused the address of peer {}", device_name_, i));
    }
  }
}

std::size_t OfiEndpoint::post(std::span<const Write> writes) noexcept {
  const auto lock = lock_keys();
  std::size_t n = 0;
  while (n < writes.size() && free_ < in_flight_.size() && !broken_ && post_one(writes[n])) ++n;
  return n;
}

ssize_t OfiEndpoint::write_segment(const Write& write) noexcept {
  const Segment& s = write.segments.front();
  void* const descriptor = s.region->local_descriptor(level_);
  const fi_addr_t peer = peers_[write.peer];
  void* const context = &contexts_[free_];
  return write.immediate ? fi_writedata(endpoint_.get(), s.data, s.bytes, descriptor, *write.immediate, peer,
                                        write.target.address, write.target.key, context)
                         : fi_write(endpoint_.get(), s.data, s.bytes, descriptor, peer, write.target.address,
                                    write.target.key, context);
}

ssize_t OfiEndpoint::write_list(const Write& write) noexcept {
  std::array<iovec, kMaxSegments> iov;
  std::array<void*, kMaxSegments> descriptors;
  for (std::size_t i = 0; i < write.segments.size(); ++i) {
    const Segment& s = write.segments[i];
    iov[i] = {const_cast<std::byte*>(s.data), s.bytes};
    descriptors[i] = s.region->local_descriptor(level_);
  }
  const fi_rma_iov target{
      .addr = write.target.address, .len = bytes_of(write.segments), .key = write.target.key};
  const fi_msg_rma message{.msg_iov = iov.data(),
                           .desc = descriptors.data(),
                           .iov_count = write.segments.size(),
                           .addr = peers_[write.peer],
                           .rma_iov = &target,
                           .rma_iov_count = 1,
                           .context = &contexts_[free_],
                           .data = write.immediate.value_or(0)};
  return fi_writemsg(endpoint_.get(), &message, FI_COMPLETION | (write.immediate ? FI_REMOTE_CQ_DATA : 0));
}

bool OfiEndpoint::post_one(const Write& write) noexcept {
  const ssize_t code = write.segments.size() == 1 ? write_segment(write) : write_list(write);
  if (code == -FI_EAGAIN) return false;
  if (code != 0) {
    broken_ = true;
    broken_peer_ = write.peer;
    failure_ = fmt::format("{}: write of {} bytes to peer {}: {}", device_name_, bytes_of(write.segments),
                           write.peer, text_of(static_cast<int>(-code)));
    return false;
  }
  InFlight& f = in_flight_[free_];
  free_ = f.next_free;
  ++used_;
  f.context = write.context;
  f.peer = write.peer;
  return true;
}

std::size_t OfiEndpoint::poll(std::span<Completion> out) noexcept {
  if (out.empty()) return 0;
  if (broken_) {
    broken_ = false;
    out[0] = {.kind = Completion::Kind::failed, .peer = broken_peer_, .immediate = 0, .context = 0};
    return 1;
  }
  std::array<fi_cq_data_entry, kBurst> entries;
  const auto lock = lock_keys();
  const auto n = fi_cq_read(queue_.get(), entries.data(), std::min(out.size(), entries.size()));
  if (n == -FI_EAGAIN || n == 0) return 0;
  if (n < 0) {
    out[0] = take_error();
    return 1;
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const fi_cq_data_entry& e = entries[i];
    if ((e.flags & FI_REMOTE_CQ_DATA) != 0) {
      out[i] = {.kind = Completion::Kind::arrived,
                .peer = Completion::kNoPeer,
                .immediate = static_cast<std::uint32_t>(e.data),
                .context = 0};
    } else {
      const InFlight f = take_back(e.op_context);
      out[i] = {.kind = Completion::Kind::written, .peer = f.peer, .immediate = 0, .context = f.context};
    }
  }
  return static_cast<std::size_t>(n);
}

OfiEndpoint::InFlight OfiEndpoint::take_back(void* op_context) noexcept {
  const auto place = static_cast<std::uint32_t>(static_cast<fi_context2*>(op_context) - contexts_.data());
  InFlight& f = in_flight_[place];
  f.next_free = std::exchange(free_, place);
  --used_;
  return f;
}

Completion OfiEndpoint::take_error() noexcept {
  fi_cq_err_entry error{};
  PeerId peer = Completion::kNoPeer;
  if (fi_cq_readerr(queue_.get(), &error, 0) > 0) {
    if (error.op_context != nullptr) peer = take_back(error.op_context).peer;
    std::array<char, 256> text{};
    fi_cq_strerror(queue_.get(), error.prov_errno, error.err_data, text.data(), text.size());
    failure_ = fmt::format("{}: {}{} ({})", device_name_,
                           peer == Completion::kNoPeer ? "" : fmt::format("write to peer {}: ", peer),
                           text_of(error.err), text.data());
  } else {
    failure_ = device_name_ + ": the completion queue failed";
  }
  return {.kind = Completion::Kind::failed, .peer = peer, .immediate = 0, .context = 0};
}

bool OfiEndpoint::prepare_wait() noexcept {
  const auto lock = lock_keys();
  if (wait_set_) return may_sleep_on(wait_set_.get());
  fid* fids[] = {&queue_->fid};
  return fi_trywait(fabric_, fids, 1) == FI_SUCCESS;
}

}  // namespace nzcl::verbs::ofi
