// Every setting of a communicator, with its default. Fields are listed once more, with range and meaning, in
// the option table (runtime/options/table.cc), which generates `nzcl_info --options` and the table in
// README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "nzcl/export.h"

namespace nzcl {

/// Defaults, then code or a file, then NZCL_* environment variables. A bad value throws
/// Error{invalid_argument}; an unknown NZCL_* variable is a warning in the log.
struct Options {
  // Who takes part. -1 and "" mean: ask the launcher's environment.
  int rank = -1;                   ///< This worker's rank.
  int world_size = -1;             ///< Number of workers.
  std::string bootstrap = "auto";  ///< auto | socket | file | pmix
  std::string master_addr;         ///< socket: host of rank 0.
  int master_port = 0;             ///< socket: TCP port of rank 0.
  std::string secret;  ///< socket: the job's secret; without one only loopback addresses are accepted.
  std::string rendezvous_file;      ///< file: path of a file that all ranks can write.
  std::string session = "default";  ///< Tells apart communicators that meet at the same place.

  // How bytes move.
  std::string transport = "auto";  ///< auto | cma | shm | tcp | ibverbs | any libfabric provider by name
  std::string interface;  ///< tcp: network interface or address; ibverbs: device, port too; "" = any.
  std::string connect = "bootstrap";     ///< ibverbs: bootstrap | rdma_cm: who connects the queue pairs.
  std::string on_demand_paging = "off";  ///< ibverbs: on | off: buffers are not pinned; devices that can.
  int gid_index = -1;        ///< ibverbs: entry of the GID table; -1 = RoCEv2 with an IPv4 address first.
  int traffic_class = 0;     ///< ibverbs: of the packets (RoCE: DSCP * 4).
  int service_level = 0;     ///< ibverbs: of the packets.
  int ack_timeout = 0;       ///< ibverbs: 4.096 us * 2^n until a packet is sent again; 0 = from timeout_s.
  int aggregators = 0;       ///< Dedicated aggregator processes; 0 = colocated in every worker.
  int lanes = 0;             ///< Engine threads (each with its own endpoint) per process; 0 = planned.
  int scan_threads = -1;     ///< Additional threads that scan for non-zero blocks; -1 = planned.
  int scan_streams = 0;      ///< Parts of a slice that a scan reads in turn; 0 = the fastest, measured.
  std::string pin = "auto";  ///< auto | on | off: pin engine threads to the planned cores.
  int numa_node = -1;  ///< Of the gradients (numa_node_of): slots, device and, as far as this process may
                       ///< run there, threads are taken near it; -1 = that of the process's cores.
  std::uint64_t slot_bytes = 0;    ///< Largest message, and the size of one slot of a channel; 0 = 132 KiB,
                                   ///< or over several networks (hosts) with dedicated aggregators 68 KiB.
  int channel_slots = 0;           ///< Slots per channel: the credits a sender has; 0 = 8, or over several
                                   ///< networks (hosts), in 128 MiB per lane, up to 32, with dedicated
                                   ///< aggregators 16.
  int max_segments = 0;            ///< Entries of a gather list; 0 = as many as the transport grants.
  std::uint64_t slice_bytes = 0;   ///< Dense bytes per slice; 0 = chosen from the tensor's size.
  std::uint64_t gather_bytes = 0;  ///< Runs of at least this size are sent from the user's buffer, shorter
                                   ///< ones are packed; 0 = from what entries and copies cost.
  std::uint64_t direct_bytes = 0;  ///< Results whose runs average at least this are written in place; 0 =
                                   ///< from what writes and copies cost.

  // Limits and words.
  double timeout_s = 30;            ///< An operation that makes no progress for this long fails.
  double bootstrap_timeout_s = 60;  ///< Time for all ranks to meet.
  double close_timeout_s = 10;      ///< Time for all ranks to leave.
  std::string log_level = "warn";   ///< trace | debug | info | warn | error | off
  std::string trace;  ///< A file for a timeline of what every thread did (Trace Event Format); "" = none.
};

/// The NUMA node that memory lies on, for Options::numa_node, by its first pages. -1: several, not touched
/// yet, or a machine with one node. Any thread.
NZCL_API int numa_node_of(const void* data, std::size_t bytes);

/// `base`, overridden by the file that NZCL_CONFIG names (if set), then by NZCL_* variables.
NZCL_API Options options_from_environment(Options base = {});

}  // namespace nzcl
