// Every setting of a communicator, with its default. The option table (runtime/options/table.cc) repeats the
// fields with their range and meaning; nzcl_info and runtime/options/OPTIONS.md list it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "nzcl/export.h"
#include "nzcl/log.h"
#include "nzcl/types.h"

namespace nzcl {

/// How the ranks exchange an operation. Every rank gets the same bits, in every run. Push and doubling add in
/// the order of the ranks. Merging adds partial sums of more and more ranks, and a hierarchy the sums of all
/// hosts, which gives the same bits for all types but floats, for minima and maxima, and for two ranks; sums
/// and averages of floats of more ranks are rounded elsewhere.
enum class Algorithm : std::uint8_t {
  automatic,  ///< of a request: as Options::algorithm says; there: what is expected to be fastest
  push,       ///< to owners, who sum and send the result to all: two hops. The way of every large operation.
  doubling,   ///< allreduce only: log2 N rounds between ranks, after which every rank sums. Small operations.
  switch_,    ///< of a whole communicator: slot pools over datagrams; float values as fixed point
  merging,  ///< allreduce only: log2 N rounds in which ranks merge partial sums. For sparse single elements.
  /// allreduce only: the ranks of each host sum first, and what they have together goes to other hosts once.
  /// For large tensors of jobs with several ranks on each host. The sums of a host are kept in the tensor's
  /// own type.
  hierarchy,
};
inline constexpr int kRequestAlgorithms = 6;

/// As NZCL_ALGORITHM spells it.
[[nodiscard]] NZCL_API std::string_view name_of(Algorithm algorithm);

/// How the ranks meet. automatic: as the launcher offers it.
enum class Bootstrap : std::uint8_t { automatic, socket, file, pmix };

/// What connects the queue pairs of ibverbs: the ranks' own meeting, or the kernel's connection manager.
enum class Connect : std::uint8_t { bootstrap, rdma_cm };

/// Whether engine threads are pinned to cores. automatic: if there is a core for each.
enum class Pinning : std::uint8_t { automatic, on, off };

/// In which order values are added where nobody asks for an algorithm.
enum class SumOrder : std::uint8_t {
  rank,  ///< in that of the ranks: a result has the same bits whichever algorithm is taken
  any,   ///< as is fastest. It follows from the number of ranks, the request and the options, so it is the
         ///< same in every run.
};

/// What the ranks do when a dedicated aggregator is lost (nzcl/ELASTIC.md).
enum class AggregatorLoss : std::uint8_t {
  fail,      ///< the communicator fails; shrink() goes on
  reassign,  ///< they go on without it, and begin those operations in flight again whose inputs are intact
  preserve,  ///< the same, and an operation in place begins by keeping a copy of its input
};

/// How a rank codes which elements or small blocks it sends. automatic: as is cheapest.
enum class IndexFormat : std::uint8_t { automatic, bitmap, offsets, gaps, runs, rice };

/// How messages that other ranks of this host read in place are stored. Sums do not depend on it.
enum class Staging : std::uint8_t {
  automatic,  ///< as is measured between two ranks, again and again
  cached,     ///< in this core's caches: fastest between cores that share one
  streamed,   ///< past the caches: fastest between cores that do not
};

/// What nzcl chooses well by itself, for measurements and for tests: NZCL_TUNE sets these, as a list
/// "name=value,...", and so does `tune` in a configuration file.
struct Tuning {
  int scan_threads = -1;  ///< Additional threads that scan for non-zero blocks; -1 = planned.
  /// Largest message, and the size of one slot of a channel. 0 = 272 KiB; with many members, or over several
  /// networks (hosts), 136 KiB, and there with dedicated aggregators 68 KiB.
  std::uint64_t slot_bytes = 0;
  /// Slots per channel, which are the credits of a sender. 0 = 8, or with several networks (hosts) as many as
  /// 128 MiB per lane hold, but at most 32, and at most 16 with dedicated aggregators.
  int channel_slots = 0;
  int max_segments = 0;           ///< Entries of a gather list; 0 = as many as the transport grants.
  std::uint64_t slice_bytes = 0;  ///< Dense bytes per slice; 0 = chosen from the tensor's size.
  /// Runs of at least this size are sent from the user's buffer, and shorter ones are copied. 0 = chosen from
  /// the costs of gather entries and copies.
  std::uint64_t gather_bytes = 0;
  /// A result whose runs have at least this average size is written in place. 0 = chosen from the costs
  /// of writes and copies.
  std::uint64_t direct_bytes = 0;
  IndexFormat format = IndexFormat::automatic;  ///< Results are the same for all.
  Staging staging = Staging::automatic;
  /// The share of a rank's blocks that the model takes not to be zero where the result is packed and the
  /// request has no expected_density. Equal on all members.
  double packed_density = 0.01;
  /// Where one GPU's memory is lent to the NIC, messages and direct results go there without the host. Not
  /// equal on all members, but of those with GPUs each needs it for itself. Off, because it has not been seen
  /// on hardware.
  bool gpu_direct = false;
  int ack_timeout = 0;  ///< ibverbs: 4.096 us * 2^n until a packet is sent again; 0 = from timeout_s.
  /// A hierarchy takes so many ranks in a row for one host, such as those of one socket. 0 = the ranks that
  /// do share a host. Equal on all members.
  int host_ranks = 0;
};

/// The settings of a communicator. Defaults are overridden by code or a file, and these by NZCL_* environment
/// variables. A bad value throws Error{invalid_argument}. An unknown NZCL_* variable leads to a warning in
/// the log.
struct Options {
  // Which processes take part. -1 and "" mean that the launcher's environment is asked.
  int rank = -1;        ///< This worker's rank.
  int world_size = -1;  ///< Number of workers.
  Bootstrap bootstrap = Bootstrap::automatic;
  std::string master_addr;          ///< socket: host of rank 0.
  int master_port = 0;              ///< socket: TCP port of rank 0.
  std::string secret;               ///< socket: 16 bytes or more; without it only loopback addresses work.
  std::string rendezvous_file;      ///< file: path of a file that all ranks can write.
  std::string session = "default";  ///< Tells apart communicators that meet at the same place.

