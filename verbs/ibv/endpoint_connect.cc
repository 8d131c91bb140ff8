// How an endpoint connects its queue pairs. README.md has the way.
#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "verbs/ibv/endpoint.h"

namespace nzcl::verbs::ibv {

std::string IbvEndpoint::address_for(PeerId id) {
  if (id == options_.self) return {};
  if (!connector_) return calls_->address();
  if (!peers_[id]) make_queue(id, make_peer(id));
  return connector_->address_for(id);
}

void IbvEndpoint::connect(std::span<const std::string> addresses, Deadline deadline) {
  if (calls_) {
    calls_->connect(addresses);
    calling_.reserve(peers_.size());
    return;
  }
  std::vector<ibv_qp*> queues(addresses.size());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (i == options_.self) continue;
    if (addresses[i].empty()) {
      peers_[i].reset();
      continue;
    }
    if (!peers_[i]) {
      throw Error(
          ErrorCode::internal,
          fmt::format("{}: connecting to peer {} before address_for() was called for it", device_.name(), i));
    }
    queues[i] = peers_[i]->queue.get();
  }
  connector_->connect(queues, addresses, deadline);
  for (const auto& peer : peers_) {
    if (peer) peer->handshake.set_open();
  }
}

IbvEndpoint::Peer& IbvEndpoint::make_peer(PeerId id) {
  peers_[id] = std::make_unique<Peer>();
  return *peers_[id];
}

void IbvEndpoint::make_queue(PeerId id, Peer& peer) {
  peer.queue = make_queue_pair(device_.domain(), completions_.get(), receives_.get(), kSendDepth,
                               static_cast<std::uint32_t>(device_.limits().max_segments), inline_bytes_,
                               fmt::format("{} (to peer {})", device_.name(), id));
}

/// Makes the queue pair to a peer that is not connected. Returns nullptr if there is no such peer. If there
/// can be none the peer is broken, which is reported.
IbvEndpoint::Peer* IbvEndpoint::first_write_to(PeerId id) noexcept {
  if (!calls_ || !calls_->knows(id)) return nullptr;
  try {
    Peer& peer = make_peer(id);
    make_queue(id, peer);
    calls_->find(id);
  } catch (const std::exception& e) {
    break_off(id, e.what());
  }
  return peers_[id].get();
}

/// From now on the peer is called until it answers.
void IbvEndpoint::begin_calling(PeerId id, Peer& peer) noexcept {
  const auto now = Clock::now();
  peer.pause = kFirstPause;
  peer.patient_until = now + connection_.call_patience;
  calling_.push_back(id);
  // A peer that has called and was answered is about to confirm.
  peer.say_at = peer.handshake.state() == Handshake::State::connected ? now + peer.pause : now;
  call_again();
}

/// Says again what was not answered in its time.
void IbvEndpoint::call_again() noexcept {
  const auto now = Clock::now();
  std::erase_if(calling_, [&](PeerId id) { return !still_calls(id, now); });
  look_at_calls();
}

bool IbvEndpoint::still_calls(PeerId id, Clock::time_point now) noexcept {
  Peer& peer = *peers_[id];
  if (peer.broken || peer.handshake.open()) return false;
  if (now > peer.patient_until) {
    break_off(id, fmt::format("{}: peer {} has not answered a call for {:g} s", device_.name(), id,
                              std::chrono::duration<double>(connection_.call_patience).count()));
    return false;
  }
  // If there is no room to say it now, the next poll tries.
  if (now >= peer.say_at && calls_->say(id, peer.handshake.call(), peer.queue->qp_num)) {
    peer.say_at = now + peer.pause;
    peer.pause = std::min<Clock::duration>(2 * peer.pause, kLongestPause);
  }
  return true;
}

void IbvEndpoint::take_call(const ibv_wc& wc) noexcept {
  if (const auto heard = calls_->take(wc)) {
    try {
      hear(*heard);
    } catch (const std::exception& e) {
      break_off(heard->peer, e.what());
    }
  }
  look_at_calls();
}

/// Without calls no further peer can be reached.
void IbvEndpoint::look_at_calls() noexcept {
  if (device_failed_ || calls_->failure().empty()) return;
  device_failed_ = true;
  fail(Completion::kNoPeer, calls_->failure());
}

/// Does what a peer's word makes necessary.
void IbvEndpoint::hear(const Calls::Heard& heard) {
  // Only a call begins a handshake, so whatever is kept of a peer that is not broken has a queue pair.
  if (!peers_[heard.peer] && heard.word != Word::call) return;
  Peer& peer = peers_[heard.peer] ? *peers_[heard.peer] : make_peer(heard.peer);
  if (peer.broken) return;
  const Handshake::Step step = peer.handshake.hear(heard.word, heard.queue_pair);
  if (step.connect) {
    if (!peer.queue) make_queue(heard.peer, peer);
    calls_->find(heard.peer);
    ibv::connect(peer.queue.get(), device_.port(), first_packet_, calls_->address_of(heard.peer),
                 {heard.queue_pair, heard.first_packet}, connection_);
  }
  if (step.say) calls_->say(heard.peer, *step.say, peer.queue->qp_num);
  if (peer.handshake.open() && peer.first != nullptr) send_held(heard.peer);
}

/// Posts what was held for a peer that is open now.
void IbvEndpoint::send_held(PeerId id) noexcept {
  ibv_send_wr* const list = peers_[id]->first;
  send_list(id);
  held_.release(list);
}

/// Reports a peer that cannot be connected.
void IbvEndpoint::break_off(PeerId id, std::string why) noexcept {
  Peer& peer = *peers_[id];
  held_.release(peer.first);
  peer.first = peer.last = nullptr;
  give_up(id);
  fail(id, std::move(why));
}

}  // namespace nzcl::verbs::ibv
