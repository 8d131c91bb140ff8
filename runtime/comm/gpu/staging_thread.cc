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

/// Starts the thread if it does not run, and returns the slots of a GPU.
std::shared_ptr<StagingSlots> StagingThread::start(const std::shared_ptr<gpu::Gpu>& gpu) {
  const std::scoped_lock lock(mutex_);
  if (!thread_.joinable() && !stopping_)
    thread_ = start_thread("nzcl-gpu", [this] { return std::thread([this] { run(); }); });
  const auto found =
      std::find_if(slots_.begin(), slots_.end(), [&](const auto& s) { return s->gpu() == gpu; });
  if (found != slots_.end()) return *found;
  return slots_.emplace_back(std::make_shared<StagingSlots>(gpu, registrations_));
}

std::shared_ptr<StagedOperation> StagingThread::make(const std::shared_ptr<gpu::Gpu>& gpu,
                                                     const GpuTensors& tensors,
                                                     const engine::SliceLayout& layout,
                                                     StagedWork::Exchanged exchanged) {
  return std::make_shared<StagedOperation>(start(gpu), tensors, layout, exchanged, peers_);
}

void StagingThread::read_peers(std::shared_ptr<PeerBoard> board) {
  peers_ = std::make_shared<PeerMemory>(std::move(board));
}

gpu::Stream StagingThread::callers_stream(const std::shared_ptr<gpu::Gpu>& gpu) {
  return start(gpu)->callers_stream();
}

std::shared_ptr<StagedStream> StagingThread::make(const std::shared_ptr<gpu::Gpu>& gpu,
                                                  const GpuStream& memory, const engine::SliceLayout& layout,
                                                  StagedWork::Exchanged exchanged) {
  return std::make_shared<StagedStream>(start(gpu), memory, layout, exchanged);
}

std::shared_ptr<StagedCompressed> StagingThread::make(std::shared_ptr<GpuStep> step, std::byte* output,
                                                      gpu::Stream stream, bool in_tiles,
                                                      const engine::SliceLayout& layout,
                                                      StagedWork::Exchanged exchanged) {
  const auto slots = start(step->gpu());
  return std::make_shared<StagedCompressed>(slots, std::move(step), output, stream, in_tiles, layout,
                                            exchanged);
}

void StagingThread::watch(std::shared_ptr<StagedWork> staged, std::shared_ptr<Operation> operation,
                          Begin begin) {
  {
    const std::scoped_lock lock(mutex_);
    new_entries_.push_back({.staged = std::move(staged),
                            .operation = std::move(operation),
                            .begin = std::move(begin),
                            .begun = Clock::now()});
    ++in_flight_;
  }
  changed_.notify_all();
}

void StagingThread::begin_all(const Failure& why) {
  if (failed_.load(std::memory_order_relaxed)) return;
  why_failed_ = why;
  failed_.store(true, std::memory_order_release);
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
  if (peers_) peers_->close();
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
  StagedWork& staged = *entry.staged;
  const bool exchanged = entry.operation->exchanged();
  if (exchanged && !entry.failure && staged.peers_wait() && failed_.load(std::memory_order_acquire))
    entry.failure = why_failed_;
  const bool lost = exchanged && (entry.failure || entry.broken || entry.operation->failure());
  if (!lost && !staged.all_published()) {
    const bool moved = staged.publish(*entry.operation);
    const bool begins = entry.begin && failed_.load(std::memory_order_acquire);
    if (!staged.all_published() && !begins) return moved ? Step::moved : Step::waits;
    if (const auto block = staged.hidden_block())
      entry.failure =
          Failure{ErrorCode::invalid_argument,
                  fmt::format("operation {}: {}", entry.operation->epoch, engine::hidden_text(*block))};
  }
  if (entry.begin) {
    std::exchange(entry.begin, nullptr)(why_no_input(entry));
    return Step::moved;
  }
  if (!exchanged) return Step::waits;
  if (!std::exchange(entry.settled, true)) {
    if (auto failure = staged.place_rest(*entry.operation, lost)) entry.failure = std::move(failure);
  }
  if (!staged.is_placed() && !entry.broken) return Step::waits;
  end(entry);
  return Step::over;
}

/// Why the input has not come whole, and is not waited for, or nothing if it is there.
std::optional<Failure> StagingThread::why_no_input(const Entry& entry) const {
  if (entry.staged->all_published()) return std::nullopt;
  if (failed_.load(std::memory_order_acquire)) return why_failed_;
  if (entry.broken) return entry.broken;
  return entry.failure ? entry.failure : entry.operation->failure();
}

/// Called when nothing has moved for a while. A GPU that does no more work, or a stream that does not come to
/// the operation in time, fails the communicator, or only the operation if the other ranks do not wait for it
/// any more.
void StagingThread::look_for_trouble(Entry& entry) const {
  const Operation& operation = *entry.operation;
  const bool exchanged = operation.exchanged();
  const bool came = entry.staged->stream_has_come();
  const std::string awaited = came ? entry.staged->awaited_of_peers() : "its stream did not come to it";
  std::optional<Failure> trouble;
  if (const auto why = entry.staged->why_broken()) {
    trouble = Failure{ErrorCode::system, fmt::format("operation {}: {}", operation.epoch, *why)};
    if (exchanged) entry.broken = trouble;
  } else if (!awaited.empty() && Clock::now() - entry.begun > operation.timeout) {
    trouble = Failure{ErrorCode::timeout,
                      fmt::format("operation {}: {} within {:g} s{}", operation.epoch, awaited,
                                  std::chrono::duration<double>(operation.timeout).count(),
                                  came ? "" : "; what was put into the stream before it has not ended")};
    if (exchanged) entry.failure = trouble;
  }
  const bool alone = exchanged && !entry.staged->peers_wait();
  if (!trouble || alone || std::exchange(entry.told, true)) return;
  parent_.fail(*trouble);
}

/// Streams go on before the caller learns that the operation is over.
void StagingThread::end(const Entry& entry) {
  if (entry.staged->summed_by_gpus() && !entry.failure && !entry.broken)
    summed_by_gpus_.fetch_add(1, std::memory_order_relaxed);
  far_bytes_.fetch_add(entry.staged->far_bytes(), std::memory_order_relaxed);
  entry.staged->release();
  entry.operation->staging_done(entry.broken ? entry.broken : entry.failure);
  parent_.ring();
}

}  // namespace nzcl::comm
