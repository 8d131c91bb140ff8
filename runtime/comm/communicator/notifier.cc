#include "runtime/comm/communicator/notifier.h"

#include <algorithm>
#include <iterator>

#include "runtime/base/start_thread.h"
#include "runtime/placement/threads.h"

namespace nzcl::comm {

void Notifier::add(std::shared_ptr<engine::Operation> operation, std::function<void()> call) {
  if (!operation->finished()) {
    const std::scoped_lock lock(mutex_);
    if (!stopping_) {
      // The thread comes first: if there can be none, nothing has been promised.
      if (!thread_.joinable())
        thread_ = start_thread("nzcl-notify", [this] { return std::thread([this] { run(); }); });
      bell_.listen();
      entries_.push_back({std::move(operation), std::move(call)});
      bell_.ring();  // it may have finished before the bell was listened to
      return;
    }
  }
  call();
}

std::vector<Notifier::Entry> Notifier::take_finished() {
  const std::scoped_lock lock(mutex_);
  const auto finished = std::stable_partition(entries_.begin(), entries_.end(),
                                              [](const Entry& e) { return !e.operation->finished(); });
  std::vector<Entry> taken(std::make_move_iterator(finished), std::make_move_iterator(entries_.end()));
  entries_.erase(finished, entries_.end());
  return taken;
}

void Notifier::run() {
  placement::name_thread("nzcl-notify");
  while (true) {
    const std::uint32_t seen = bell_.rings();
    auto finished = take_finished();
    for (Entry& entry : finished) {
      bell_.stop_listening();
      entry.call();
      entry = {};  // the caller's objects go as soon as they are not needed any more
    }
    if (!finished.empty()) continue;
    {
      const std::scoped_lock lock(mutex_);
      if (stopping_) return;
    }
    bell_.wait(seen);
  }
}

void Notifier::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    if (!thread_.joinable()) return;
  }
  bell_.ring();
  thread_.join();
}

bool Notifier::is_own_thread() const {
  const std::scoped_lock lock(mutex_);
  return thread_.get_id() == std::this_thread::get_id();
}

}  // namespace nzcl::comm
