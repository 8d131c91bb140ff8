#include "verbs/shm/handshake.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "nzcl/error.h"
#include "verbs/descriptors.h"
#include "verbs/shm/passing.h"

namespace nzcl::verbs::shm {
namespace {

using std::chrono::milliseconds;

/// How long nothing is tried that failed for lack of room.
constexpr milliseconds kBetweenTries{2};
/// The longest sleep, after which the deadline is looked at.
constexpr milliseconds kLongestSleep{100};
/// Callers that may be silent at a time. If there are more, the first one is dropped.
constexpr std::size_t kMostSilent = 256;

/// Whether there may be room for a message later: in the socket, or for descriptors on their way, of which a
/// user may have no more than a process may have open (ETOOMANYREFS).
bool may_work_later(int error) { return error == EAGAIN || error == ETOOMANYREFS || error == EINTR; }

[[noreturn]] void fail(PeerId peer, const char* doing, int error) {
  const bool gone = error == ECONNREFUSED || error == ENOENT || error == EPIPE || error == ECONNRESET;
  throw Error(gone ? ErrorCode::peer_failed : ErrorCode::system,
              fmt::format("shm: {} peer {}: {}{} (connecting to peer {})", doing, peer, error_text(error),
                          gone ? " (it has failed or ended)" : "", peer));
}

}  // namespace

Handshake::Handshake(Listener& listener, const EndpointOptions& options, std::uint64_t token,
                     std::vector<int> descriptors)
    : listener_(listener), options_(options), token_(token), descriptors_(std::move(descriptors)) {}

void Handshake::meet(std::span<const Peer> peers, Deadline deadline, const Met& met) {
  for (const Peer& peer : peers) {
    Party& party = parties_.emplace_back();
    party.peer = peer;
    party.step = self_ > peer.id ? Step::call : Step::be_called;
  }
  while (true) {
    hear_callers();
    bool moved = false;
    for (Party& party : parties_) moved |= advance(party, met);
    if (std::ranges::all_of(parties_, [](const Party& p) { return p.step == Step::done; })) return;
    if (moved) continue;
    options_.throw_if_halted();
    if (Clock::now() >= deadline) give_up();
    wait(deadline);
  }
}

/// Returns true if the next step can be tried at once.
bool Handshake::advance(Party& party, const Met& met) {
  const Step before = party.step;
  switch (party.step) {
    case Step::call:
      call(party);
      break;
    case Step::greet:
      if (send(party)) party.step = Step::hear;
      break;
    case Step::answer:
      if (send(party)) party.step = Step::done;
      break;
    case Step::hear:
      if (hear(party)) party.step = Step::done;
      break;
    case Step::be_called:
    case Step::done:
      return false;
  }
  if (party.step == Step::done) met(party.peer.id, std::move(party.connection), std::move(party.descriptors));
  return party.step != before;
}

void Handshake::call(Party& party) {
  int error = 0;
  party.connection = shm::call(party.peer.name, error);
  if (error == 0) {
    party.step = Step::greet;
  } else if (!may_work_later(error)) {
    fail(party.peer.id, "calling", error);
  }
}

bool Handshake::send(Party& party) {
  const Greeting greeting{.token = party.peer.token, .from = self_};
  const int error = send_message(party.connection, std::as_bytes(std::span(&greeting, 1)), descriptors_);
  if (error != 0 && !may_work_later(error)) fail(party.peer.id, "passing descriptors to", error);
  return error == 0;
}

/// Takes the answer of a peer that was called.
bool Handshake::hear(Party& party) {
  Greeting greeting;
  Received received = receive_message(party.connection, std::as_writable_bytes(std::span(&greeting, 1)));
  if (received.error != 0) {
    if (may_work_later(received.error)) return false;
    fail(party.peer.id, "taking descriptors from", received.error);
  }
  if (received.bytes != sizeof greeting || greeting.magic != Greeting::kMagic || greeting.token != token_ ||
      greeting.from != party.peer.id) {
    throw Error(ErrorCode::transport,
                fmt::format("shm: what answers at {} is not peer {}", party.peer.name.path(), party.peer.id));
  }
  party.descriptors = std::move(received.descriptors);
  return true;
}

/// Accepts callers, and listens to those that have not said yet who they are.
void Handshake::hear_callers() {
  for (Fd caller = listener_.accept(); caller.get() >= 0; caller = listener_.accept()) {
    if (callers_.size() == kMostSilent) callers_.erase(callers_.begin());
    callers_.push_back(std::move(caller));
  }
  std::erase_if(callers_, [this](Fd& caller) {
    Greeting greeting;
    Received received = receive_message(caller, std::as_writable_bytes(std::span(&greeting, 1)));
    if (may_work_later(received.error)) return false;
    const auto party = std::ranges::find_if(
        parties_, [&](const Party& p) { return p.peer.id == greeting.from && p.step == Step::be_called; });
    if (received.error != 0 && received.error != EMFILE) return true;
    if (received.bytes != sizeof greeting || greeting.magic != Greeting::kMagic || greeting.token != token_ ||
        party == parties_.end())
      return true;
    if (received.error == EMFILE) fail(party->peer.id, "taking descriptors from", EMFILE);
    party->connection = std::move(caller);
    party->descriptors = std::move(received.descriptors);
    party->step = Step::answer;
    return true;
  });
}

/// Sleeps until somebody calls or answers, or something can be tried again.
void Handshake::wait(Deadline deadline) const {
  std::vector<pollfd> fds{{.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
  for (const Fd& caller : callers_) fds.push_back({.fd = caller.get(), .events = POLLIN, .revents = 0});
  milliseconds longest = kLongestSleep;
  for (const Party& party : parties_) {
    if (party.step == Step::hear)
      fds.push_back({.fd = party.connection.get(), .events = POLLIN, .revents = 0});
    if (party.step == Step::call || party.step == Step::greet || party.step == Step::answer)
      longest = kBetweenTries;
  }
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  const auto sleep = std::clamp(left, milliseconds{0}, longest);
  ::poll(fds.data(), fds.size(), static_cast<int>(sleep.count()));
}

void Handshake::give_up() const {
  std::string missing;
  for (const Party& party : parties_) {
    if (party.step != Step::done) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", party.peer.id);
  }
  throw Error(ErrorCode::timeout,
              fmt::format("shm: not connected in time with peer(s) {} (they may have failed)", missing));
}

}  // namespace nzcl::verbs::shm
