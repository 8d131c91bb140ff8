// Member 0's side of a meeting: it listens, and lets in the members.
//
//  1. A member connects. Both sides prove the secret in the TLS handshake (secure_stream.h).
//  2. The member sends a hello with its position, its session and the number of members that it expects.
//  3. It is let in; or told to try again, because another session is meeting at this port; or told an error.
//  A
//     member that has proved the secret belongs to the job. If its hello does not fit, the job has been
//     started wrongly, so the meeting fails for all.
#pragma once

#include <asio.hpp>
#include <asio/ssl.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/listener.h"
#include "runtime/bootstrap/meeting.h"
#include "runtime/bootstrap/not_yet_log.h"
#include "runtime/bootstrap/stream_threads.h"
#include "runtime/bootstrap/user_key.h"

namespace nzcl::bootstrap {

/// Must live as long as the io_context runs, because its coroutines refer to it.
class Reception {
 public:
  /// Takes over the connection of a member that is let in, and welcomes it. The hello's `who` is not empty.
  using Admit = std::function<void(MemberHello hello, std::shared_ptr<Stream>)>;

  /// `meeting` must live until close().
  /// The connections belong to `threads`, which must outlive this.
  Reception(asio::io_context& io, Meeting& meeting, StreamThreads& threads, Admit admit);

  /// Listens. If the port is taken, perhaps by the meeting of another session, tries until the deadline.
  /// Throws Error{unavailable} then, and what Meeting::place() and publish() throw.
  void open(Deadline deadline);
  void close();

  bool all_have_come() const { return come_ + 1 == who_.size(); }
  /// The meeting has failed. Members that come later are told.
  void fail(const Error& error);
  const std::optional<Error>& failure() const { return failure_; }
  bool all_have_come_or_been_told() const { return come_ + told_ + 1 >= who_.size(); }
  /// The error if some have not come by the deadline: it names them, and who was refused last.
  Error late() const;

 private:
  std::optional<NotYet> try_to_listen(Deadline deadline);
  void listen_at(const HubPlace& place);
  Error cannot_listen(const std::string& why) const;
  asio::awaitable<void> greet(std::shared_ptr<Stream> stream);
  std::optional<Error> check(const MemberHello& hello) const;

  asio::io_context& io_;
  Meeting& meeting_;
  StreamThreads& threads_;
  const MeetingSettings settings_;
  const Admit admit_;
  std::unique_ptr<asio::ssl::context> context_;
  std::optional<Listener> listener_;
  std::optional<KeyDesk> desk_;  // uses the listener; only in a meeting for this user
  bool only_here_ = false;       // listens on loopback addresses only
  bool closed_ = false;
  std::vector<std::string> who_;  // by position; empty: it has not come
  std::size_t come_ = 0;          // members that were let in
  std::size_t told_ = 0;          // members that were told the failure
  std::optional<Error> failure_;
};

}  // namespace nzcl::bootstrap