  // How bytes travel.
  /// auto | cma | shm | tcp | ibverbs | any libfabric provider by name, of which shm is called libfabric-shm;
  /// or a pair, "cma,ibverbs": the first one within each host (cma | shm | auto), the second one between
  /// hosts.
  std::string transport = "auto";
  std::string interface;  ///< tcp: network interface or address; ibverbs: device, port too; "" = any.
  Connect connect = Connect::bootstrap;  ///< ibverbs.
  bool on_demand_paging = false;         ///< ibverbs: buffers are not pinned.
  int gid_index = -1;     ///< ibverbs: entry of the GID table; -1 = RoCEv2 with an IPv4 address first.
  int traffic_class = 0;  ///< ibverbs: traffic class of the packets (on RoCE: DSCP * 4).
  int service_level = 0;  ///< ibverbs: service level of the packets.
  int aggregators = 0;    ///< Dedicated aggregator processes; 0 = colocated in every worker.
  AggregatorLoss on_aggregator_loss = AggregatorLoss::fail;  ///< Equal on all members.
  int lanes = 0;  ///< Engine threads (each with its own endpoint) per process; 0 = planned.
  Pinning pin = Pinning::automatic;
  /// NUMA node of the gradients (numa_node_of() finds it). Slots and device are chosen near it, and threads
  /// too where this process may run there. -1 = the node of the process's cores.
  int numa_node = -1;
  /// The type in which float32 values travel, unless a call says otherwise; not by_option. Tensors for which
  /// a call may not ask for it travel as they are.
  WireType wire_type = WireType::as_is;
  /// How operations are exchanged, unless a call says otherwise. With doubling, merging or hierarchy,
  /// operations that do not fit it are pushed. With switch_, all go through slot pools over datagrams, at
  /// dedicated aggregators. automatic: whichever a model of the costs expects to be fastest for the
  /// operation, among those that sum_order permits. Equal on all members.
  Algorithm algorithm = Algorithm::automatic;
  /// Speed of this member's network link, one way, in Gb/s: what the model takes it for. The least of all
  /// members' counts. 0 = what its device says; if no member knows any speed, 10.
  double link_gbps = 0;
  SumOrder sum_order = SumOrder::rank;  ///< Equal on all members.

  Tuning tune;

  // Timeouts, logging and tracing.
  double timeout_s = 30;                ///< An operation that makes no progress for this long fails.
  double bootstrap_timeout_s = 60;      ///< Time for all ranks to meet.
  double close_timeout_s = 10;          ///< Time for all ranks to leave.
  LogLevel log_level = LogLevel::warn;  ///< off: nothing is logged.
  int check = 0;  ///< 1: look for misuse of buffers, at the cost of two more passes over every input.
  /// 1: every message that this member sends carries a CRC32C of all its bytes, and its receiver fails the
  /// communicator if they differ. Members may have different values.
  int checksum = 0;
  std::string trace;  ///< A file for a timeline of what every thread did (Trace Event Format); "" = none.
};

/// The NUMA node that the first pages of this memory lie on, for Options::numa_node. -1: they lie on several
/// nodes, were not touched yet, or the machine has one node only. May be called from any thread.
[[nodiscard]] NZCL_API int numa_node_of(const void* data, std::size_t bytes);

/// `base`, or the defaults, overridden by the file that NZCL_CONFIG names (if set), then by NZCL_* variables.
[[nodiscard]] NZCL_API Options options_from_environment(Options base);
[[nodiscard]] NZCL_API Options options_from_environment();

}  // namespace nzcl
