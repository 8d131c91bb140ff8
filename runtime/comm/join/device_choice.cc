#include "runtime/comm/join/device_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "nzcl/error.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/string_list.h"
#include "runtime/plan/transport_choice.h"
#include "verbs/mixed/pair.h"
#include "verbs/trial.h"

namespace nzcl::comm {
namespace {

using bootstrap::decode_strings;
using bootstrap::encode_strings;

/// This member's part of the attempt to use a transport.
struct Attempt {
  std::shared_ptr<verbs::Device> device;  // nullptr if it cannot be opened
  std::unique_ptr<verbs::Trial> trial;    // nullptr if there is nothing to try
  std::string refusal;                    // why this member alone cannot use the transport
};

/// The members that this one is to share memory with, itself included: those of its host if the others are
/// reached by another transport, and otherwise all.
std::vector<int> mates_of(const std::string& transport, const engine::Membership& membership, int member) {
  if (verbs::TransportPair::of(transport)) return membership.hosts.group_of_member(member);
  std::vector<int> all(static_cast<std::size_t>(membership.members.count()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

const std::string& name_of(const engine::Membership& membership, std::size_t member) {
  return membership.names[static_cast<std::size_t>(membership.position_of[member])];
}

std::shared_ptr<verbs::Device> device_of(const verbs::DeviceOptions& options, const DeviceChoice* open) {
  return open != nullptr && open->options == options ? open->device : verbs::open_device(options);
}

Attempt attempt_with(const verbs::DeviceOptions& options, const DeviceChoice* open,
                     const engine::Membership& membership) {
  Attempt attempt;
  const int self = membership.members.self;
  const auto mates = mates_of(options.transport, membership, self);
  const auto index = std::find(mates.begin(), mates.end(), self) - mates.begin();
  try {
    attempt.device = device_of(options, open);
    attempt.trial = attempt.device->begin_trial({.self = static_cast<verbs::PeerId>(index),
                                                 .peers = mates.size(),
                                                 .endpoints = static_cast<std::size_t>(membership.lanes)});
  } catch (const Error& e) {
    attempt.refusal = e.what();
  }
  return attempt;
}

/// What a member tells the others in the first step.
struct Said {
  std::string refusal;    // why it cannot use the transport
  std::string of_device;  // what the caller tells all others of it
  std::string offer;      // only to those that are to try it

  std::string encode() const { return encode_strings({refusal, of_device, offer}); }
  /// By member, from what was told by position.
  static std::vector<Said> decode(const std::vector<std::string>& texts,
                                  const engine::Membership& membership) {
    std::vector<Said> all;
    for (const int position : membership.position_of) {
      auto strings = decode_strings(texts[static_cast<std::size_t>(position)]);
      if (strings.size() != 3)
        throw Error(ErrorCode::mismatch, membership.names[static_cast<std::size_t>(position)] +
                                             " sent something else than its part of a trial");
      all.push_back({std::move(strings[0]), std::move(strings[1]), std::move(strings[2])});
    }
    return all;
  }
};

/// Tries all others of `mates`. Returns why the first of those that have not refused themselves cannot be
/// reached, or an empty string.
std::string try_all(Attempt& attempt, const std::vector<Said>& offers, const engine::Membership& membership,
                    const std::vector<int>& mates) {
  if (!attempt.refusal.empty() || !attempt.trial) return {};
  for (const int mate : mates) {
    if (mate == membership.members.self) continue;
    const auto member = static_cast<std::size_t>(mate);
    if (!offers[member].refusal.empty()) continue;  // it has said why
    const std::string failure = attempt.trial->try_peer(offers[member].offer);
    if (!failure.empty()) return fmt::format("with {}: {}", name_of(membership, member), failure);
  }
  return {};
}

/// By position: only those that are to try it are told what is offered.
std::vector<std::string> offers_of(const Said& mine, const engine::Membership& membership,
                                   const std::vector<int>& mates) {
  std::vector<std::string> texts(membership.position_of.size(),
                                 Said{mine.refusal, mine.of_device, {}}.encode());
  for (const int mate : mates)
    texts[static_cast<std::size_t>(membership.position_of[static_cast<std::size_t>(mate)])] = mine.encode();
  return texts;
}

/// Returns the first reason why the transport does not work between all that are to share memory, or an empty
/// string. Enters what all have told of their devices, by position.
std::string try_transport(const std::string& transport, Attempt& attempt, const TellOfDevice& tell,
                          std::vector<std::string>& told_of_devices, const engine::Membership& membership,
                          bootstrap::Rounds& meeting, bootstrap::Deadline deadline) {
  const auto mates = mates_of(transport, membership, membership.members.self);
  const std::string offer = attempt.trial ? attempt.trial->offer() : std::string();
  const std::string of_device = attempt.device ? tell(*attempt.device) : std::string();
  const auto told =
      meeting.tell_each(offers_of({attempt.refusal, of_device, offer}, membership, mates), deadline);
  const auto offers = Said::decode(told, membership);
  const auto found = meeting.allgather(try_all(attempt, offers, membership, mates), deadline);
  for (std::size_t member = 0; member < offers.size(); ++member) {
    const auto position = static_cast<std::size_t>(membership.position_of[member]);
    const std::string& why = offers[member].refusal.empty() ? found[position] : offers[member].refusal;
    if (!why.empty()) return fmt::format("{}: {}", name_of(membership, member), why);
  }
  told_of_devices.resize(told.size());
  for (std::size_t member = 0; member < offers.size(); ++member)
    told_of_devices[static_cast<std::size_t>(membership.position_of[member])] = offers[member].of_device;
  return {};
}

}  // namespace

DeviceChoice choose_device(const Options& options, const engine::Membership& membership, int numa_node,
                           const DeviceChoice* open, const TellOfDevice& tell, bootstrap::Rounds& meeting,
                           bootstrap::Deadline deadline) {
  const auto transports = engine::transports_of(options, membership);
  verbs::DeviceOptions device = engine::device_options(options, membership, numa_node);
  for (const std::string& transport : transports) {
    device.transport = transport;
    const auto pair = verbs::TransportPair::of(transport);
    if (!pair && !verbs::is_within_host(transport)) {
      auto opened = device_of(device, open);
      auto told = meeting.allgather(tell(*opened), deadline);
      return {device, std::move(opened), std::move(told)};
    }
    Attempt attempt = attempt_with(device, open, membership);
    std::vector<std::string> told;
    const std::string refusal = try_transport(transport, attempt, tell, told, membership, meeting, deadline);
    if (refusal.empty()) return {device, std::move(attempt.device), std::move(told)};
    if (transport == transports.back()) throw Error(ErrorCode::unavailable, refusal);
    if (membership.members.self == 0)
      log().warn("the transport {} cannot be used within {}: {}", pair ? pair->within : transport,
                 pair ? "each host" : "this host", refusal);
  }
  throw Error(ErrorCode::internal, "no transport suits the members");  // the last one was returned or refused
}

}  // namespace nzcl::comm
