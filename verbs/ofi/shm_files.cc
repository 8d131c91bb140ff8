#include "verbs/ofi/shm_files.h"

#include <fmt/format.h>

#include <string_view>

#include "nzcl/error.h"
#include "verbs/ofi/shm_trial.h"

namespace nzcl::verbs::ofi {
namespace {

/// The most peers that an address vector of libfabric's shm takes (SMR_MAX_PEERS, 1.17 to 2.6).
constexpr std::size_t kMostPeers = 256;

}  // namespace

std::unique_ptr<Trial> ShmFiles::begin_trial(const TrialOptions& options) {
  if (options.peers > kMostPeers) {
    throw Error(ErrorCode::unavailable,
                fmt::format("libfabric-shm: libfabric joins at most {} members, and there are {}; use "
                            "NZCL_TRANSPORT=shm or tcp",
                            kMostPeers, options.peers));
  }
  const auto room = std::make_shared<ShmRoom>(options.endpoints);
  auto trial = std::make_unique<ShmTrial>(room);
  const std::scoped_lock lock(mutex_);
  room_ = room;
  return trial;
}

void ShmFiles::make_room() {
  const std::scoped_lock lock(mutex_);
  if (!room_) room_ = std::make_shared<ShmRoom>(1);
  room_->hand_over();
  if (room_->endpoints() == 0) room_.reset();  // its file goes when no trial needs it any more
}

void ShmFiles::fill(const std::string& address) {
  constexpr std::string_view kPrefix = "fi_shm://";
  std::string name = address.substr(0, address.find('\0'));
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  fill_endpoint_file(name);
}

}  // namespace nzcl::verbs::ofi
