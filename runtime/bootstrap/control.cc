// The calls of the control plane, and the frames of its connections.
#include <fmt/format.h>

#include <utility>

#include "runtime/bootstrap/star_control.h"

namespace nzcl::bootstrap {
namespace {

// Only the hub decides whether a gather has timed out. A member waits for this long after its deadline for
// what the hub says.
constexpr std::chrono::seconds kDecisionTime{5};

/// Whether a connection broke because nothing came from the other host any more, as opposed to a process that
/// died there.
bool is_of_a_vanished_host(const std::error_code& error) {
  return error == asio::error::timed_out || error == asio::error::host_unreachable ||
         error == asio::error::network_unreachable;
}

using AnyFrame = StarControl::AnyFrame;

/// Runs on the stream's thread.
asio::awaitable<AnyFrame> read_any_frame(Stream& stream, std::uint32_t limit, std::size_t members) {
  const std::string text = co_await read_frame(stream, limit);
  if (is_regroup_frame(text)) co_return parse_regroup_frame(text, members);
  if (is_gather_frame(text)) co_return parse_gather_frame(text, members);
  co_return parse_control_frame(text);
}

std::vector<std::string> parts_of(GatherFrame answer, std::size_t members) {
  if (answer.kind == GatherFrame::Kind::failed) throw Error(answer.failure.code, answer.failure.text);
  if (answer.kind != GatherFrame::Kind::parts || answer.parts.size() != members)
    throw Error(ErrorCode::mismatch, answer.name + ": the hub's answer has not one part for each member");
  return std::move(answer.parts);
}

}  // namespace

StarControl::~StarControl() {
  asio::post(io_, [this] {
    shut_ = true;
    if (reception_) reception_->close();
    listener_.reset();
    for (auto* timer : {&suspicion_, &verdict_, &abort_time_, &reason_time_, &patience_time_, &doubt_time_,
                        &presence_time_}) {
      if (*timer) (*timer)->cancel();
    }
    asio::error_code ignored;
    for (const auto& stream : calling_) stream->lowest_layer().close(ignored);
    for (Member& m : members_) {
      if (m.connection) m.connection->finish();
    }
    work_.reset();
  });
  if (thread_.joinable()) {
    thread_.join();
  } else {
    io_.run();
  }
  if (stream_threads_) stream_threads_->join();
}

void StarControl::quiesced() {
  asio::post(io_, [this] { say_quiet(); });
}

bool StarControl::wait_quiesced(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return all_quiet_; });
}

void StarControl::has_begun(std::uint64_t operations) {
  if (operations > limit_.load(std::memory_order_relaxed)) asio::post(io_, [this] { check_wanted(); });
}

bool StarControl::leave(Deadline deadline) {
  asio::post(io_, [this] { tell_hub("bye", progress_().begun); });
  std::unique_lock lock(mutex_);
  const auto over = [this] { return all_bye_ || failure_.has_value(); };
  if (deadline == Deadline::max()) {
    changed_.wait(lock, over);
  } else {
    changed_.wait_until(lock, deadline, over);
  }
  return all_bye_ && !failure_;
}

std::optional<std::vector<std::string>> StarControl::gather(const std::string& name,
                                                            const std::vector<int>& members, std::string part,
                                                            Deadline deadline) {
  return take_part({.kind = GatherFrame::Kind::part,
                    .name = name,
                    .members = members,
                    .parts = {std::move(part)},
                    .failure = {}},
                   deadline);
}

std::optional<std::vector<std::string>> StarControl::tell_each(const std::string& name,
                                                               const std::vector<int>& members,
                                                               const Row& row, Deadline deadline) {
  return take_part({.kind = GatherFrame::Kind::row,
                    .name = name,
                    .members = members,
                    .parts = {row.encode()},
                    .failure = {}},
                   deadline);
}

std::optional<std::vector<std::string>> StarControl::take_part(GatherFrame frame, Deadline deadline) {
  using State = GatherCalls::State;
  const std::string name = frame.name;
  const std::size_t count = frame.members.empty() ? members_.size() : frame.members.size();
  GatherFrame late{
      .kind = GatherFrame::Kind::late, .name = name, .members = frame.members, .parts = {}, .failure = {}};
  calls_.begin(name);
  send_to_board(std::move(frame));
  State state = calls_.wait(name, deadline);
  if (state == State::waiting) {
    send_to_board(std::move(late));
    state = calls_.wait(name, Clock::now() + kDecisionTime);
  }
  auto answer = calls_.end(name);
  if (answer) return parts_of(std::move(*answer), count);
  if (state == State::waiting)
    throw Error(ErrorCode::timeout, fmt::format("{}: the hub does not answer", name));
  if (const auto failed = failure()) throw Error(failed->code, failed->text);
  return std::nullopt;
}

/// On a caller's thread: brings the frame to the hub, which may be this member.
void StarControl::send_to_board(GatherFrame frame) {
  asio::post(io_, [this, frame = std::move(frame)]() mutable {
    const auto self = static_cast<std::size_t>(self_);
    if (is_hub()) {
      try {
        gather_frame(self, std::move(frame));
      } catch (const Error& e) {  // from another member this would end its connection
        fail({ErrorCode::internal, fmt::format("{}: {}", names_[self], e.what())});
      }
    } else if (ControlConnection* hub = to_hub()) {
      hub->send_bytes(encode(frame));
    }
  });
}

