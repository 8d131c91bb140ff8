#include "runtime/comm/engine_threads.h"

#include <fmt/format.h>

#include "runtime/base/block_signals.h"
#include "runtime/placement/threads.h"

namespace nzcl::comm {

void EngineThreads::start(LaneSet& lanes, const placement::Placement& placement, bool scans,
                          const std::string& member, std::function<void()> at_end) {
  scan_pool_ = std::make_unique<engine::ScanPool>(
      scans ? static_cast<int>(placement.scan_cpus.size()) : 0, [&placement, member](int i) {
        placement::name_thread(fmt::format("nzcl-scan-{}", i).c_str());
        placement::pin_thread(placement.scan_cpus[static_cast<std::size_t>(i)], member);
      });
  const BlockSignals blocked;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    std::promise<void> end;
    std::future<void> ended = end.get_future();
    std::jthread thread([&lanes, &placement, member, i, end = std::move(end)](std::stop_token stop) mutable {
      placement::name_thread(fmt::format("nzcl-lane-{}", i).c_str());
      placement::pin_thread(placement.lane_cpus[i], member);
      lanes[i].run(stop);
      end.set_value();
    });
    lane_threads_.push_back({std::move(thread), std::move(ended)});
  }
  ending_ = std::thread([this, at_end = std::move(at_end)] {
    placement::name_thread("nzcl-end");
    end_.acquire();
    at_end();
  });
}

bool EngineThreads::stop(LaneSet& lanes, std::chrono::seconds patience) {
  for (LaneThread& lane : lane_threads_) lane.thread.request_stop();
  lanes.ring();
  end_.release();
  if (ending_.joinable()) ending_.join();
  std::erase_if(lane_threads_, [patience](LaneThread& lane) {
    return lane.ended.wait_for(patience) == std::future_status::ready;
  });
  if (!lane_threads_.empty()) return false;
  scan_pool_.reset();
  return true;
}

}  // namespace nzcl::comm
