#include "perf/write/bandwidth.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "nzcl/error.h"
#include "perf/write/waiter.h"

namespace perf::write {
namespace {

using namespace nzcl::verbs;  // NOLINT: a program, not a header
using nlohmann::json;

/// What an immediate says, in its upper two bits. The lower bits of a credit are a number of writes.
enum class Word : std::uint32_t { data = 0, credit = 1, last = 2, landed = 3 };
constexpr std::uint32_t word(Word w, std::uint32_t value = 0) {
  return static_cast<std::uint32_t>(w) << 30 | value;
}

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

/// One run of one size, on one side.
class Run {
 public:
  Run(Session& session, std::uint32_t size)
      : session_(session),
        settings_(session.settings()),
        size_(size),
        segment_{session.outgoing(), size, &session.region()},
        waiter_(way_to_wait(), session.channels()) {
    sends_ = !settings_.server() || settings_.bidirectional;
    receives_ = settings_.server() || settings_.bidirectional;
    lanes_.resize(session.channels().size());
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[i];
      lane.last_sent = !sends_;
      lane.landed = !sends_;
      lane.peer_done = !receives_;
      const Write write{.peer = session.peer(),
                        .segments = {&segment_, 1},
                        .target = session.channels()[i].target,
                        .immediate = settings_.immediate ? std::optional(word(Word::data)) : std::nullopt,
                        .context = 1};
      lane.list.assign(static_cast<std::size_t>(settings_.post_list), write);
    }
    window_ = 4 * static_cast<std::size_t>(settings_.depth * settings_.queue_pairs);
    posted_at_.resize(std::bit_ceil(2 * window_));
  }

  void go() {
    begin_ = Clock::now();
    while (!over()) {
      bool moved = false;
      for (std::size_t i = 0; i < lanes_.size(); ++i) {
        posting_since_.reset();
        while (sends_ && push(i)) moved = true;  // as many as may be in flight, as in perftest
        moved |= take(i);
      }
      if (moved) {
        waiter_.moved();
      } else {
        waiter_.idle();
      }
    }
    elapsed_ = seconds_since(begin_);
  }

  std::uint64_t completed() const { return completed_; }
  double elapsed() const { return landed_after_ > 0 ? landed_after_ : elapsed_; }
  double peak() const { return peak_; }

 private:
  struct Lane {
    std::uint64_t posted = 0, completed = 0;
    std::uint64_t immediates = 0, credited = 0;  // sent, and those of them that the peer has taken
    std::uint32_t taken = 0;                     // immediates of the peer that it has no credit for yet
    bool last_sent = false, landed = false, peer_done = false;
    bool answer = false;      // the peer's last write has come, and the peer is still to be told
    std::vector<Write> list;  // is posted again and again; made once, as in perftest
  };

