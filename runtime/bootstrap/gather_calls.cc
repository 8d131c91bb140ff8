#include "runtime/bootstrap/gather_calls.h"

#include <utility>

#include "nzcl/error.h"

namespace nzcl::bootstrap {

void GatherCalls::begin(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  if (!answers_.try_emplace(name).second)
    throw Error(ErrorCode::internal, name + ": two calls for the same gather");
}

GatherCalls::State GatherCalls::wait(const std::string& name, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto& answer = answers_.at(name);
  const auto ready = [&] { return answer || closed_; };
  if (deadline == Deadline::max()) {
    changed_.wait(lock, ready);
  } else {
    changed_.wait_until(lock, deadline, ready);
  }
  return answer ? State::answered : closed_ ? State::over : State::waiting;
}

std::optional<GatherFrame> GatherCalls::end(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  const auto node = answers_.extract(name);
  return node ? std::move(node.mapped()) : std::nullopt;
}

void GatherCalls::answer(GatherFrame frame) {
  {
    const std::scoped_lock lock(mutex_);
    if (closed_) return;  // to a call that began after everything was over
    const auto found = answers_.find(frame.name);
    if (found == answers_.end()) return;
    found->second = std::move(frame);
  }
  changed_.notify_all();
}

void GatherCalls::close() {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

}  // namespace nzcl::bootstrap
