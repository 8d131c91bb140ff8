#pragma once

#include <vector>

#include "verbs/ofi/handles.h"
#include "verbs/transport.h"

namespace nzcl::verbs::ofi {

/// One RDM endpoint with its own completion queue and address vector. All progress of these providers is made
/// inside poll().
class OfiEndpoint final : public Endpoint {
 public:
  OfiEndpoint(fid_fabric* fabric, fid_domain* domain, fi_info* info, std::string device_name,
              const Limits& limits, const EndpointOptions& options);

  std::string address_for(PeerId peer) override;
  void connect(std::span<const std::string> addresses, Deadline deadline) override;
  std::size_t post(std::span<const Write> writes) noexcept override;
  std::size_t poll(std::span<Completion> out) noexcept override;
  std::string failure() const override { return failure_; }
  std::size_t in_flight() const noexcept override { return used_; }
  int wait_fd() const noexcept override { return wait_fd_; }
  bool prepare_wait() noexcept override;

 private:
  /// A write in flight, or a free place for one. Small: a write touches it twice, and libfabric's spin locks
  /// (shm) make each nanosecond between two posts several (perf/README.md).
  struct InFlight {
    std::uint64_t context = 0;
    PeerId peer = 0;
    std::uint32_t next_free = 0;
  };
  void open_queue(fid_domain* domain, std::size_t size);
  bool post_one(const Write& write) noexcept;
  /// libfabric's call for a write from one place, which is shorter than that for a gather list.
  ssize_t write_segment(const Write& write) noexcept;
  ssize_t write_list(const Write& write) noexcept;
  /// The write that libfabric completes with `op_context`; its place is free again.
  InFlight take_back(void* op_context) noexcept;
  Completion take_error() noexcept;

  fid_fabric* fabric_;
  const std::string device_name_, provider_;
  const Limits limits_;
  std::vector<fi_context2> contexts_;  // libfabric's from post to completion, one for each of in_flight_
  Handle<fid_wait> wait_set_;          // where the queue's own descriptor will not do
  Handle<fid_cq> queue_;               // the endpoint goes first
  Handle<fid_av> addresses_;
  Handle<fid_ep> endpoint_;
  int wait_fd_ = -1;
  std::vector<fi_addr_t> peers_;
  std::vector<InFlight> in_flight_;
  std::uint32_t free_ = 0;  // in_flight_.size(): none
  std::size_t used_ = 0;
  std::string failure_;
  bool broken_ = false;  // a post failed: reported by the next poll
  PeerId broken_peer_ = Completion::kNoPeer;
};

}  // namespace nzcl::verbs::ofi
