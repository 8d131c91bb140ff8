#include "runtime/lane/scan_pool.h"

#include <string>

#include "runtime/base/plain_floats.h"
#include "runtime/base/start_thread.h"

namespace nzcl::engine {

ScanPool::ScanPool(int threads, const std::function<void(int)>& start) {
  for (int i = 0; i < threads; ++i) {
    threads_.push_back(start_thread("nzcl-scan-" + std::to_string(i), [&] {
      return std::jthread([this, start, i](std::stop_token stop) {
        start(i);
        run(stop);
      });
    }));
  }
}

ScanPool::~ScanPool() {
  for (auto& thread : threads_) thread.request_stop();
  wake_.notify_all();
}

void ScanPool::submit(std::shared_ptr<Operation> operation) {
  if (threads_.empty()) return;
  {
    const std::scoped_lock lock(mutex_);
    work_.emplace_back(std::move(operation), 0);
  }
  wake_.notify_all();
}

void ScanPool::run(std::stop_token stop) {
  const PlainFloats floats;  // compressors compute here, and the thread has inherited its creator's mode
  while (true) {
    std::shared_ptr<Operation> operation;
    std::uint64_t slice = 0;
    {
      std::unique_lock lock(mutex_);
      if (!wake_.wait(lock, stop, [this] { return !work_.empty(); })) return;
      operation = work_.front().first;
      slice = work_.front().second++;
      if (work_.front().second >= operation->layout.slices()) work_.pop_front();
    }
    // The input of a finished operation belongs to the caller again. One that has failed may have slices that
    // were never scanned.
    if (!operation->finished()) operation->scan_ahead(slice);
  }
}

}  // namespace nzcl::engine
