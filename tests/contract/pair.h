// Two or more connected endpoints with registered memory. The test's own thread polls them in turn.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/contract/backends.h"

namespace nzcl::verbs::test {

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

constexpr std::chrono::seconds kPatience{30};  // no test takes a second, so a test that takes this long hangs
constexpr std::byte kUntouched{0xee};          // fills the targets before a write; no source contains it
constexpr std::size_t kGuard = 67;             // bytes around a target; odd, so that targets are not aligned

/// A pattern of bytes that differs from place to place and between seeds, and never contains kUntouched.
inline std::vector<std::byte> pattern(std::size_t bytes, std::size_t seed) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>((i * 131 + (i >> 8) * 17 + (i >> 16) * 29 + seed * 53) % 0xe0);
  return out;
}

/// Compares all bytes, and reports the first one that differs.
inline AssertionResult same(std::span<const std::byte> expected, std::span<const std::byte> actual) {
  if (expected.size() != actual.size())
    return AssertionFailure() << actual.size() << " bytes, expected " << expected.size();
  const auto [e, a] = std::ranges::mismatch(expected, actual);
  if (e == expected.end()) return AssertionSuccess();
  return AssertionFailure() << "byte " << e - expected.begin() << " of " << expected.size() << " is "
                            << std::to_integer<int>(*a) << ", expected " << std::to_integer<int>(*e);
}

/// A list of writes that owns their gather lists.
class Writes {
 public:
  void add(PeerId to, std::vector<Segment> segments, const RemoteMemory& target,
           std::optional<std::uint32_t> immediate = {}, std::uint64_t context = 0) {
    segments_.push_back(std::move(segments));
    writes_.push_back({.peer = to,
                       .segments = segments_.back(),
                       .target = target,
                       .immediate = immediate,
                       .context = context});
  }
  std::span<const Write> all() const { return writes_; }

 private:
  std::deque<std::vector<Segment>> segments_;
  std::vector<Write> writes_;
};

/// An endpoint with the memory that it sends from, the memory that peers write into, and all completions so
/// far.
struct Peer {
  std::vector<std::byte> source, target;
  std::unique_ptr<MemoryRegion> source_region, target_region;
  std::unique_ptr<Endpoint> endpoint;
  std::vector<std::uint64_t> written;  // contexts of `written` completions
  std::vector<std::uint32_t> arrived;  // immediates of `arrived` completions
  std::function<void(const Completion&)> on_completion = [](const Completion&) {};

  Segment segment(std::size_t offset, std::size_t bytes) const {
    return {source.data() + offset, static_cast<std::uint32_t>(bytes), source_region.get()};
  }
};

/// Endpoints 0 and 1 are on one host, and so are 2 and 3. This matters only to devices that join two others.
inline Level level_of(PeerId a, PeerId b) { return a / 2 == b / 2 ? Level::within : Level::between; }

class Peers {
 public:
  /// `joined` tells which endpoints connect to each other. By default each one connects to all others.
  Peers(
      std::span<const std::shared_ptr<Device>> devices, std::size_t count, std::size_t bytes,
      const std::function<bool(PeerId, PeerId)>& joined = [](PeerId a, PeerId b) { return a != b; })
      : peers_(count) {
    for (PeerId i = 0; i < count; ++i) {
      Peer& p = peers_[i];
      p.source = pattern(bytes, i);
      p.target.assign(bytes, kUntouched);
      p.source_region = devices[i]->register_memory(p.source, MemoryKind::host);
      p.target_region = devices[i]->register_memory(p.target, MemoryKind::host);
      std::vector<Level> levels;
      for (PeerId j = 0; j < count; ++j) levels.push_back(level_of(i, j));
      p.endpoint = devices[i]->open_endpoint({.self = i, .peers = count, .levels = std::move(levels)});
    }
    // The addresses are exchanged first. Then all endpoints connect at the same time, because the connect()
    // of a backend may wait for that of the peer.
    std::vector<std::vector<std::string>> addresses(count, std::vector<std::string>(count));
    for (PeerId i = 0; i < count; ++i) {
      for (PeerId j = 0; j < count; ++j) {
        if (joined(i, j)) addresses[i][j] = peers_[j].endpoint->address_for(i);
      }
    }
    std::vector<std::string> errors(count);
    std::vector<std::jthread> connecting;
    for (PeerId i = 0; i < count; ++i) {
      connecting.emplace_back([this, i, &errors, &addresses] {
        try {
          peers_[i].endpoint->connect(addresses[i], Clock::now() + kPatience);
        } catch (const std::exception& error) {
          errors[i] = error.what();
        }
      });
    }
    connecting.clear();
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
  /// No endpoint is closed before all writes have completed.
  ~Peers() {
    if (!::testing::Test::HasFatalFailure()) {
      EXPECT_TRUE(drain());
    }
    for (Peer& p : peers_) p.endpoint.reset();
  }
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  Peer& operator[](std::size_t i) { return peers_[i]; }
  /// Where `from` writes to, for a place in the target of `to`.
  RemoteMemory at(PeerId from, PeerId to, std::size_t offset) const {
    return peers_[to].target_region->remote_at(level_of(from, to)).offset(offset);
  }

  /// Polls one endpoint once.
  void poll(Peer& p) {
    std::array<Completion, 16> out;
    const std::size_t n = p.endpoint->poll(out);
    for (const Completion& c : std::span(out).first(n)) {
      switch (c.kind) {
        case Completion::Kind::written:
          p.written.push_back(c.context);
          break;
        case Completion::Kind::arrived:
          p.arrived.push_back(c.immediate);
          break;
        case Completion::Kind::failed:
          failure_ = p.endpoint->failure();
          break;
      }
      p.on_completion(c);
    }
  }
  /// Polls every endpoint that still exists, once.
  void poll() {
    for (Peer& p : peers_) {
      if (p.endpoint) poll(p);
    }
  }
  /// Repeats `step` (by default: poll all endpoints) until `done` is true. Fails after a failed completion,
  /// or after kPatience.
  AssertionResult until(const std::function<bool()>& done, const std::function<void()>& step) {
    const auto deadline = Clock::now() + kPatience;
    while (!done()) {
      if (!failure_.empty()) return AssertionFailure() << failure_;
      if (Clock::now() > deadline) return timed_out();
      step();
      std::this_thread::yield();
    }
    return AssertionSuccess();
  }
  AssertionResult until(const std::function<bool()>& done) {
    return until(done, [this] { poll(); });
  }
  /// Posts all writes, and polls while there is no room.
  AssertionResult post(PeerId from, const Writes& writes) {
    auto rest = writes.all();
    return until([&] {
      rest = rest.subspan(peers_[from].endpoint->post(rest));
      return rest.empty();
    });
  }
  AssertionResult drain() {
    return until([this] {
      return std::ranges::all_of(peers_,
                                 [](const Peer& p) { return !p.endpoint || p.endpoint->in_flight() == 0; });
    });
  }
  /// Goes on polling for a while after all that was expected has come, so that an unexpected second
  /// completion would be seen.
  AssertionResult linger() {
    int left = 300;
    return until([&] { return left-- == 0; });
  }

 private:
  AssertionResult timed_out() const {
    auto result = AssertionFailure() << "nothing more came;";
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const Peer& p = peers_[i];
      result << " peer " << i << ": " << p.written.size() << " written, " << p.arrived.size() << " arrived, "
             << (p.endpoint ? p.endpoint->in_flight() : 0) << " in flight;";
    }
    return result;
  }

  std::vector<Peer> peers_;
  std::string failure_;
};

}  // namespace nzcl::verbs::test
