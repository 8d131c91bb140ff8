#include "runtime/bootstrap/hub_search.h"

#include <fmt/format.h>

#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include "runtime/bootstrap/frames.h"

namespace nzcl::bootstrap {

asio::awaitable<std::string> introduce(Stream& stream, const MeetingSettings& self,
                                       std::string introduction) {
  co_await write_frame(stream, encode_member_hello(self, introduction));
  co_return parse_hub_answer(co_await read_frame(stream, kAnswerLimit), self.name(0));
}

asio::awaitable<std::shared_ptr<Stream>> HubSearch::find(Deadline deadline) {
  const MeetingSettings& self = meeting_.settings();
  while (Clock::now() < deadline) {
    meeting_.throw_if_ended();
    auto wait = kRetryPause;
    const auto found = meeting_.find(deadline);
    if (const auto* reason = std::get_if<NotYet>(&found)) {
      why_not_ = reason->why;
      wait = log_.note(self.who, *reason);
    } else if (co_await try_all(std::get<MeetingPoint>(found), deadline)) {
      co_return std::exchange(candidate_, nullptr);
    } else if (denied_) {
      wait = kLongPause;
    }
    asio::steady_timer pause(io_, wait);
    co_await pause.async_wait(asio::use_awaitable);
  }
  throw late();
}

/// Tries each address once. Returns false if that should be repeated. If somebody denies the secret at one
/// address, the hub may still be at another one.
asio::awaitable<bool> HubSearch::try_all(MeetingPoint point, Deadline deadline) {
  const MeetingSettings& self = meeting_.settings();
  candidate_.reset();
  context_ = make_psk_context(point.secret);
  std::optional<Error> denial;
  for (const auto& address : point.addresses) {
    if (Clock::now() >= deadline) break;
    const Tcp::endpoint endpoint(address, static_cast<unsigned short>(point.port));
    try {
      candidate_ = co_await connect_secure(*context_, endpoint, kConnectTime);
      why_not_ = "it did not answer";
      why_not_ = co_await introduce(*candidate_, self, introduction_);
      if (why_not_.empty()) co_return true;
    } catch (const Error& e) {
      if (candidate_) throw;  // the hub has said why the meeting has failed
      denial = Error(e.code(), fmt::format("{} at {}: {}", self.name(0), self.point_name, e.what()));
      why_not_ = denial->what();
    } catch (const std::system_error& e) {
      why_not_ = fmt::format("{}: {}", text_of(endpoint), e.code().message());
    }
    candidate_.reset();
  }
  if (denial && meeting_.secret_is_sure()) throw *denial;
  denied_ = denial.has_value();
  co_return false;
}

void HubSearch::stop() {
  asio::error_code ignored;
  if (candidate_) candidate_->lowest_layer().close(ignored);
}

Error HubSearch::late() const {
  const MeetingSettings& self = meeting_.settings();
  return Error(ErrorCode::timeout, fmt::format("{} was not reached at {} within the bootstrap timeout: {}",
                                               self.name(0), self.point_name, why_not_));
}

}  // namespace nzcl::bootstrap
