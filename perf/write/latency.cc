#include "perf/write/latency.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "nzcl/error.h"
#include "perf/write/waiter.h"

namespace perf::write {
namespace {

using namespace nzcl::verbs;  // NOLINT: a program, not a header
using nlohmann::json;

class PingPong {
 public:
  PingPong(Session& session, std::uint32_t size)
      : session_(session),
        channel_(session.channels().front()),
        size_(size),
        waiter_(session.settings().events ? Waiting::asleep : Waiting::polling, {&channel_, 1}) {}

  void ping(std::uint64_t round) {
    session_.outgoing()[size_ - 1] = mark(round);
    const Segment segment{session_.outgoing(), size_, &session_.region()};
    const bool immediate = session_.settings().immediate;
    const Write write{.peer = session_.peer(),
                      .segments = {&segment, 1},
                      .target = channel_.target,
                      .immediate = immediate ? std::optional<std::uint32_t>(0) : std::nullopt,
                      .context = 0};
    while (channel_.endpoint->post({&write, 1}) == 0) poll();
  }
  void pong(std::uint64_t round) {
    const bool immediate = session_.settings().immediate;
    waiter_.moved();
    while (immediate ? arrived_ <= round : last_byte() != mark(round)) {
      if (poll() == 0) waiter_.idle();
    }
  }
  /// Some transports move a write only while its sender polls, so this side polls until its writes are gone.
  void finish() {
    while (channel_.endpoint->in_flight() > 0) poll();
  }

 private:
  /// Differs from the zero that the buffer starts with, and from the mark of the round before.
  static std::byte mark(std::uint64_t round) { return static_cast<std::byte>(round % 255 + 1); }
  std::byte last_byte() {
    return std::atomic_ref(session_.incoming()[size_ - 1]).load(std::memory_order_acquire);
  }
  std::size_t poll() {
    std::array<Completion, 16> completions;
    const std::size_t n = channel_.endpoint->poll(completions);
    for (std::size_t i = 0; i < n; ++i) {
      if (completions[i].kind == Completion::Kind::failed)
        throw nzcl::Error(nzcl::ErrorCode::peer_failed, channel_.endpoint->failure());
      if (completions[i].kind == Completion::Kind::arrived) ++arrived_;
    }
    return n;
  }

  Session& session_;
  Channel& channel_;
  const std::uint32_t size_;
  Waiter waiter_;
  std::uint64_t arrived_ = 0;
};

double percentile(const std::vector<double>& sorted, double share) {
  const auto place = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(place, 1, sorted.size()) - 1];
}

}  // namespace

LatencyResult measure_latency(Session& session, std::uint32_t size) {
  const Settings& settings = session.settings();
  std::fill_n(session.incoming(), size, std::byte{0});
  session.exchange("ready");
  PingPong game(session, size);
  const std::uint64_t warm_up = settings.iterations / 20 + 1, rounds = settings.iterations + warm_up;
  std::vector<double> samples;
  samples.reserve(settings.iterations);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    if (!settings.server()) game.ping(round);
    game.pong(round);
    if (settings.server()) game.ping(round);
    if (round >= warm_up)
      samples.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / 2);
  }
  game.finish();
  std::sort(samples.begin(), samples.end());
  const auto n = static_cast<double>(samples.size());
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n;
  double squares = 0;
  for (const double s : samples) squares += (s - mean) * (s - mean);
  const json mine{samples.front(),           samples.back(),
                  percentile(samples, 0.5),  mean,
                  std::sqrt(squares / n),    percentile(samples, 0.99),
                  percentile(samples, 0.999)};
  // The result is the one of the client's clock.
  const json other = json::parse(session.exchange(mine.dump()));
  const json& r = settings.server() ? other : mine;
  return {.size = size,
          .iterations = settings.iterations,
          .min = r[0],
          .max = r[1],
          .typical = r[2],
          .average = r[3],
          .stdev = r[4],
          .p99 = r[5],
          .p999 = r[6]};
}

}  // namespace perf::write
