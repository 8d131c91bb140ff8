#include "runtime/switch/kernel_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "nzcl/error.h"
#include "runtime/base/log.h"
#include "runtime/switch/dropped.h"
#include "runtime/switch/kernel_pools.h"
#include "runtime/switch/port.h"

namespace nzcl::engine::slot_pool {

namespace {

/// The program in the kernel sums what network interfaces carry.
std::unique_ptr<verbs::DatagramPort> open_port(const verbs::DatagramOptions& options) {
  if (options.kind != verbs::DatagramKind::udp) {
    throw Error(ErrorCode::invalid_argument,
                "nzcl_switch sums UDP packets, and the ranks of transport ibverbs send none: set "
                "NZCL_TRANSPORT=tcp on all members, or start nzcl_aggregator instead");
  }
  return verbs::open_datagram_port(options);
}

/// What a rank's packet at the port means. A copy of one looks the same, so it is no failure.
std::string came_past_text(int rank, const std::string& interfaces) {
  return fmt::format(
      "packets of rank {} come in past the interfaces at which they are summed ({}), and are dropped. If "
      "sums "
      "wait for that rank, name the interface that leads to it, too. If not, somebody repeats its packets",
      rank, interfaces);
}

/// Meets the ranks and has their packets summed. Its own port keeps the UDP port number for this process;
/// what arrives there is dropped and counted. None of it is the data path, so it may log, which it does once
/// for each reason.
class KernelExchange final : public Exchange {
 public:
  KernelExchange(LaneContext& context, const SwitchConfig& config)
      : context_(context), pools_(config.kernel_pools), port_(open_port(config.port)), job_(draw_job()) {}
  ~KernelExchange() override {
    log_dropped(context_, {.unknown = port_->counts().strange, .refused = refused_, .past = past_});
  }
  KernelExchange(const KernelExchange&) = delete;
  KernelExchange& operator=(const KernelExchange&) = delete;

  std::string address() const override {
    return PortAddress{.address = port_->address(),
                       .max_bytes = std::min(port_->max_bytes(), pools_->max_bytes()),
                       .slots = pools_->slots(),
                       .window = pools_->slots(),
                       .job = job_,
                       .zeros = true}
        .encode();
  }
  void connect(std::span<const std::string> texts) override {
    const Members& members = context_.config.members;
    std::vector<PortAddress> all;
    std::vector<std::string> ranks;
    for (int m = 0; m < members.count(); ++m) {
      all.push_back(PortAddress::decode(texts[static_cast<std::size_t>(m)], members.name(m)));
      if (members.is_worker(m)) ranks.push_back(all.back().address);
    }
    port_->connect(ranks);
    pool_ = {members.workers, pools_->slots(), common_piece_elements(all), job_, true, pools_->slots()};
    in_kernel_ = pools_->open(pool_, port_->address(), ranks);
  }

  void submit(Operation&) override {}  // only workers have operations
  void direct_arrived(std::uint16_t, std::uint16_t) override {}
  bool step() override {
    if (!in_kernel_) return false;
    if (std::string failure = in_kernel_->failure(); !failure.empty())
      context_.fail(ErrorCode::mismatch, std::move(failure));
    if (!noticed_) tell_notice();
    return drop_arrived();
  }
  bool idle() const override { return true; }  // it waits for nobody; workers do
  Stall waiting_for() const override { return {}; }
  int wait_fd() const override { return port_->wait_fd(); }

 private:
  void tell_notice() {
    const std::string notice = in_kernel_->notice();
    noticed_ = !notice.empty();
    if (noticed_) log().warn("{}: {}", name_of_lane(context_), notice);
  }
  /// A rank's packet that arrives here has come past the interfaces at which packets are summed: because one
  /// of them was not named, or because somebody sends copies in a form, or by a way, that the program does
  /// not look at. So it ends nothing.
  bool drop_arrived() {
    const std::size_t n = port_->receive(arrived_);
    for (std::size_t i = 0; i < n; ++i) {
      const auto packet = open(arrived_[i].bytes, job_);
      const bool genuine =
          packet && packet->header.kind == Kind::contribution && packet->header.rank == arrived_[i].peer;
      if (!genuine) {
        ++refused_;
      } else if (past_++ == 0) {
        log().warn("{}: {}", name_of_lane(context_),
                   came_past_text(packet->header.rank, pools_->interfaces()));
      }
    }
    return n > 0;
  }

  LaneContext& context_;
  const std::shared_ptr<KernelPools> pools_;
  const std::unique_ptr<verbs::DatagramPort> port_;
  const Job job_;
  Pool pool_;
  std::unique_ptr<KernelPool> in_kernel_;
  std::array<verbs::ArrivedDatagram, 32> arrived_;
  bool noticed_ = false;
  std::uint64_t refused_ = 0, past_ = 0;  // of what has arrived here: forged or changed; of ranks
};

}  // namespace

std::unique_ptr<Exchange> make_kernel_exchange(LaneContext& context, const SwitchConfig& config) {
  return std::make_unique<KernelExchange>(context, config);
}

}  // namespace nzcl::engine::slot_pool
