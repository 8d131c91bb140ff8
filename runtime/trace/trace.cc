#include "runtime/trace/trace.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "runtime/base/json_text.h"
#include "runtime/trace/timeline_file.h"

namespace nzcl::trace {
namespace {

struct Event {
  std::int64_t begin, end;
  std::uint64_t epoch;
  std::uint32_t slice;
  What what;
};

constexpr std::array kNames{"operation", "scan", "push", "post", "reduce", "zero", "result"};

/// The spans of one thread. Only this thread adds spans; write() reads those below `size`.
struct Buffer {
  static constexpr std::size_t kEvents = 1 << 18;
  Buffer() : thread(::gettid()), events(new Event[kEvents]) {
    ::pthread_getname_np(::pthread_self(), name, sizeof name);
  }
  const pid_t thread;
  char name[16] = {};
  const std::unique_ptr<Event[]> events;
  std::atomic<std::size_t> size{0};
  std::atomic<std::uint64_t> dropped{0};
  std::size_t written = 0;  // how many spans are in the file; guarded by the state's mutex
};

/// What all threads of the process share. The mutex guards all other members.
struct State {
  std::mutex mutex;
  std::optional<TimelineFile> file;
  bool written = false;
  std::string member;
  std::vector<std::unique_ptr<Buffer>> buffers;  // they stay when their threads end
};

State& state() {
  static State* const forever = new State;  // not deleted, because threads may record during exit
  return *forever;
}

Buffer& own_buffer() {
  thread_local Buffer* const buffer = [] {
    auto made = std::make_unique<Buffer>();
    Buffer* const raw = made.get();
    const std::scoped_lock lock(state().mutex);
    state().buffers.push_back(std::move(made));
    return raw;
  }();
  return *buffer;
}

double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

void append_event(std::string& text, const Event& e, pid_t process, pid_t thread) {
  const auto out = std::back_inserter(text);
  const char* const name = kNames[static_cast<std::size_t>(e.what)];
  if (e.what == What::operation) {  // operations overlap each other, so they are not spans of one thread
    for (const auto& [phase, time] : {std::pair{'b', e.begin}, std::pair{'e', e.end}}) {
      fmt::format_to(
          out,
          R"({{"name":"{} {}","cat":"operation","ph":"{}","id2":{{"local":"{}"}},"ts":{:.3f},"pid":{},"tid":{}}},)",
          name, e.epoch, phase, e.epoch, microseconds(time), process, thread);
      text += '\n';
    }
    return;
  }
  fmt::format_to(
      out,
      R"({{"name":"{}","ph":"X","ts":{:.3f},"dur":{:.3f},"pid":{},"tid":{},"args":{{"operation":{},"slice":{}}}}},)",
      name, microseconds(e.begin), microseconds(e.end - e.begin), process, thread, e.epoch, e.slice);
  text += '\n';
}

void append_name(std::string& text, std::string_view what, std::string_view name, pid_t process,
                 pid_t thread) {
  fmt::format_to(std::back_inserter(text),
                 R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}},)", what, process, thread,
                 json_text(name));  // a thread of the user may have any name
  text += '\n';
}

}  // namespace

std::int64_t clock() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void record(What what, std::int64_t begin, std::uint64_t epoch, std::uint64_t slice) noexcept {
  if (begin == 0) return;
  const std::int64_t end = clock();
  Buffer& buffer = own_buffer();
  const std::size_t at = buffer.size.load(std::memory_order_relaxed);
  if (at == Buffer::kEvents) {
    buffer.dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  buffer.events[at] = {begin, end, epoch, static_cast<std::uint32_t>(slice), what};
  buffer.size.store(at + 1, std::memory_order_release);
}

void start(const std::string& path, std::string_view member, bool first_of_host) {
  const std::scoped_lock lock(state().mutex);
  if (state().file && (!first_of_host || state().written)) return;
  state().file.emplace(path, first_of_host);
  state().member = member;
  on.store(true, std::memory_order_relaxed);
}

void write() {
  if (!on.load(std::memory_order_relaxed)) return;
  const std::scoped_lock lock(state().mutex);
  const pid_t process = ::getpid();
  std::string text;
  for (const auto& buffer : state().buffers) {
    const std::size_t size = buffer->size.load(std::memory_order_acquire);
    if (buffer->written == 0 && size > 0) {
      append_name(text, "process_name", state().member, process, buffer->thread);
      append_name(text, "thread_name", buffer->name, process, buffer->thread);
    }
    for (; buffer->written < size; ++buffer->written)
      append_event(text, buffer->events[buffer->written], process, buffer->thread);
    if (const auto dropped = buffer->dropped.exchange(0, std::memory_order_relaxed)) {
      append_name(text, "thread_name", fmt::format("{} (full: {} spans missing)", buffer->name, dropped),
                  process, buffer->thread);
    }
  }
  state().file->append(std::move(text));
  state().written = true;
}

}  // namespace nzcl::trace