/// The connection to the hub, if this member has one that is open.
ControlConnection* StarControl::to_hub() {
  Member& hub = members_[static_cast<std::size_t>(hub_)];
  return hub.gone ? nullptr : hub.connection.get();
}

/// Serves the connection with the member at this position until it closes.
std::shared_ptr<ControlConnection> StarControl::connect(std::size_t position,
                                                        std::shared_ptr<Stream> stream) {
  auto connection = std::make_shared<ControlConnection>(std::move(stream));
  members_[position].connection = connection;
  asio::co_spawn(connection->executor(), ControlConnection::write_loop(connection), asio::detached);
  asio::co_spawn(io_, read_loop(connection, position), asio::detached);
  return connection;
}

asio::awaitable<void> StarControl::read_loop(std::shared_ptr<ControlConnection> connection,
                                             std::size_t index) {
  std::string why = "its connection closed";
  bool vanished = false;
  const std::uint32_t limit = self_ == 0 ? kGatherHeadLimit + kPartLimit : kFrameLimit;
  try {
    while (true) {
      AnyFrame frame = co_await run_on(connection->executor(), io_.get_executor(),
                                       read_any_frame(connection->stream(), limit, members_.size()));
      if (!shut_) take_frame(index, std::move(frame));
    }
  } catch (const std::system_error& e) {
    if (e.code() != asio::error::eof && e.code() != asio::ssl::error::stream_truncated) why = e.what();
    vanished = is_of_a_vanished_host(e.code());
  } catch (const std::exception& e) {
    why = e.what();
  }
  connection->close();
  if (members_[index].connection == connection) lost(index, why, vanished);
}

void StarControl::take_frame(std::size_t index, AnyFrame any) {
  if (const auto* const regroup = std::get_if<RegroupFrame>(&any)) return regroup_frame(index, *regroup);
  if (auto* const gather = std::get_if<GatherFrame>(&any)) return gather_frame(index, std::move(*gather));
  const ControlFrame& frame = std::get<ControlFrame>(any);
  is_hub() ? hub_frame(index, frame) : member_frame(frame);
}

void StarControl::hub_frame(std::size_t index, const ControlFrame& frame) {
  if (frame.type == "abort") {
    report(frame.failure);
  } else if (frame.type == "quiet") {
    members_[index].quiet = true;
    check_all();
  } else if (frame.type == "bye") {
    said_bye(index, frame.operations);
  } else if (frame.type == "wants") {
    leaves_.wants(index, frame.operations);
    check_leaves();
  } else if (frame.type == "finished") {
    leaves_.finished(index, frame.operations);
    check_leaves();
  } else if (frame.type == "there?") {
    if (members_[index].connection) members_[index].connection->send({{"type", "here"}});
  }
}

void StarControl::member_frame(const ControlFrame& frame) {
  if (frame.type == "met") {
    context_ = make_psk_context(frame.key);
  } else if (frame.type == "failed") {
    set_failure(frame.failure);
  } else if (frame.type == "all_quiet") {
    set_flag(all_quiet_);
  } else if (frame.type == "all_bye") {
    all_left();
  } else if (frame.type == "here") {
    hub_is_there_ = true;
  } else if (frame.type == "left") {
    limit_.store(frame.operations, std::memory_order_relaxed);
    check_wanted();
  } else if (frame.type == "finish") {
    asio::co_spawn(io_, finish(frame.operations), asio::detached);
  }
}

/// Brings a frame of this member to the hub, which may be this member.
void StarControl::tell_hub(const char* type, std::uint64_t operations) {
  if (is_hub()) {
    hub_frame(static_cast<std::size_t>(self_),
              {.type = type, .failure = {}, .key = {}, .operations = operations});
  } else if (ControlConnection* hub = to_hub()) {
    hub->send({{"type", type}, {"operations", operations}});
  }
}

/// On the hub.
void StarControl::tell_all(const char* type, std::uint64_t operations) {
  broadcast({{"type", type}, {"operations", operations}});
  member_frame({.type = type, .failure = {}, .key = {}, .operations = operations});
}

void StarControl::broadcast(const nlohmann::json& frame) {
  for (Member& m : members_) {
    if (m.connection && !m.gone) m.connection->send(frame);
  }
}

void StarControl::gather_frame(std::size_t index, GatherFrame frame) {
  if (!is_hub()) {
    calls_.answer(std::move(frame));
  } else if (!is_failed()) {
    send_answers(board_.take(index, std::move(frame)));
  }
}

void StarControl::send_answers(const GatherBoard::Answers& answers) {
  for (const auto& [member, frame] : answers) {
    if (member == static_cast<std::size_t>(self_)) {
      calls_.answer(parse_gather_frame(frame.text(), members_.size()));
    } else if (members_[member].connection && !members_[member].gone) {
      members_[member].connection->send_frame(frame);
    }
  }
}

/// `flag` is one of those that mutex_ guards.
bool StarControl::is_set(const bool& flag) const {
  const std::scoped_lock lock(mutex_);
  return flag;
}

void StarControl::set_flag(bool& flag) {
  {
    const std::scoped_lock lock(mutex_);
    flag = true;
  }
  changed_.notify_all();
}

}  // namespace nzcl::bootstrap
