// Results that come too early, which only a peer sends that does not keep to the protocol.
#pragma once

namespace nzcl::engine {

/// A sum needs every rank's part, so it cannot be known before this rank has `sent` its own. A result that
/// comes earlier must not be taken: it may overwrite input that is still to be sent, and it may end an
/// operation that this rank would go on to read. Every exchange asks here before it places a result or ends a
/// slice on the word of a peer. Returns what is wrong, as a part of a sentence, or nullptr.
constexpr const char* wrong_with_early_result(bool sent) {
  return sent ? nullptr : "it is there before this rank has sent its part";
}

}  // namespace nzcl::engine
