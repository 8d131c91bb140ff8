#include "runtime/switch/xdp/pool_table.h"

#include <bpf/bpf.h>
#include <fmt/format.h>
#include <linux/membarrier.h>
#include <net/if.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "nzcl/error.h"
#include "runtime/switch/failure_text.h"
#include "verbs/datagram/udp/address.h"

namespace nzcl::tools::xdp {

using engine::slot_pool::Header;
using engine::slot_pool::kNoPiece;

static_assert(sizeof(nzcl_header) == sizeof(Header) &&
              offsetof(nzcl_header, checksum) == offsetof(Header, checksum));

namespace {

/// A value of the map `slots`, whose lock the kernel does not copy.
struct SlotValue {
  std::uint32_t lock = 0, zero = 0;
  nzcl_sets data{};
};

void put(int map, const char* what, const void* key, const void* value) {
  if (bpf_map_update_elem(map, key, value, BPF_ANY) != 0)
    throw Error(ErrorCode::system,
                fmt::format("the kernel did not take a pool's {}: {}", what, std::strerror(errno)));
}

std::string name_of_interface(std::uint32_t index) {
  std::array<char, IF_NAMESIZE> name{};
  return ::if_indextoname(index, name.data()) != nullptr ? name.data() : fmt::format("number {}", index);
}

std::string text_of(const nzcl_state& s) {
  const auto first = static_cast<int>(s.ranks[0]), second = static_cast<int>(s.ranks[1]);
  switch (static_cast<nzcl_failure>(s.failure)) {
    case NZCL_GOES_WELL:
      return {};
    case NZCL_OTHER_OPERATION:
      return engine::slot_pool::other_operations_text(first, second);
    case NZCL_CANNOT_BE:
      return engine::slot_pool::cannot_be_text(first, s.values, static_cast<int>(s.exponent), s.piece);
  }
  return fmt::format("the program in the kernel reports failure {}", s.failure);
}

std::string shared_text(const nzcl_state& s) {
  return fmt::format(
      "contributions of ranks {} and {} have come in at interface {} of the switch. If both ranks are behind "
      "it, they get each result late, because one copy of it is sent there: give each rank an interface of "
      "its own, or use nzcl_aggregator --switch. If not, somebody repeats packets of rank {}",
      s.shared_ranks[0], s.shared_ranks[1], name_of_interface(s.shared_interface), s.shared_ranks[1]);
}

}  // namespace

/// Tells the kernel to forget the pool when the exchange does.
class OpenPool final : public engine::slot_pool::KernelPool {
 public:
  OpenPool(PoolTable& table, std::uint32_t number, const nzcl_pool_key& key)
      : table_(table), number_(number), key_(key) {}
  ~OpenPool() override { table_.release(number_, key_); }

  std::string failure() const override {
    const nzcl_state& s = table_.state(number_);
    if (__atomic_load_n(&s.failure, __ATOMIC_ACQUIRE) == NZCL_GOES_WELL) return {};
    return text_of(s);
  }
  std::string notice() const override {
    const nzcl_state& s = table_.state(number_);
    return __atomic_load_n(&s.shared, __ATOMIC_ACQUIRE) != 0 ? shared_text(s) : std::string();
  }

 private:
  PoolTable& table_;
  const std::uint32_t number_;
  const nzcl_pool_key key_;
};

PoolTable::PoolTable(const Maps& maps, std::uint32_t pools, std::uint32_t slots_of_each)
    : maps_(maps),
      slots_of_each_(slots_of_each),
      states_(maps.states, pools * sizeof(nzcl_state)),
      in_use_(pools) {
  if (!states_.valid())
    throw Error(ErrorCode::system,
                fmt::format("the program's states cannot be mapped: {}", std::strerror(errno)));
}

PoolTable::Taken PoolTable::take_number() {
  const std::scoped_lock lock(mutex_);
  const auto free = std::ranges::find(in_use_, false);
  if (free == in_use_.end())
    throw Error(ErrorCode::unsupported,
                fmt::format("all {} pools are in use; a communicator, or a part that is split off, needs two "
                            "for each lane: start nzcl_switch with a larger --pools",
                            in_use_.size()));
  *free = true;
  generations_ = std::max(generations_ + 1, 1u);  // 0 is that of homes which nobody has had
  return {static_cast<std::uint32_t>(free - in_use_.begin()), generations_};
}

/// Before round 0, rounds -2 and -1 are complete, without a next piece.
void PoolTable::reset_slots(std::uint32_t number) const {
  const auto value = std::make_unique<SlotValue>();
  for (std::uint32_t parity = 0; parity < 2; ++parity) {
    nzcl_set& set = value->data.sets[parity];
    set.round = parity - 2;
    set.piece = set.next = kNoPiece;
    set.complete = 1;
  }
  for (std::uint32_t s = 0; s < slots_of_each_; ++s) {
    const std::uint32_t at = number * slots_of_each_ + s;
    put(maps_.slots, "slots", &at, value.get());
  }
}

std::unique_ptr<engine::slot_pool::KernelPool> PoolTable::open(const engine::slot_pool::Pool& pool,
                                                               const std::string& address,
                                                               std::span<const std::string> ranks) {
  if (ranks.size() > NZCL_MOST_RANKS)
    throw Error(ErrorCode::unsupported,
                fmt::format("{} ranks; the program in the kernel sums for at most {}: use nzcl_aggregator "
                            "--switch instead",
                            ranks.size(), static_cast<int>(NZCL_MOST_RANKS)));
  const auto own = verbs::udp::parse_address(address);
  const nzcl_pool_key key{.host = own.host, .port = own.port, .zero = 0};
  const auto [number, generation] = take_number();
  auto opened = std::make_unique<OpenPool>(*this, number, key);  // from here on, it gives the number back
  const nzcl_state well{};
  put(maps_.states, "state", &number, &well);
  reset_slots(number);
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    const auto theirs = verbs::udp::parse_address(ranks[r]);
    const nzcl_rank rank{.host = theirs.host, .port = theirs.port, .zero = 0};
    const std::uint32_t at = number * NZCL_MOST_RANKS + r;
    put(maps_.ranks, "ranks", &at, &rank);
  }
  const nzcl_pool value{.key_low = pool.job.key.low,
                        .key_high = pool.job.key.high,
                        .tag = pool.job.tag,
                        .number = number,
                        .generation = generation,
                        .first_slot = number * slots_of_each_,
                        .slots = pool.slots,
                        .workers = static_cast<std::uint32_t>(pool.workers),
                        .values = pool.piece_elements};
  put(maps_.pools, "slots and key", &number, &value);
  put(maps_.addresses, "address", &key, &number);  // the last one: now packets reach it
  return opened;
}

void PoolTable::release(std::uint32_t number, const nzcl_pool_key& key) {
  bpf_map_delete_elem(maps_.addresses, &key);
  // This waits until every core has left the program, so that a packet which is in it still does not reach
  // the slots of another pool. If the kernel cannot, the number is not used again. Until then, nothing that
  // belongs to the number is written: such a packet finds key, slots and homes as they were, and the homes
  // that it learns are of a generation which the number's next pool does not have.
  if (::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) != 0) return;
  const std::scoped_lock lock(mutex_);
  in_use_[number] = false;
}

}  // namespace nzcl::tools::xdp
