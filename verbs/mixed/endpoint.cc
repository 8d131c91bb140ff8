#include "verbs/mixed/endpoint.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nzcl/error.h"

namespace nzcl::verbs::mixed {
namespace {

constexpr std::array kAllLevels{Level::between, Level::within};

Level other(Level level) { return level == Level::between ? Level::within : Level::between; }

/// A descriptor that is readable while one of these is, or none if one of them is missing.
Fd readable_with(std::span<const std::unique_ptr<Endpoint>> endpoints) {
  if (std::ranges::any_of(endpoints, [](const auto& endpoint) { return endpoint->wait_fd() < 0; })) return {};
  Fd all(::epoll_create1(EPOLL_CLOEXEC));
  bool good = all.get() >= 0;
  for (const auto& endpoint : endpoints) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = endpoint->wait_fd()}};
    good = good && ::epoll_ctl(all.get(), EPOLL_CTL_ADD, endpoint->wait_fd(), &event) == 0;
  }
  if (!good)
    throw Error(ErrorCode::system,
                fmt::format("an epoll instance over two endpoints: {}", std::strerror(errno)));
  return all;
}

}  // namespace

MixedEndpoint::MixedEndpoint(std::unique_ptr<Endpoint> between, std::unique_ptr<Endpoint> within,
                             std::vector<Level> levels)
    : endpoints_{std::move(between), std::move(within)},
      levels_(std::move(levels)),
      wait_fd_(readable_with(endpoints_)) {}

void MixedEndpoint::connect(std::span<const std::string> addresses, Deadline deadline) {
  for (const Level level : kAllLevels) {
    std::vector<std::string> of_level(addresses.size());
    for (std::size_t peer = 0; peer < addresses.size(); ++peer) {
      if (levels_[peer] == level) of_level[peer] = addresses[peer];
    }
    at(level).connect(of_level, deadline);
  }
}

/// Writes to peers at one level that follow one another are posted together.
std::size_t MixedEndpoint::post(std::span<const Write> writes) noexcept {
  std::size_t posted = 0;
  while (posted < writes.size()) {
    const Level level = levels_[writes[posted].peer];
    std::size_t end = posted + 1;
    while (end < writes.size() && levels_[writes[end].peer] == level) ++end;
    const std::size_t accepted = at(level).post(writes.subspan(posted, end - posted));
    posted += accepted;
    if (posted < end) break;
  }
  return posted;
}

std::size_t MixedEndpoint::poll(std::span<Completion> out) noexcept {
  const Level first = next_;
  next_ = other(first);
  // The first one leaves room, so that it cannot hold up the other one for ever.
  const std::size_t n = poll_at(first, out.first((out.size() + 1) / 2));
  return n + poll_at(other(first), out.subspan(n));
}

std::size_t MixedEndpoint::poll_at(Level level, std::span<Completion> out) noexcept {
  const std::size_t n = at(level).poll(out);
  for (const Completion& completion : out.first(n)) {
    if (completion.kind == Completion::Kind::failed) failed_ = level;
  }
  return n;
}

bool MixedEndpoint::prepare_wait() noexcept {
  return at(Level::between).prepare_wait() && at(Level::within).prepare_wait();
}

}  // namespace nzcl::verbs::mixed
