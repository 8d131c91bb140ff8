#include "tests/stress/round.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "tests/stress/compressed.h"
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
void run_rank(Communicator& communicator, std::span<const Problem> problems, Draw draw, Errors& errors) {
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

/// Where the requests of a round are called.
enum class Where {
  whole,  // on the communicator that the ranks have joined
  part,   // on one that is split from it
  both,   // one half on each, at the same time
  anew,   // on one that takes its place, by shrink()
};

std::string_view text_of(Where where) {
  switch (where) {
    case Where::whole:
      return "";
    case Where::part:
      return ", on a split";
    case Where::both:
      return ", on the whole and on a split";
    case Where::anew:
      return ", after shrink()";
  }
  return "";
}

/// `on_both` has the draws of this rank's calls on the split, if there are others on the whole.
void run_where(Where where, Communicator& whole, std::span<const Problem> problems, Draw draw, Draw on_both,
               Errors& errors) {
  if (where == Where::whole) return run_rank(whole, problems, draw, errors);
  if (where == Where::anew) {
    whole = whole.shrink();
    return run_rank(whole, problems, draw, errors);
  }
  Communicator part = whole.split(0, whole.rank());
  if (where == Where::part) return run_rank(part, problems, draw, errors);
  const auto half = problems.size() / 2;
  const std::jthread beside([&] {
    try {
      run_rank(part, problems.subspan(half), on_both, errors);
    } catch (const std::exception& e) {
      errors.add(fmt::format("on the split: {}", e.what()));
    }
  });
  run_rank(whole, problems.first(half), draw, errors);
}

}  // namespace

RoundReport run_round(std::uint64_t seed) {
  Draw draw(seed);
  const test::Setting setting = draw_setting(draw);
  // Ranks of a split or of a new communicator keep their numbers, so the problems are the same.
  const Where where = draw.pick({Where::whole, Where::whole, Where::part, Where::both, Where::anew});
  const bool compresses = setting.dedicated == 0 && draw.chance(0.3);
  const std::uint64_t compressed_seed = draw.bits();
  RoundReport report{.setting = stress::text_of(setting), .requests = {}, .errors = {}};
  report.setting += text_of(where);
  if (compresses) report.setting += fmt::format(", compressed with seed {}", compressed_seed);
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
    run_where(where, communicator, problems, Draw(seeds[rank]), Draw(~seeds[rank]), errors);
    if (compresses) errors.add(check_compressed(communicator, compressed_seed));
  });
  for (std::size_t member = 0; member < thrown.size(); ++member) {
    if (!thrown[member].empty()) errors.add(fmt::format("member {}: {}", member, thrown[member]));
  }
  report.errors = errors.take();
  return report;
}

}  // namespace nzcl::stress
