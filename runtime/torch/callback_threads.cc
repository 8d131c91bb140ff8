#include "runtime/torch/callback_threads.h"

#include <pthread.h>

#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

namespace nzcl_torch {
namespace {

constexpr std::chrono::seconds kIdle{2};  // so long does a thread stay without a job

thread_local const CallbackThreads* serving = nullptr;  // whose job this thread runs

}  // namespace

void CallbackThreads::run(std::function<void()> job) {
  std::unique_lock lock(mutex_);
  jobs_.push_back(std::move(job));
  if (waiting_ >= jobs_.size()) return job_came_.notify_one();
  try {
    std::thread([self = shared_from_this()] { self->serve(); }).detach();
    ++threads_;
  } catch (const std::system_error&) {  // no more threads; one of those that are there will take the job
    if (threads_ > 0) return;
    job = std::move(jobs_.back());
    jobs_.pop_back();
    lock.unlock();
    job();
  }
}

void CallbackThreads::serve() {
  pthread_setname_np(pthread_self(), "nzcl-callback");
  serving = this;
  std::unique_lock lock(mutex_);
  while (true) {
    ++waiting_;
    job_ended_.notify_all();
    const bool came = job_came_.wait_for(lock, kIdle, [this] { return !jobs_.empty(); });
    --waiting_;
    if (!came) break;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // what it holds goes before the job counts as ended
    lock.lock();
  }
  --threads_;
  job_ended_.notify_all();
}

void CallbackThreads::wait_until_idle() {
  std::unique_lock lock(mutex_);
  const std::size_t own = serving == this ? 1 : 0;
  job_ended_.wait(lock, [&] { return jobs_.empty() && threads_ - waiting_ <= own; });
}

}  // namespace nzcl_torch
