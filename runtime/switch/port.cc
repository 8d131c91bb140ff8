#include "runtime/switch/port.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "nzcl/error.h"
#include "runtime/switch/tuning.h"
#include "verbs/random.h"

namespace nzcl::engine::slot_pool {

std::string PortAddress::encode() const {
  return fmt::format("{} {} {} {} {} {} {} {:d}", address, max_bytes, slots, window, job.tag, job.key.low,
                     job.key.high, zeros);
}

PortAddress PortAddress::decode(const std::string& text, const std::string& member) {
  PortAddress a;
  std::istringstream in(text);
  in >> a.address >> a.max_bytes >> a.slots >> a.window >> a.job.tag >> a.job.key.low >> a.job.key.high >>
      a.zeros;
  const std::uint64_t least = sizeof(Header) + sizeof(std::int32_t);
  if (in.fail() || a.max_bytes < least || a.slots > kMostSlots || a.window > a.slots ||
      (a.slots > 0 && a.window == 0))
    throw Error(ErrorCode::transport, fmt::format("{} gave no usable address of its datagram port", member));
  return a;
}

Job draw_job() {
  Job job;
  job.tag = static_cast<std::uint32_t>(verbs::random_number());
  job.key = {verbs::random_number(), verbs::random_number()};
  return job;
}

namespace {

std::size_t largest_packet(const verbs::DatagramPort& port) {
  return std::min<std::size_t>(port.max_bytes(), sizeof(Header) + kMostPieceElements * 4);
}

}  // namespace

std::uint32_t slots_for(const verbs::DatagramPort& port) {
  const std::size_t fits = kMostSlotBytes / (2 * largest_packet(port));
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(fits, kLeastSlots, kMostSlots));
}

std::uint32_t window_for(const verbs::DatagramPort& port, int workers) {
  const std::size_t room = std::min(port.receive_bytes(), kUnderWayUnmeasured);
  const std::size_t fits = room / (largest_packet(port) * static_cast<std::size_t>(workers));
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(fits, kLeastWindow, kMostWindowUnmeasured));
}

std::uint32_t common_piece_elements(std::span<const PortAddress> members) {
  const std::uint64_t least = std::ranges::min_element(members, {}, &PortAddress::max_bytes)->max_bytes;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(kMostPieceElements, (least - sizeof(Header)) / sizeof(std::int32_t)));
}

}  // namespace nzcl::engine::slot_pool
