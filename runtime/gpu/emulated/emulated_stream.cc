#include "runtime/gpu/emulated/emulated_stream.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "runtime/base/start_thread.h"

namespace nzcl::gpu {
namespace {

/// How late work is at most. That is longer than a kernel takes to start, so that whoever does not wait is
/// found out, and short enough for thousands of operations in a test.
constexpr int kLatestMicroseconds = 200;
constexpr std::chrono::microseconds kBetweenLooks{20};

}  // namespace

EmulatedStream::EmulatedStream(unsigned seed)
    : random_(seed),
      thread_(start_thread("nzcl-emulated", [this] { return std::thread([this] { run(); }); })) {}

EmulatedStream::~EmulatedStream() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void EmulatedStream::add(std::function<void()> work) {
  {
    const std::scoped_lock lock(mutex_);
    work_.push_back(std::move(work));
    ++added_;
  }
  changed_.notify_all();
}

void EmulatedStream::await(const std::uint32_t* flag, std::uint32_t value) {
  const auto reached = [&] {
    // atomic_ref has no form for constant objects in this standard. Nothing is written.
    const std::uint32_t seen =
        std::atomic_ref(const_cast<std::uint32_t&>(*flag)).load(std::memory_order_acquire);
    return static_cast<std::int32_t>(seen - value) >= 0;
  };
  while (!reached()) {
    std::unique_lock lock(mutex_);
    if (ending_) return;
    changed_.wait_for(lock, kBetweenLooks);
  }
}

void EmulatedStream::synchronize() {
  std::unique_lock lock(mutex_);
  const std::uint64_t last = added_;
  changed_.wait(lock, [&] { return done_ >= last; });
}

void EmulatedStream::dawdle() {
  const int microseconds = std::uniform_int_distribution(0, kLatestMicroseconds)(random_);
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

void EmulatedStream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !work_.empty(); });
    if (work_.empty()) return;
    const auto work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    dawdle();
    work();
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace nzcl::gpu
