#include "runtime/torch/fallback.h"

#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <condition_variable>
#include <cstdlib>
#include <sstream>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "nzcl/error.h"
#include "nzcl/log.h"
#include "runtime/torch/error_text.h"
#include "runtime/torch/fallback_wanted.h"
#include "runtime/torch/gloo_device.h"
#include "runtime/torch/meeting.h"

namespace nzcl_torch {
namespace {

/// What a rank says before Gloo's group is made: whether it can take part, and where it is.
struct Offer {
  std::string refusal;  // why it cannot
  RankPlace place;
};

std::string encoded(const Offer& offer) {
  std::string text = offer.refusal + "\n" + offer.place.host;
  for (const std::string& address : offer.place.addresses) text += "\n" + address;
  return text;
}

Offer decoded(const std::string& text) {
  Offer offer;
  std::istringstream lines(text);
  std::getline(lines, offer.refusal);
  std::getline(lines, offer.place.host);
  for (std::string address; std::getline(lines, address);) offer.place.addresses.push_back(address);
  return offer;
}

std::string one_line(std::string text) {
  if (text.empty()) return "it does not say why";
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text;
}

using GlooContexts = std::vector<std::shared_ptr<gloo::Context>>;

/// Gloo has no call that ends operations. But when a wait of one of its buffers times out, it closes all
/// connections of that buffer's context, and this fails whatever uses them, here and at the other ends.
void end_operations(const GlooContexts& contexts) {
  for (const auto& context : contexts) {
    char byte = 0;
    try {
      context->createUnboundBuffer(&byte, 1)->waitRecv(nullptr, std::chrono::milliseconds(1));
    } catch (const std::exception&) {  // of the timeout
    }
  }
}

/// Ends the operations after a while, unless it is destroyed before.
class Limit {
 public:
  Limit(GlooContexts contexts, std::chrono::milliseconds limit)
      : thread_([contexts = std::move(contexts), limit](const std::stop_token& stop) {
          std::mutex mutex;
          std::condition_variable_any never;
          std::unique_lock lock(mutex);
          never.wait_for(lock, stop, limit, [] { return false; });
          if (!stop.stop_requested()) end_operations(contexts);
        }) {}

 private:
  std::jthread thread_;
};

/// A pointer to the member of Gloo's context that knows the timeout of sends and receives.
struct TransportOf : gloo::Context {
  static std::shared_ptr<gloo::transport::Context>& of(gloo::Context& context) {
    return context.*(&TransportOf::transportContext_);
  }
};

/// Gloo's group, whose contexts can be reached.
class Group final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  const GlooContexts& contexts() const { return contexts_; }
  /// The group was made with the time for the meeting; its operations have another one.
  void set_timeout(std::chrono::milliseconds timeout) {
    options_->timeout = timeout;
    for (const auto& context : contexts_) {
      context->setTimeout(timeout);
      TransportOf::of(*context)->setTimeout(timeout);
    }
  }
};

}  // namespace

bool fallback_wanted() {
  const char* const set = std::getenv(kFallbackVariable);
  const std::string_view value = set == nullptr || *set == '\0' ? "1" : set;
  if (value != "0" && value != "1")
    throw nzcl::Error(nzcl::ErrorCode::invalid_argument,
                      std::string(kFallbackVariable) + "=" + std::string(value) + ": it is 0 or 1");
  return value == "1";
}

Fallback::Fallback(const c10::intrusive_ptr<c10d::Store>& store, const Settings& settings)
    : rank_(settings.rank), forbidden_(!fallback_wanted()) {
  GlooDevices devices;
  Offer own{.refusal = forbidden_ ? std::string(kFallbackVariable) + "=0" : "", .place = own_place()};
  try {
    if (!forbidden_) devices = named_devices(settings.interface);
  } catch (const std::exception& e) {
    own.refusal = one_line(text_of(e));
  }
  try {
    auto generation = store->add("nzcl/gloo/generation/" + std::to_string(settings.rank), 1);
    const auto own_store =
        c10::make_intrusive<c10d::PrefixStore>("nzcl/gloo/" + std::to_string(generation), store);
    std::vector<RankPlace> places;
    for (const std::string& text :
         meeting_in(own_store, settings.rank, settings.size, settings.meeting_timeout)(encoded(own))) {
      Offer offer = decoded(text);
      if (!offer.refusal.empty() && missing_.empty())
        missing_ = "rank " + std::to_string(places.size()) + " has none: " + offer.refusal;
      places.push_back(std::move(offer.place));
    }
    if (!missing_.empty()) return;
    const auto options = Group::Options::create(settings.meeting_timeout);
    options->devices = devices.empty() ? suitable_devices(settings.rank, places) : devices;
    options->threads = static_cast<int>(2 * options->devices.size());
    const auto group = c10::make_intrusive<Group>(own_store, settings.rank, settings.size, options);
    group->set_timeout(settings.timeout);
    contexts_ = group->contexts();
    group_ = group;
  } catch (const std::exception& e) {
    missing_ = one_line(text_of(e));
  }
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> Fallback::group(const char* call) {
  const std::scoped_lock lock(mutex_);
  TORCH_CHECK(group_.defined(), "nzcl leaves ", call, " to Gloo, which cannot do it: ", missing_);
  if (!used_.exchange(true))
    nzcl::write_log(nzcl::LogLevel::info,
                    "rank " + std::to_string(rank_) + ": " + call +
                        " is done by Gloo, as all calls that nzcl does not do itself; " + kFallbackVariable +
                        "=0 refuses them instead");
  return group_;
}

void Fallback::set_timeout(std::chrono::milliseconds timeout) {
  const std::scoped_lock lock(mutex_);
  if (group_.defined()) static_cast<Group&>(*group_).set_timeout(timeout);
}

void Fallback::abort() {
  const std::scoped_lock lock(mutex_);
  end_operations(contexts_);
}

void Fallback::close(std::chrono::milliseconds limit) {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  GlooContexts contexts;
  {
    const std::scoped_lock lock(mutex_);
    if (!group_.defined()) return;
    missing_ = "the group is closed";
    group = std::move(group_);
    contexts = std::exchange(contexts_, {});
  }
  const Limit ends(std::move(contexts), limit);
  group.reset();  // waits for its operations
}

}  // namespace nzcl_torch
