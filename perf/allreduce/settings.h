// Command line of nzcl_allreduce_perf. Flags that nccl-tests has mean what they mean there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nzcl/options.h"
#include "nzcl/types.h"

namespace perf::allreduce {

enum class Overlap { random, all, none };
/// Of a GPU, `copied`: the operation is one of host memory, and copies before and behind it are timed too, as
/// in programs whose library takes no memory of a GPU.
enum class Memory { host, cuda, emulated, cuda_copied, emulated_copied };
enum class Collective { allreduce, broadcast, reduce, reduce_scatter, allgather };

struct Settings {
  Collective collective = Collective::allreduce;
  std::uint64_t min_bytes = 32 << 20, max_bytes = 32 << 20;
  std::uint64_t step_factor = 2;     // -f
  std::uint64_t step_bytes = 0;      // -i; above 0 it replaces the factor
  int iterations = 20, warm_up = 5;  // -n, -w
  std::vector<nzcl::DataType> types{nzcl::DataType::float32};
  std::vector<nzcl::ReduceOp> ops{nzcl::ReduceOp::sum};
  bool check = true;
  std::vector<double> densities{1.0};
  Overlap overlap = Overlap::random;
  std::uint64_t block = 256;
  int ranks = 0;                 // to start on this machine; 0: this process is a rank
  int aggregators = 0;           // number of dedicated aggregators; 0: colocated
  int serve = -1;                // 0 or more: this process is that aggregator, started by --ranks
  bool bitmap = false;           // the caller knows which blocks are non-zero
  bool dense = false;            // every block is sent
  bool hint = false;             // nzcl is told the density
  bool stream_input = false;     // values and the indices of their blocks, instead of the whole tensor
  bool packed_output = false;    // the union's blocks and their indices, instead of the whole tensor
  Memory memory = Memory::host;  // that input and output are in
  std::string compress;          // the compressor as text; empty: none
  nzcl::IndexType index_type = nzcl::IndexType::int32;  // of streams
  std::optional<nzcl::IndexFormat> format;              // none: the environment's
  nzcl::WireType wire_type = nzcl::WireType::by_option;
  std::optional<nzcl::Algorithm> algorithm;  // none: the environment's
  std::string transport;
  double link_gbits = 0;  // of every host's link, each way; 0: the limit is the memory of one host
  int host_ranks = 1;     // ranks that share a host and its link, if there are links
  std::string json_file;

  /// Whether there is no in-place form: a stream is no tensor, and a compressed gradient is read before.
  bool one_form() const { return stream_input || !compress.empty() || collective == Collective::broadcast; }
  std::vector<std::uint64_t> sizes() const;
  /// With doubling, merging and hierarchy, what does not fit is refused and not pushed.
  nzcl::Algorithm request_algorithm() const {
    const bool strict = algorithm == nzcl::Algorithm::doubling || algorithm == nzcl::Algorithm::merging ||
                        algorithm == nzcl::Algorithm::hierarchy;
    return strict ? *algorithm : nzcl::Algorithm::automatic;
  }
  /// The names that the table and the JSON use.
  const char* input() const;
  const char* output() const { return packed_output ? "packed" : "dense"; }
};

struct CommandLine {
  Settings settings;
  std::optional<int> exit_status;
};
CommandLine parse_command_line(int argc, char** argv);

/// The names of nccl-tests: "float", "half" and "double"; of other types nzcl's own, which are the same.
std::string_view nccl_name_of(nzcl::DataType type);
const char* name_of(Overlap overlap);
const char* name_of(Memory memory);
inline bool is_emulated(Memory m) { return m == Memory::emulated || m == Memory::emulated_copied; }
inline bool is_copied(Memory m) { return m == Memory::cuda_copied || m == Memory::emulated_copied; }
const char* name_of(Collective collective);

}  // namespace perf::allreduce
