#include "verbs/loopback/network.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>

#include "nzcl/error.h"
#include "verbs/lent_pages.h"

namespace nzcl::verbs {
namespace {

/// What arrives at an endpoint. Writers copy while they hold the mutex, so that the owner, which takes it
/// too, sees the bytes of every write whose immediate it takes.
struct Inbox {
  Inbox() : event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (event < 0) throw Error(ErrorCode::system, fmt::format("eventfd: {}", std::strerror(errno)));
  }
  ~Inbox() { ::close(event); }
  std::mutex mutex;
  bool open = true;
  std::deque<std::uint32_t> immediates;
  const int event;
};

}  // namespace

class LoopbackState {
 public:
  /// Memory that is written at `bytes` where peers name the addresses of `named`, which are as many.
  std::uint64_t add_region(std::span<std::byte> named, std::byte* bytes) {
    const std::scoped_lock lock(mutex_);
    regions_[next_key_] = {named, bytes};
    return next_key_++;
  }
  void remove_region(std::uint64_t key) {
    const std::scoped_lock lock(mutex_);
    regions_.erase(key);
  }
  /// Returns where that memory is, or nullptr if it is not all registered.
  std::byte* reach(const RemoteMemory& target, std::uint64_t bytes) {
    const std::scoped_lock lock(mutex_);
    const auto found = regions_.find(target.key);
    if (found == regions_.end()) return nullptr;
    const auto& [named, at] = found->second;
    const auto first = reinterpret_cast<std::uint64_t>(named.data());
    if (target.address < first || target.address + bytes > first + named.size()) return nullptr;
    return at + (target.address - first);
  }
  std::uint64_t add_inbox(const std::shared_ptr<Inbox>& inbox) {
    const std::scoped_lock lock(mutex_);
    inboxes_[next_inbox_] = inbox;
    return next_inbox_++;
  }
  std::shared_ptr<Inbox> inbox(std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    const auto found = inboxes_.find(number);
    return found == inboxes_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::uint64_t next_key_ = 1, next_inbox_ = 1;
  struct Reached {
    std::span<std::byte> named;
    std::byte* bytes;
  };
  std::map<std::uint64_t, Reached> regions_;
  std::map<std::uint64_t, std::weak_ptr<Inbox>> inboxes_;
};

namespace {

class LoopbackRegion final : public MemoryRegion {
 public:
  LoopbackRegion(std::shared_ptr<LoopbackState> state, std::span<std::byte> bytes,
                 std::unique_ptr<LentPages> pages = nullptr)
      : MemoryRegion(nullptr, pages == nullptr),
        state_(std::move(state)),
        pages_(std::move(pages)),
        bytes_(bytes),
        key_(state_->add_region(bytes, pages_ ? pages_->bytes().data() : bytes.data())) {}
  ~LoopbackRegion() override { state_->remove_region(key_); }
  std::span<std::byte> bytes() const noexcept override { return bytes_; }
  RemoteMemory remote() const noexcept override {
    return {reinterpret_cast<std::uint64_t>(bytes_.data()), key_};
  }

 private:
  std::shared_ptr<LoopbackState> state_;
  const std::unique_ptr<LentPages> pages_;  // of an emulated GPU
  std::span<std::byte> bytes_;
  std::uint64_t key_;
};

class LoopbackEndpoint final : public Endpoint {
 public:
  LoopbackEndpoint(std::shared_ptr<LoopbackState> state, const LoopbackOptions& options, PeerId self)
      : state_(std::move(state)),
        options_(options),
        inbox_(std::make_shared<Inbox>()),
        number_(state_->add_inbox(inbox_)),
        random_(options.faults.seed * 7919 + self) {}
  ~LoopbackEndpoint() override {
    const std::scoped_lock lock(inbox_->mutex);  // waits for a peer that is writing right now
    inbox_->open = false;
  }

