// Every other member's side of a meeting: it finds the hub, and is let in (reception.h).
#pragma once

#include <asio.hpp>
#include <asio/ssl.hpp>

#include <memory>
#include <string>
#include <utility>

#include "nzcl/error.h"
#include "runtime/bootstrap/meeting.h"
#include "runtime/bootstrap/not_yet_log.h"
#include "runtime/bootstrap/secure_stream.h"

namespace nzcl::bootstrap {

/// How long a connection attempt may take. After it, the next address is tried, since packets to some
/// addresses may be dropped without an answer.
inline constexpr std::chrono::seconds kConnectTime{3};

/// Both must live until the coroutine has ended.
class HubSearch {
 public:
  HubSearch(asio::io_context& io, Meeting& meeting, std::string introduction)
      : io_(io), meeting_(meeting), introduction_(std::move(introduction)) {}

  /// Tries until the hub has let this member in. Throws late() at the deadline, what the hub says of a
  /// meeting that has failed, and Error{denied} if somebody else listens at the meeting point.
  asio::awaitable<std::shared_ptr<Stream>> find(Deadline deadline);
  /// Closes the connection on which find() waits for an answer.
  void stop();
  /// The error if the hub has not answered in time.
  Error late() const;

 private:
  asio::awaitable<bool> try_all(MeetingPoint point, Deadline deadline);

  asio::io_context& io_;
  Meeting& meeting_;
  const std::string introduction_;
  std::unique_ptr<asio::ssl::context> context_;
  std::shared_ptr<Stream> candidate_;  // the hub has proved the secret, but has not let this member in yet
  bool denied_ = false;                // the last try of all addresses ended so
  std::string why_not_ = "nobody listens there yet";
  NotYetLog log_;
};

/// Says hello to a hub with this introduction, and returns "" when it has let this member in, or why this
/// member should try again. Throws what the hub says of a meeting that has failed, and Error{mismatch} if the
/// hub runs another version.
asio::awaitable<std::string> introduce(Stream& stream, const MeetingSettings& self, std::string introduction);

}  // namespace nzcl::bootstrap
