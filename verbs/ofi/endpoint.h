#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "verbs/ofi/domains.h"
#include "verbs/ofi/handles.h"
#include "verbs/transport.h"

namespace nzcl::verbs::ofi {

/// One reliable-datagram (RDM) endpoint with its own completion queue and address vector. These providers
/// make progress only inside poll().
///
/// The life of a write: post_one() takes a free place in in_flight_ and passes the fi_context2 with the same
/// index to libfabric, which owns that until it returns it as op_context of a completion. take_back() finds
/// the place by it and frees the place.
class OfiEndpoint final : public Endpoint {
 public:
  OfiEndpoint(fid_fabric* fabric, Domains::ForEndpoint domain, fi_info* info, std::string device_name,
              const Limits& limits, const EndpointOptions& options);

  std::string name() const;  // libfabric's own address of it
  std::string address_for(PeerId peer) override;
  void connect(std::span<const std::string> addresses, Deadline deadline) override;
  std::size_t post(std::span<const Write> writes) noexcept override;
  std::size_t poll(std::span<Completion> out) noexcept override;
  std::string failure() const override { return failure_; }
  std::size_t in_flight() const noexcept override { return used_; }
  int wait_fd() const noexcept override { return wait_fd_; }
  bool prepare_wait() noexcept override;

 private:
  /// A write in flight, or a free place for one. It is kept small because each write touches it twice between
  /// two posts, and that time counts several times over: libfabric's shm holds spin locks meanwhile
  /// (perf/results/writes.md).
  struct InFlight {
    std::uint64_t context = 0;
    PeerId peer = 0;
    std::uint32_t next_free = 0;
  };
  void open_queue(std::size_t size);
  /// To be held during calls that may progress the domain.
  std::unique_lock<std::mutex> lock_keys() const {
    return keys_ == nullptr ? std::unique_lock<std::mutex>() : std::unique_lock(*keys_);
  }
  bool post_one(const Write& write) noexcept;
  /// Writes from one place in memory, by a call of libfabric that is cheaper than the one for a gather list.
  ssize_t write_segment(const Write& write) noexcept;
  ssize_t write_list(const Write& write) noexcept;
  /// Frees the place of the write that libfabric completed with `op_context`, and returns what the place
  /// held.
  InFlight take_back(void* op_context) noexcept;
  Completion take_error() noexcept;

  fid_fabric* fabric_;
  const std::shared_ptr<fid_domain> domain_;  // released when all that was opened in it is closed
  std::mutex* const keys_;                    // of the domain; see Domains::ForEndpoint
  const std::string device_name_, provider_;
  const Level level_;
  const Limits limits_;
  std::vector<fi_context2> contexts_;  // one for each of in_flight_; libfabric owns those in use
  Handle<fid_wait> wait_set_;          // null unless the descriptor of the queue itself does not work
  Handle<fid_cq> queue_;               // declared before the endpoint, which must be closed first
  Handle<fid_av> addresses_;
  Handle<fid_ep> endpoint_;
  int wait_fd_ = -1;
  std::vector<fi_addr_t> peers_;
  std::vector<InFlight> in_flight_;
  std::uint32_t free_ = 0;  // first free place; in_flight_.size() if there is none
  std::size_t used_ = 0;
  std::string failure_;
  bool broken_ = false;  // a post failed, which the next poll reports
  PeerId broken_peer_ = Completion::kNoPeer;
};

}  // namespace nzcl::verbs::ofi