  Waiting way_to_wait() const {
    const bool autonomous = session_.device().limits().autonomous;
    // A side that has nothing to do until the last write has come leaves its processor to others.
    const bool idle = autonomous && settings_.server() && !settings_.bidirectional && !settings_.immediate;
    if (settings_.events || idle) return Waiting::asleep;
    return autonomous ? Waiting::polling : Waiting::pausing;
  }
  bool over() const {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& l) {
      return l.last_sent && l.landed && l.peer_done && !l.answer && l.posted == l.completed;
    });
  }
  /// The number of writes that may still be started, over all lanes.
  std::uint64_t left() {
    if (settings_.duration_s > 0) return posting_since() < settings_.duration_s ? 1u << 20 : 0;
    const std::uint64_t announcing = lanes_.size();  // the last write of each lane counts as well
    return settings_.iterations - std::min(settings_.iterations, started_ + announcing);
  }

  bool write(Lane& lane, Channel& channel, std::uint32_t bytes, std::optional<std::uint32_t> immediate) {
    const Segment segment{segment_.data, bytes, segment_.region};
    const Write w{.peer = session_.peer(),
                  .segments = {&segment, 1},
                  .target = channel.target,
                  .immediate = immediate,
                  .context = bytes == size_ ? 1u : 0u};
    if (channel.endpoint->post({&w, 1}) == 0) return false;
    ++lane.posted;
    return true;
  }

  bool push(std::size_t i) {
    Lane& lane = lanes_[i];
    Channel& channel = session_.channels()[i];
    if (lane.last_sent) return false;
    const std::uint64_t room = static_cast<std::uint64_t>(settings_.depth) - (lane.posted - lane.completed);
    std::uint64_t n = std::min<std::uint64_t>(left(), static_cast<std::uint64_t>(settings_.post_list));
    if (n == 0) {
      // The last write is of full size, because the receiver checks its bytes.
      if (room == 0 || !may_announce(lane) || !write(lane, channel, size_, word(Word::last))) return false;
      ++lane.immediates;
      note_posting(1);
      return lane.last_sent = true;
    }
    if (room < n) return false;
    if (settings_.immediate && lane.immediates - lane.credited + n + 2 > session_.arrivals() / 2)
      return false;
    const std::size_t accepted = channel.endpoint->post({lane.list.data(), static_cast<std::size_t>(n)});
    lane.posted += accepted;
    started_ += accepted;
    note_posting(accepted);
    if (settings_.immediate) lane.immediates += accepted;
    return accepted > 0;
  }
  bool may_announce(const Lane& lane) const {
    return lane.immediates - lane.credited + 2 <= session_.arrivals() / 2;
  }

  bool take(std::size_t i) {
    Lane& lane = lanes_[i];
    Channel& channel = session_.channels()[i];
    std::array<Completion, 64> completions;
    const std::size_t n = channel.endpoint->poll(completions);
    std::uint64_t written = 0;
    for (std::size_t k = 0; k < n; ++k) {
      const Completion& c = completions[k];
      switch (c.kind) {
        case Completion::Kind::written:
          ++lane.completed;
          written += c.context;  // 1 for a whole write
          break;
        case Completion::Kind::arrived:
          arrived(lane, c.immediate);
          break;
        case Completion::Kind::failed:
          throw nzcl::Error(nzcl::ErrorCode::peer_failed, channel.endpoint->failure());
      }
    }
    if (written > 0) note_completions(written);
    // Answers and credits go out before further writes are posted in front of them.
    if (lane.answer && write(lane, channel, 1, word(Word::landed))) lane.answer = false;
    if (lane.taken >= session_.arrivals() / 8 && write(lane, channel, 1, word(Word::credit, lane.taken)))
      lane.taken = 0;
    return n > 0;
  }

  void arrived(Lane& lane, std::uint32_t bits) {
    switch (static_cast<Word>(bits >> 30)) {
      case Word::data:
        ++lane.taken;
        break;
      case Word::credit:
        lane.credited += bits & 0x3fffffff;
        break;
      case Word::last:
        lane.peer_done = lane.answer = true;
        break;
      case Word::landed:
        lane.landed = true;
        landed_after_ = seconds_since(begin_);
        break;
    }
  }

  /// Takes the time as perftest does: from the posting of a window's first write, or of the list that it was
  /// posted in, to the completion of its last.
  void note_completions(std::uint64_t count) {
    const double now = seconds_since(begin_);
    completed_ += count;
    const std::uint64_t window = std::min(completed_, window_);
    const double first = posted_at(completed_ - window);
    if (now > first) peak_ = std::max(peak_, static_cast<double>(window) * size_ / (now - first));
  }
  void note_posting(std::uint64_t count) {
    const double since = posting_since();
    while (count-- > 0) posted_at(posted_count_++) = since;
  }
  double& posted_at(std::uint64_t write) { return posted_at_[write & (posted_at_.size() - 1)]; }
  /// When the current round of posts began. The clock is not read at every post, because within a host that
  /// would show in the result.
  double posting_since() {
    if (!posting_since_) posting_since_ = seconds_since(begin_);
    return *posting_since_;
  }

  Session& session_;
  const Settings& settings_;
  const std::uint32_t size_;
  const Segment segment_;
  Waiter waiter_;
  bool sends_ = false, receives_ = false;
  std::vector<Lane> lanes_;
  Clock::time_point begin_;
  std::uint64_t started_ = 0, completed_ = 0;
  double elapsed_ = 0, landed_after_ = 0, peak_ = 0;
  std::uint64_t window_ = 0;       // the window of peak_, in writes
  std::vector<double> posted_at_;  // times of the last writes: two windows, rounded up to a power of two
  std::uint64_t posted_count_ = 0;
  std::optional<double> posting_since_;
};

std::byte pattern(std::size_t i, std::uint32_t size) {
  return static_cast<std::byte>((i * 31 + size) % 251 + 1);
}

void check_landed(Session& session, std::uint32_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    if (session.incoming()[i] != pattern(i, size)) {
      throw nzcl::Error(nzcl::ErrorCode::internal,
                        fmt::format("writes of {} bytes: byte {} did not land", size, i));
    }
  }
}

}  // namespace

BandwidthResult measure_bandwidth(Session& session, std::uint32_t size) {
  const Settings& settings = session.settings();
  for (std::size_t i = 0; i < size; ++i) {
    session.outgoing()[i] = pattern(i, size);
    session.incoming()[i] = std::byte{0};
  }
  session.exchange("ready");
  Run run(session, size);
  run.go();
  if (settings.server() || settings.bidirectional) check_landed(session, size);

  const double average = static_cast<double>(run.completed()) * size / run.elapsed();
  const json mine{{"n", run.completed()}, {"average", average}, {"peak", std::max(run.peak(), average)}};
  const json other = json::parse(session.exchange(mine.dump()));
  BandwidthResult result{.size = size};
  for (const json& side : {mine, other}) {
    if (side.at("n") == 0) continue;
    result.iterations = side.at("n");
    result.average += side.at("average").get<double>();
    result.peak += side.at("peak").get<double>();
  }
  result.messages = result.average / size;
  return result;
}

}  // namespace perf::write
