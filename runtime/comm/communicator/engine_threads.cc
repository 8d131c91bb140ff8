#include "runtime/comm/communicator/engine_threads.h"

#include <fmt/format.h>

#include "nzcl/error.h"
#include "runtime/base/start_thread.h"
#include "runtime/placement/threads.h"

namespace nzcl::comm {

void EngineThreads::start(LaneSet& lanes, const placement::Placement& placement, bool scans,
                          const std::string& member, std::function<void()> at_end) {
  const int scan_threads = scans ? static_cast<int>(placement.scan_cpus.size()) : 0;
  try {
    scan_pool_ = std::make_unique<engine::ScanPool>(scan_threads, [&placement, member](int i) {
      placement::name_thread(fmt::format("nzcl-scan-{}", i).c_str());
      placement::pin_thread(placement.scan_cpus[static_cast<std::size_t>(i)], member);
    });
    for (std::size_t i = 0; i < lanes.size(); ++i) start_lane(lanes, placement, i, member);
    ending_ = start_thread("nzcl-end", [&] {
      return std::thread([this, at_end = std::move(at_end)] {
        placement::name_thread("nzcl-end");
        end_.acquire();
        at_end();
      });
    });
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("{}. {} needs {} thread(s) for lanes (NZCL_LANES), {} for scans "
                                      "(NZCL_TUNE=scan_threads=...) and 3 more",
                                      e.what(), member, lanes.size(), scan_threads));
  }
}

void EngineThreads::start_lane(LaneSet& lanes, const placement::Placement& placement, std::size_t i,
                               const std::string& member) {
  const std::string name = fmt::format("nzcl-lane-{}", i);
  std::promise<void> end;
  std::future<void> ended = end.get_future();
  std::jthread thread = start_thread(name, [&] {
    return std::jthread(
        [&lanes, &placement, member, i, name, end = std::move(end)](std::stop_token stop) mutable {
          placement::name_thread(name.c_str());
          placement::pin_thread(placement.lane_cpus[i], member);
          lanes[i].run(stop);
          end.set_value();
        });
  });
  lane_threads_.push_back({std::move(thread), std::move(ended)});
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