  std::string address_for(PeerId) override { return std::to_string(number_); }
  void connect(std::span<const std::string> addresses, Deadline) override {
    peers_.resize(addresses.size());
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      if (addresses[i].empty()) continue;
      std::size_t inbox = 0;
      const char* const end = addresses[i].data() + addresses[i].size();
      if (const auto read = std::from_chars(addresses[i].data(), end, inbox);
          read.ec != std::errc() || read.ptr != end) {
        throw Error(ErrorCode::transport,
                    fmt::format("loopback: peer {} gave an address that is not a number", i));
      }
      peers_[i] = state_->inbox(inbox);
      if (!peers_[i]) throw Error(ErrorCode::transport, fmt::format("loopback: peer {} is gone", i));
    }
  }

  std::size_t post(std::span<const Write> writes) noexcept override {
    std::size_t limit = writes.size();
    if (options_.faults.accept_at_most > 0)
      limit = std::min<std::size_t>(limit, 1 + random_() % options_.faults.accept_at_most);
    std::size_t n = 0;
    for (; n < limit && in_flight() < options_.limits.max_posted; ++n) {
      const Write& write = writes[n];
      Flying f{.segments = {write.segments.begin(), write.segments.end()},
               .peer = write.peer,
               .target = write.target,
               .immediate = write.immediate,
               .context = write.context,
               .polls = options_.faults.delay_polls
                            ? static_cast<std::uint32_t>(random_() % (options_.faults.delay_polls + 1))
                            : 0,
               .number = posted_++};
      flying_.push_back(std::move(f));
    }
    if (options_.faults.delay_polls == 0) deliver();
    return n;
  }

  std::size_t poll(std::span<Completion> out) noexcept override {
    for (Flying& f : flying_) {
      if (f.polls > 0) --f.polls;
    }
    deliver();
    std::size_t n = 0;
    for (; n < out.size() && !completions_.empty(); ++n) {
      out[n] = completions_.front();
      completions_.pop_front();
    }
    const std::scoped_lock lock(inbox_->mutex);
    for (; n < out.size() && !inbox_->immediates.empty(); ++n) {
      out[n] = {.kind = Completion::Kind::arrived,
                .peer = Completion::kNoPeer,
                .immediate = inbox_->immediates.front(),
                .context = 0};
      inbox_->immediates.pop_front();
    }
    return n;
  }

  const std::byte* view(PeerId, RemoteMemory memory, std::size_t bytes) const noexcept override {
    return options_.limits.readable ? state_->reach(memory, bytes) : nullptr;
  }
  std::string failure() const override { return failure_; }
  std::size_t in_flight() const noexcept override { return flying_.size() + completions_.size() + stalled_; }
  int wait_fd() const noexcept override { return inbox_->event; }
  bool prepare_wait() noexcept override {
    std::uint64_t count;
    [[maybe_unused]] const auto n = ::read(inbox_->event, &count, sizeof count);
    const std::scoped_lock lock(inbox_->mutex);
    return inbox_->immediates.empty() && completions_.empty() && flying_.empty();
  }

 private:
  struct Flying {
    std::vector<Segment> segments;
    PeerId peer;
    RemoteMemory target;
    std::optional<std::uint32_t> immediate;
    std::uint64_t context;
    std::uint32_t polls;
    std::uint64_t number;
  };

  /// Lands the writes whose delay is over. If the limits promise order, a delayed write holds back all later
  /// writes to the same peer.
  void deliver() {
    std::vector<bool> blocked(peers_.size(), false);
    for (auto f = flying_.begin(); f != flying_.end();) {
      const bool known = f->peer < blocked.size();  // land() reports a write to any other peer as failed
      if (f->polls > 0 || (options_.limits.ordered && known && blocked[f->peer])) {
        if (known) blocked[f->peer] = true;
        ++f;
        continue;
      }
      land(*f);
      f = flying_.erase(f);
    }
  }

