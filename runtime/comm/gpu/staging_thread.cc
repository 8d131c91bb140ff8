#include "runtime/comm/gpu/staging_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "nzcl/error.h"
#include "runtime/base/start_thread.h"
#include "runtime/placement/threads.h"

namespace nzcl::comm {

using engine::Operation;
using Clock = std::chrono::steady_clock;

namespace {

/// After anything has moved, the thread only yields for so long. Then it sleeps between two looks.
constexpr std::chrono::microseconds kYieldTime{100};
constexpr std::chrono::microseconds kNap{20};
/// Asking the driver how a GPU is takes a microsecond or more, so it is only asked in quiet moments.
constexpr std::chrono::milliseconds kBetweenQuestions{5};

}  // namespace

std::shared_ptr<StagingSlots> StagingThread::slots_of(const std::shared_ptr<gpu::Gpu>& gpu) {
  const auto found =
      std::find_if(slots_.begin(), slots_.end(), [&](const auto& s) { return s->gpu() == gpu; });
  if (found != slots_.end()) return *found;
  return slots_.emplace_back(std::make_shared<StagingSlots>(gpu, registrations_));
}

std::shared_ptr<StagedOperation> StagingThread::make(const std::shared_ptr<gpu::Gpu>& gpu,
                                                     const GpuTensors& tensors,
                                                     const engine::SliceLayout& layout) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable() && !stopping_)
    thread_ = start_thread("nzcl-gpu", [this] { return std::thread([this] { run(); }); });
  const auto slots = slots_of(gpu);
  lock.unlock();  // new memory takes its time
  return std::make_shared<StagedOperation>(slots, tensors, layout);
}

void StagingThread::watch(std::shared_ptr<StagedOperation> staged, std::shared_ptr<Operation> operation) {
  {
    const std::scoped_lock lock(mutex_);
    new_entries_.push_back(
        {.staged = std::move(staged), .operation = std::move(operation), .begun = Clock::now()});
    ++in_flight_;
  }
  changed_.notify_all();
}

void StagingThread::wait_for_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return in_flight_ == 0; });
}

void StagingThread::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  slots_.clear();
}

void StagingThread::run() {
  placement::name_thread("nzcl-gpu");
  std::vector<Entry> entries;
  auto moved_at = Clock::now(), asked_at = moved_at;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (entries.empty()) {
        changed_.wait(lock, [this] { return stopping_ || !new_entries_.empty(); });
        if (new_entries_.empty()) return;
        moved_at = Clock::now();
      }
      std::move(new_entries_.begin(), new_entries_.end(), std::back_inserter(entries));
      new_entries_.clear();
    }
    bool moved = false;
    const auto over = std::erase_if(entries, [&](Entry& entry) {
      const Step step = this->step(entry);
      moved |= step != Step::waits;
      return step == Step::over;
    });
    if (over > 0) {
      const std::scoped_lock lock(mutex_);
      in_flight_ -= over;
      changed_.notify_all();
    }
    const auto now = Clock::now();
    if (moved) moved_at = now;
    if (now - moved_at > kBetweenQuestions && now - asked_at > kBetweenQuestions) {
      asked_at = now;
      for (Entry& entry : entries) look_for_trouble(entry);
    }
    if (now - moved_at < kYieldTime) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

StagingThread::Step StagingThread::step(Entry& entry) {
  StagedOperation& staged = *entry.staged;
  if (!entry.operation->exchanged())
    return !staged.all_published() && staged.publish(*entry.operation) ? Step::moved : Step::waits;
  staged.give_up_rest();
  if (!staged.is_placed() && !entry.broken) return Step::waits;
  end(entry);
  return Step::over;
}

/// Called when nothing has moved for a while. A GPU that does no more work, or a stream that does not come to
/// the operation in time, fails the communicator.
void StagingThread::look_for_trouble(Entry& entry) const {
  const Operation& operation = *entry.operation;
  const auto why = entry.staged->why_broken();
  if (operation.exchanged()) {
    // The result never comes, and no other rank has to know that.
    if (why)
      entry.broken = Failure{ErrorCode::system, fmt::format("operation {}: {}", operation.epoch, *why)};
    return;
  }
  if (entry.told || entry.staged->all_published()) return;
  if (why) {
    entry.told = true;
    parent_.fail({ErrorCode::system, fmt::format("operation {}: {}", operation.epoch, *why)});
  } else if (Clock::now() - entry.begun > operation.timeout) {
    entry.told = true;
    parent_.fail({ErrorCode::timeout,
                  fmt::format("operation {}: its stream did not come to it within {:g} s; what was put into "
                              "the stream before it has not ended",
                              operation.epoch, std::chrono::duration<double>(operation.timeout).count())});
  }
}

/// Streams go on before the caller learns that the operation is over.
void StagingThread::end(const Entry& entry) const {
  entry.staged->release();
  entry.operation->staging_done(entry.broken);
  parent_.ring();
}

}  // namespace nzcl::comm
