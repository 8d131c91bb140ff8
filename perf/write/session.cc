#include "perf/write/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

#include "nzcl/error.h"
#include "runtime/bootstrap/host_address.h"
#include "verbs/ibv/device.h"

namespace perf::write {

using namespace nzcl;  // NOLINT: a program, not a header
using nlohmann::json;
using std::chrono::seconds;

namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

Session::Session(Settings settings)
    : settings_(std::move(settings)), meeting_({settings_.host, settings_.port}) {
  if (settings_.transport.empty()) settings_.transport = verbs::ibv::probe().available ? "ibverbs" : "tcp";
  const std::string mine = json{{"options", settings_.shared()}, {"host", bootstrap::host_id()}}.dump();
  const json other = json::parse(exchange(mine));
  const std::string differing = differences(settings_.shared(), other.at("options"));
  if (!differing.empty())
    throw Error(ErrorCode::mismatch, "the two sides were given different options: " + differing);

  settings_.device.transport = settings_.transport;
  settings_.device.one_host = other.at("host") == bootstrap::host_id();
  // If a host has several devices, the two sides take different ones.
  settings_.device.local_rank = settings_.device.one_host ? static_cast<int>(self()) : 0;
  device_ = verbs::open_device(settings_.device);

  const auto sizes = settings_.sizes();
  const std::size_t largest = *std::max_element(sizes.begin(), sizes.end());
  if (largest > device_->limits().max_write_bytes) {
    throw Error(ErrorCode::unsupported,
                fmt::format("transport {} takes at most {} bytes in one write: choose a size by -s",
                            settings_.transport, device_->limits().max_write_bytes));
  }
  half_ = (largest + kPage - 1) / kPage * kPage;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, 2 * half_)));
  if (!memory_) throw std::bad_alloc();
  std::memset(memory_.get(), 0, 2 * half_);
  region_ = device_->register_memory({memory_.get(), 2 * half_}, MemoryKind::host);
  settings_.depth = std::min<int>(settings_.depth, static_cast<int>(device_->limits().max_posted));
  arrivals_ = static_cast<std::uint32_t>(4 * settings_.depth + 16);

  json addresses = json::array();
  for (int i = 0; i < settings_.queue_pairs; ++i) {
    channels_.push_back({device_->open_endpoint({.self = self(), .peers = 2, .arrivals = arrivals_}), {}});
    const std::string address = channels_.back().endpoint->address_for(peer());
    addresses.push_back(json::binary({address.begin(), address.end()}));
  }
  const verbs::RemoteMemory memory = region_->remote().offset(half_);
  const json theirs = json::parse(
      exchange(json{{"address", memory.address}, {"key", memory.key}, {"endpoints", addresses}}.dump()));
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    channels_[i].target = {theirs.at("address"), theirs.at("key")};
    std::array<std::string, 2> all;
    for (const json& byte : theirs.at("endpoints").at(i).at("bytes"))
      all[peer()].push_back(static_cast<char>(byte.get<int>()));
    channels_[i].endpoint->connect(all, verbs::Clock::now() + seconds(30));
  }
  if (settings_.events && channels_.front().endpoint->wait_fd() < 0) {
    throw Error(ErrorCode::unsupported,
                fmt::format("transport {} has nothing to sleep on: leave out -e", settings_.transport));
  }
  exchange("connected");
  write_first();
  exchange("written");
}

/// The first write to a peer may make the connection, which is not what is measured. It writes the byte that
/// is there already. If a side does not see the end of its own, the measurement does.
void Session::write_first() {
  const verbs::Segment byte{memory_.get(), 1, region_.get()};
  for (const Channel& c : channels_) {
    const verbs::Write write{
        .peer = peer(), .segments = {&byte, 1}, .target = c.target, .immediate = {}, .context = 0};
    c.endpoint->post({&write, 1});
  }
  poll_until_over(verbs::Clock::now() + seconds(1));
}

void Session::poll_until_over(verbs::Deadline deadline) {
  std::array<verbs::Completion, 32> ignored;
  const auto busy = [](const Channel& c) { return c.endpoint->in_flight() > 0; };
  while (std::any_of(channels_.begin(), channels_.end(), busy) && verbs::Clock::now() < deadline) {
    for (const Channel& c : channels_) c.endpoint->poll(ignored);
  }
}

/// Waits for the other side, whose last write may still need this side's endpoints.
Session::~Session() {
  try {
    poll_until_over(verbs::Clock::now() + seconds(5));
    meeting_.exchange_within("over", seconds(5));
  } catch (const std::exception&) {  // the other side has gone, so there is nothing to wait for
  }
}

}  // namespace perf::write
