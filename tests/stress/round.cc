#include "tests/stress/round.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>

#include "tests/stress/rank_call.h"
#include "tests/stress/setting.h"

namespace nzcl::stress {
namespace {

/// What ranks have found wrong.
class Errors {
 public:
  void add(std::string text) {
    if (text.empty()) return;
    const std::scoped_lock lock(mutex_);
    texts_.push_back(std::move(text));
  }
  std::vector<std::string> take() { return std::move(texts_); }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

/// Calls all requests in their order, with several in flight, which end in any order.
void run_rank(Communicator& communicator, const std::vector<Problem>& problems, Draw draw, Errors& errors) {
  std::vector<std::unique_ptr<RankCall>> in_flight;
  const auto finish_one = [&] {
    const auto i = static_cast<std::ptrdiff_t>(draw.number(std::uint64_t{0}, in_flight.size() - 1));
    errors.add(in_flight[static_cast<std::size_t>(i)]->finish());
    in_flight.erase(in_flight.begin() + i);
  };
  for (const Problem& problem : problems) {
    in_flight.push_back(std::make_unique<RankCall>(communicator, problem, draw));
    in_flight.back()->start();
    const auto most = draw.number(std::uint64_t{0}, std::uint64_t{8});
    while (in_flight.size() > most) finish_one();
    if (problem.request.barrier_follows) communicator.barrier();
  }
  while (!in_flight.empty()) finish_one();
}

}  // namespace

RoundReport run_round(std::uint64_t seed) {
  Draw draw(seed);
  const test::Setting setting = draw_setting(draw);
  RoundReport report{.setting = text_of(setting), .requests = {}, .errors = {}};
  std::vector<Problem> problems;
  const int requests = draw.number(1, 25);
  for (int i = 0; i < requests; ++i) {
    const Request request = make_request(draw, setting);
    report.requests.push_back(request.text());
    problems.push_back(make_problem(request, setting.ranks));
  }
  std::vector<std::uint64_t> seeds;  // of each rank's own draws
  for (int rank = 0; rank < setting.ranks; ++rank) seeds.push_back(draw.bits());

  Errors errors;
  const auto thrown = test::run_ranks(setting, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    run_rank(communicator, problems, Draw(seeds[rank]), errors);
  });
  for (std::size_t member = 0; member < thrown.size(); ++member) {
    if (!thrown[member].empty()) errors.add(fmt::format("member {}: {}", member, thrown[member]));
  }
  report.errors = errors.take();
  return report;
}

}  // namespace nzcl::stress
