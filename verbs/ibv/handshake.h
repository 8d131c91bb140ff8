// How two endpoints agree that a queue pair of each is connected with one of the other. Nothing here does
// I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "verbs/ibv/address.h"
#include "verbs/transport.h"

namespace nzcl::verbs::ibv {

/// README.md has the meaning of each.
enum class Word : std::uint32_t { call = 1, answer = 2, confirm = 3 };

/// One datagram between two endpoints. It travels as these bytes.
struct CallMessage {
  static constexpr std::uint32_t kMagic = 0x71637a6e;  // "nzcq"
  std::uint32_t magic = kMagic;
  PeerId from = 0, to = 0;
  Word word = Word::call;
  std::uint32_t queue_pair = 0;    // the sender's number, 24 bits
  std::uint32_t first_packet = 0;  // the number of the first one that the sender sends there, 24 bits
  CallToken token = 0;             // the receiver's

  /// Returns nothing if `data` is no such message, or has a value out of range. Who has sent it, and whether
  /// it shows the right token, is left to the caller.
  static std::optional<CallMessage> read(std::span<const std::byte> data) {
    CallMessage message;
    if (data.size() != sizeof message) return std::nullopt;
    std::memcpy(static_cast<void*>(&message), data.data(), sizeof message);
    if (message.magic != kMagic || message.queue_pair > kMost24Bits || message.first_packet > kMost24Bits)
      return std::nullopt;
    if (message.word < Word::call || message.word > Word::confirm) return std::nullopt;
    return message;
  }
};
static_assert(sizeof(CallMessage) == 32);

/// One side's view of the handshake with one peer.
///
/// Invariant: if a side is open, the queue pair of the other one is connected with its own.
class Handshake {
 public:
  enum class State : std::uint8_t {
    closed,     // this side has not been called, and has not called
    calling,    // this side's queue pair exists, and the peer's number is not known
    connected,  // this side's is connected with the peer's, of which the same is not known
    open,       // writes may be posted
  };
  /// What a word makes necessary, in this order.
  struct Step {
    bool connect = false;  // make this side's queue pair, if there is none, and connect it
    std::optional<Word> say;
  };

  State state() const { return state_; }
  bool open() const { return state_ == State::open; }
  /// The number of the peer's queue pair. Precondition: the state is `connected` or `open`.
  std::uint32_t theirs() const { return theirs_; }

  /// The word for a side that wants to write and is not open. It is said again until an answer comes.
  Word call() {
    if (state_ == State::closed) state_ = State::calling;
    return state_ == State::calling ? Word::call : Word::answer;
  }
  /// Takes a word of the peer. The caller carries the step out at once.
  Step hear(Word word, std::uint32_t number) {
    const bool connected = state_ >= State::connected;
    if (connected && number != theirs_) return {};  // a peer has one queue pair for this side, and keeps it
    switch (word) {
      case Word::call:
        theirs_ = number;
        if (!connected) state_ = State::connected;
        return {.connect = !connected, .say = Word::answer};
      case Word::answer:
        if (state_ == State::closed) return {};  // the peer cannot know a number of this side
        theirs_ = number;
        state_ = State::open;
        return {.connect = !connected, .say = Word::confirm};
      case Word::confirm:
        if (connected) state_ = State::open;
        return {};
    }
    return {};
  }
  /// The queue pairs were connected in another way.
  void set_open() { state_ = State::open; }

 private:
  State state_ = State::closed;
  std::uint32_t theirs_ = 0;
};

}  // namespace nzcl::verbs::ibv