  void land(const Flying& f) {
    if (options_.faults.stall_at && f.number >= *options_.faults.stall_at) {
      ++stalled_;
      return;
    }
    std::uint64_t bytes = 0;
    for (const Segment& s : f.segments) bytes += s.bytes;
    if (options_.faults.fail_at && f.number >= *options_.faults.fail_at)
      return fail(f, "retries exceeded (scripted loss)");
    if (f.segments.size() > options_.limits.max_segments || bytes > options_.limits.max_write_bytes ||
        bytes == 0) {
      return fail(f, fmt::format("{} segments with {} bytes in total are outside the limits",
                                 f.segments.size(), bytes));
    }
    Inbox* inbox = f.peer < peers_.size() ? peers_[f.peer].get() : nullptr;
    if (inbox == nullptr) return fail(f, "not connected");
    const std::scoped_lock lock(inbox->mutex);
    if (!inbox->open) return fail(f, "the endpoint is gone");
    std::byte* to = state_->reach(f.target, bytes);
    if (to == nullptr) return fail(f, "remote access error: the target is not registered memory");
    for (const Segment& s : f.segments) {
      const std::byte* from = s.data;
      if (s.region != nullptr && !s.region->host_reaches()) {
        const RemoteMemory named = s.region->remote();
        from = state_->reach(named.offset(static_cast<std::uint64_t>(s.data - s.region->bytes().data())),
                             s.bytes);
        if (from == nullptr) return fail(f, "local access error: the source is not registered memory");
      }
      std::memcpy(to, from, s.bytes);
      to += s.bytes;
    }
    completions_.push_back(
        {.kind = Completion::Kind::written, .peer = f.peer, .immediate = 0, .context = f.context});
    if (f.immediate) {
      inbox->immediates.push_back(*f.immediate);
      const std::uint64_t one = 1;
      [[maybe_unused]] const auto n = ::write(inbox->event, &one, sizeof one);
    }
  }
  void fail(const Flying& f, const std::string& why) {
    failure_ = fmt::format("loopback write to peer {}: {}", f.peer, why);
    completions_.push_back(
        {.kind = Completion::Kind::failed, .peer = f.peer, .immediate = 0, .context = f.context});
  }

  std::shared_ptr<LoopbackState> state_;
  const LoopbackOptions options_;
  std::shared_ptr<Inbox> inbox_;
  const std::uint64_t number_;
  std::vector<std::shared_ptr<Inbox>> peers_;
  std::deque<Flying> flying_;
  std::deque<Completion> completions_;
  std::size_t stalled_ = 0;  // writes that `stall_at` lost; they stay in flight for ever
  std::uint64_t posted_ = 0;
  std::minstd_rand random_;
  std::string failure_;
};

class LoopbackDevice final : public Device {
 public:
  LoopbackDevice(std::shared_ptr<LoopbackState> state, const LoopbackOptions& options)
      : state_(std::move(state)), options_(options) {}
  std::string name() const override { return "loopback"; }
  const Limits& limits() const noexcept override { return options_.limits; }
  std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind) override {
    return std::make_unique<LoopbackRegion>(state_, bytes);
  }
  /// Of an emulated GPU, and where messages are not read in place, which takes the host.
  std::unique_ptr<MemoryRegion> register_gpu_memory(const GpuMemory& memory) override {
    if (options_.limits.readable || !LentPages::are_in(memory)) return Device::register_gpu_memory(memory);
    return std::make_unique<LoopbackRegion>(state_, memory.bytes, std::make_unique<LentPages>(memory));
  }
  std::unique_ptr<Endpoint> open_endpoint(const EndpointOptions& options) override {
    return std::make_unique<LoopbackEndpoint>(state_, options_, options.self);
  }

 private:
  std::shared_ptr<LoopbackState> state_;
  const LoopbackOptions options_;
};

}  // namespace

LoopbackNetwork::LoopbackNetwork() : state_(std::make_shared<LoopbackState>()) {}

std::shared_ptr<Device> LoopbackNetwork::device(const LoopbackOptions& options) {
  return std::make_shared<LoopbackDevice>(state_, options);
}

}  // namespace nzcl::verbs
