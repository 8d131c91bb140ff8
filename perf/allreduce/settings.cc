#include "perf/allreduce/settings.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "nzcl/compress.h"
#include "nzcl/error.h"

namespace perf::allreduce {
namespace {

template <typename Enum>
std::vector<std::pair<std::string, Enum>> names(int count) {
  std::vector<std::pair<std::string, Enum>> all;
  for (int i = 0; i < count; ++i) all.emplace_back(nzcl::name_of(static_cast<Enum>(i)), static_cast<Enum>(i));
  return all;
}

/// What else a value is called.
std::string_view other_name_of(nzcl::DataType type) { return nccl_name_of(type); }
std::string_view other_name_of(nzcl::ReduceOp op) { return nzcl::name_of(op); }

/// "all", or a list of names.
template <typename Enum>
std::vector<Enum> choose(const std::vector<std::string>& wanted, int count, const char* option) {
  std::vector<Enum> chosen;
  for (const std::string& name : wanted) {
    bool found = false;
    for (const auto& [text, value] : names<Enum>(count)) {
      const bool meant = name == text || name == other_name_of(value) || name == "all";
      if (meant) chosen.push_back(value), found = true;
    }
    if (!found) {
      std::string known = "all";
      for (const auto& [text, value] : names<Enum>(count)) known += ", " + text;
      throw CLI::ValidationError(option, name + " is none of: " + known);
    }
  }
  return chosen;
}

}  // namespace

std::string_view nccl_name_of(nzcl::DataType type) {
  switch (type) {
    case nzcl::DataType::float32:
      return "float";
    case nzcl::DataType::float64:
      return "double";
    case nzcl::DataType::float16:
      return "half";
    case nzcl::DataType::bfloat16:
    case nzcl::DataType::int32:
    case nzcl::DataType::int64:
    case nzcl::DataType::uint8:
      return nzcl::name_of(type);
  }
  return "?";
}

const char* name_of(Overlap overlap) {
  switch (overlap) {
    case Overlap::random:
      return "random";
    case Overlap::all:
      return "all";
    case Overlap::none:
      return "none";
  }
  return "?";
}

const char* name_of(Memory memory) {
  switch (memory) {
    case Memory::host:
      return "host";
    case Memory::cuda:
      return "cuda";
    case Memory::emulated:
      return "emulated";
    case Memory::cuda_copied:
      return "cuda-copied";
    case Memory::emulated_copied:
      return "emulated-copied";
  }
  return "?";
}

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::allreduce:
      return "allreduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::reduce:
      return "reduce";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::allgather:
      return "allgather";
  }
  return "?";
}

std::vector<std::uint64_t> Settings::sizes() const {
  std::vector<std::uint64_t> all;
  for (std::uint64_t s = min_bytes; s <= max_bytes; s = step_bytes > 0 ? s + step_bytes : s * step_factor) {
    all.push_back(s);
    // Nothing comes of zero, and a step must not go beyond 64 bits.
    if (step_bytes > 0 ? step_bytes > max_bytes - s : s == 0 || s > max_bytes / step_factor) break;
  }
  return all;
}

const char* Settings::input() const {
  if (!compress.empty()) return "compress";
  if (stream_input) return "stream";
  if (dense) return "dense";
  return bitmap ? "bitmap" : "scan";
}

namespace {

/// What the command line says as text, until it has been understood.
struct Texts {
  std::vector<std::string> types{"float32"}, ops{"sum"};
  std::string aggregators = "colocated", overlap = "random", collective = "allreduce", input = "dense",
              output = "dense", memory = "host", index_type = "int32", wire_type, format, algorithm;
  int check = 1;
  bool ignored = false;
  int blocking = 0;
  std::string single;
};

/// A flag of nccl-tests that says something about GPUs, or that nzcl has one way of doing: only that value
/// is taken.
struct SingleValued {
  const char* flag;
  const char* value;
  const char* why;
};
constexpr SingleValued kSingleValued[] = {
    {"-g,--ngpus", "1", "a process is one rank: start more ranks by --ranks, mpirun or srun"},
    {"-t,--nthreads", "1", "a process is one rank: start more ranks by --ranks, mpirun or srun"},
    {"-r,--root", "0", "the root of broadcasts and reduces is rank 0"},
    {"-m,--agg_iters", "1", "operations are timed one by one"},
    {"-G,--cudagraph", "0", "operations are started one by one, not by CUDA graphs"},
    {"-C,--report_cputime", "0", "the JSON file has the processor time, as cpu_s_per_gib"},
    {"-a,--average", "3", "the time is that of the slowest rank"},
};

/// The sizes of the tensor.
void add_sizes(CLI::App& app, Settings& s) {
  app.add_option("-b,--minbytes", s.min_bytes, "Smallest size")->transform(CLI::AsSizeValue(false));
  app.add_option("-e,--maxbytes", s.max_bytes, "Largest size; default: as the smallest")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("-f,--stepfactor", s.step_factor, "From one size to the next")->check(CLI::Range(2, 1024));
  app.add_option("-i,--stepbytes", s.step_bytes, "The same by a sum; 0: by the factor")
      ->transform(CLI::AsSizeValue(false));
}

/// What is timed, how often, and whether it is checked.
void add_timing(CLI::App& app, Settings& s, Texts& t) {
  app.add_option("-n,--iters", s.iterations, "Timed operations per row")->check(CLI::Range(1, 1 << 20));
  app.add_option("-w,--warmup_iters", s.warm_up, "Operations before them")->check(CLI::Range(0, 1 << 20));
  app.add_option("-d,--datatype", t.types,
                 "float32 (float), float64 (double), float16 (half), bfloat16, int32, int64, uint8, or all")
      ->delimiter(',');
  app.add_option("-o,--op", t.ops, "sum, avg, min, max, or all")->delimiter(',');
  app.add_option("-c,--check", t.check, "1: check every element of the first timed operation; 0: do not")
      ->check(CLI::Range(0, 1));
}

/// What command lines of nccl-tests may contain, too.
void add_single_valued(CLI::App& app, Texts& t) {
  for (const SingleValued& s : kSingleValued) {
    app.add_option(s.flag, t.single, std::string("Of nccl-tests; only ") + s.value + ", because " + s.why)
        ->check([&s](const std::string& value) {
          return value == s.value ? std::string() : value + " cannot be: " + s.why;
        })
        ->default_str(s.value);
  }
  app.add_option("-z,--blocking", t.blocking,
                 "Of nccl-tests; 0 and 1 are the same, because each operation is waited for")
      ->check(CLI::Range(0, 1));
  app.add_option("-p,--parallel_init", t.blocking,
                 "Of nccl-tests; 0 and 1 are the same, because a process has one rank to start")
      ->check(CLI::Range(0, 1));
}

/// What the ranks hold.
void add_data(CLI::App& app, Settings& s, Texts& t) {
  app.add_option("--density", s.densities, "Shares of non-zero blocks, such as 1,0.1,0.01")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0));
  app.add_option(
         "--collective", t.collective,
         "What is timed; the size is that of the whole tensor, of which each rank has or gets a chunk")
      ->check(CLI::IsMember({"allreduce", "broadcast", "reduce", "reduce_scatter", "allgather"}));
  app.add_option("--overlap", t.overlap, "Whether ranks' non-zero blocks coincide")
      ->check(CLI::IsMember({"random", "all", "none"}));
  app.add_option("--block", s.block, "Elements per block")->check(CLI::PositiveNumber);
}

/// Who takes part.
void add_ranks(CLI::App& app, Settings& s, Texts& t) {
  app.add_option("--ranks", s.ranks,
                 "Start so many ranks on this machine; 0: use the launcher's (mpirun, srun, torchrun)")
      ->check(CLI::Range(0, 256))
      ->take_last();
  app.add_option("--aggregators", t.aggregators, "colocated, or a number of dedicated ones");
  app.add_option("--serve", s.serve)->group("");
  app.add_option(
      "--transport", s.transport,
      "shm, tcp, ibverbs, a libfabric provider, or a pair such as cma,tcp; default: nzcl's settings");
}

/// In which form nzcl is given the input, and gives the output.
void add_forms(CLI::App& app, Settings& s, Texts& t) {
  app.add_flag("--bitmap", s.bitmap, "Tell nzcl which blocks are non-zero: no scan");
  app.add_flag("--dense", s.dense, "Sparsity off: every block is sent");
  app.add_flag("--hint", s.hint, "Tell nzcl the density, by which it may choose another algorithm");
  app.add_option("--input", t.input,
                 "dense: the whole tensor; stream: the values of the non-zero blocks, and their indices")
      ->check(CLI::IsMember({"dense", "stream"}));
  app.add_option("--output", t.output,
                 "dense: the whole tensor; packed: the blocks of the union, and their indices")
      ->check(CLI::IsMember({"dense", "packed"}));
  app.add_option(
         "--memory", t.memory,
         "host; cuda: of GPUs, rank by rank; emulated: of a GPU in software, which is late on purpose; "
         "cuda-copied, emulated-copied: of a GPU, copied whole to pinned host memory and back by the caller")
      ->check(CLI::IsMember({"host", "cuda", "emulated", "cuda-copied", "emulated-copied"}));
  app.add_option("--compress", s.compress,
                 "Compress dense gradients: adacomp:500, topk:0.01, qsgd:4 and others (nzcl/compress.h)");
  app.add_option("--index", t.index_type, "Type of the indices of a stream")
      ->check(CLI::IsMember({"int32", "uint32", "int64"}));
}

/// The values of --format and --algorithm, in the order of the enumerations.
const std::vector<std::string> kFormats{"auto", "bitmap", "offsets", "gaps", "runs", "rice"};
std::vector<std::string> algorithms() {
  std::vector<std::string> all;
  for (int i = 0; i < nzcl::kRequestAlgorithms; ++i)
    all.emplace_back(nzcl::name_of(static_cast<nzcl::Algorithm>(i)));
  return all;
}

/// The value with this name, or none for an empty one. Precondition: it has been checked.
template <typename Enum>
std::optional<Enum> value_of(const std::vector<std::string>& names, const std::string& name) {
  if (name.empty()) return std::nullopt;
  return static_cast<Enum>(std::find(names.begin(), names.end(), name) - names.begin());
}

/// How contributions and results travel.
void add_travel(CLI::App& app, Texts& t) {
  app.add_option("--format", t.format, "How single elements are coded; default: nzcl's settings")
      ->check(CLI::IsMember(kFormats));
  app.add_option("--wire_type", t.wire_type,
                 "The type in which float32 values travel; default: nzcl's settings")
      ->check(CLI::IsMember({"", "as_is", "float16", "bfloat16"}));
  app.add_option("--algorithm", t.algorithm,
                 "How allreduces are exchanged; with doubling, merging or hierarchy, what cannot be "
                 "fails; switch has a dedicated aggregator at least; default: nzcl's settings")
      ->check(CLI::IsMember(algorithms()));
  app.add_flag("--reproducible", t.ignored,
               "Accepted and ignored: every run gives the same bits on all ranks, by merging those of its "
               "own order");
}

/// What the times are compared with, and where they are written.
void add_report(CLI::App& app, Settings& s) {
  app.add_option("--link", s.link_gbits,
                 "Gb/s of every host's link, each way: the bound is then the wire's; 0: memory's")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--host_ranks", s.host_ranks,
                 "With --link: so many ranks in a row share a host and its link")
      ->needs("--link")
      ->check(CLI::PositiveNumber);
  app.add_option("--out_json_file", s.json_file, "Write the rows to this file, as JSON");
}

int number_of_aggregators(const std::string& aggregators) {
  if (aggregators.empty() || aggregators.find_first_not_of("0123456789") != aggregators.npos)
    throw CLI::ValidationError("--aggregators", aggregators + " is neither colocated nor a number");
  return std::stoi(aggregators);
}

/// Turns texts into settings.
void understand(const CLI::App& app, const Texts& t, Settings& s) {
  s.types = choose<nzcl::DataType>(t.types, nzcl::kDataTypes, "-d");
  s.ops = choose<nzcl::ReduceOp>(t.ops, nzcl::kReduceOps, "-o");
  for (const Overlap o : {Overlap::random, Overlap::all, Overlap::none})
    if (t.overlap == name_of(o)) s.overlap = o;
  for (const Collective c : {Collective::allreduce, Collective::broadcast, Collective::reduce,
                             Collective::reduce_scatter, Collective::allgather})
    if (t.collective == name_of(c)) s.collective = c;
  if (t.aggregators != "colocated") s.aggregators = number_of_aggregators(t.aggregators);
  s.format = value_of<nzcl::IndexFormat>(kFormats, t.format);
  s.algorithm = value_of<nzcl::Algorithm>(algorithms(), t.algorithm);
  if (s.algorithm == nzcl::Algorithm::switch_) s.aggregators = std::max(s.aggregators, 1);
  s.index_type = t.index_type == "int32"    ? nzcl::IndexType::int32
                 : t.index_type == "uint32" ? nzcl::IndexType::uint32
                                            : nzcl::IndexType::int64;
  s.wire_type = t.wire_type.empty()         ? nzcl::WireType::by_option
                : t.wire_type == "float16"  ? nzcl::WireType::float16
                : t.wire_type == "bfloat16" ? nzcl::WireType::bfloat16
                                            : nzcl::WireType::as_is;
  for (const Memory m :
       {Memory::host, Memory::cuda, Memory::emulated, Memory::cuda_copied, Memory::emulated_copied})
    if (t.memory == name_of(m)) s.memory = m;
  s.stream_input = t.input == "stream";
  s.packed_output = t.output == "packed";
  if (app.count("-e") == 0) s.max_bytes = s.min_bytes;
  if (s.max_bytes < s.min_bytes) throw CLI::ValidationError("-e", "less than -b");
  s.check = t.check != 0;
}

void check_compression(const CLI::App& app, const Settings& s) {
  if (s.bitmap || s.dense || s.stream_input)
    throw CLI::ValidationError("--compress", "excludes --bitmap, --dense and --input stream");
  if (app.count("-d") > 0 && s.types != std::vector{nzcl::DataType::float32})
    throw CLI::ValidationError("--compress", "takes float32 only");
  for (const nzcl::ReduceOp op : s.ops) {
    if (op != nzcl::ReduceOp::sum && op != nzcl::ReduceOp::avg)
      throw CLI::ValidationError("--compress", "takes -o sum and avg only");
  }
  try {
    (void)nzcl::compressor_from_text(s.compress);
  } catch (const nzcl::Error& error) {
    throw CLI::ValidationError("--compress", error.what());
  }
}

/// Refuses settings that exclude each other.
void check_together(const CLI::App& app, const Texts& t, const Settings& s) {
  if (s.stream_input && (s.bitmap || s.dense))
    throw CLI::ValidationError("--input", "stream excludes --bitmap and --dense");
  if (s.packed_output && !s.stream_input)
    throw CLI::ValidationError("--output", "packed needs --input stream");
  if (!s.compress.empty()) check_compression(app, s);
  if (s.hint && (s.collective != Collective::allreduce || !s.compress.empty()))
    throw CLI::ValidationError("--hint", "is for allreduces that are not compressed");
  if (s.collective != Collective::allreduce &&
      (s.stream_input || s.bitmap || !t.wire_type.empty() || !s.compress.empty()))
    throw CLI::ValidationError(
        "--collective", t.collective + " excludes --bitmap, --input stream, --wire_type and --compress");
  if (s.memory != Memory::host && (s.stream_input || !s.compress.empty()))
    throw CLI::ValidationError("--memory", t.memory + " is for whole tensors");
  if (s.bitmap && s.dense) throw CLI::ValidationError("--dense", "excludes --bitmap");
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
  Settings s;
  Texts t;
  CLI::App app(
      "Times nzcl's allreduce and other collectives, with nccl-tests' habits: every size out of place and in "
      "place, checked against a plain sum.\nThe time is the slowest rank's, per operation; the table shows "
      "the median.",
      "nzcl_allreduce_perf");
  app.option_defaults()->always_capture_default();
  add_sizes(app, s);
  add_timing(app, s, t);
  add_single_valued(app, t);
  add_data(app, s, t);
  add_ranks(app, s, t);
  add_forms(app, s, t);
  add_travel(app, t);
  add_report(app, s);
  try {
    app.parse(argc, argv);
    understand(app, t, s);
    check_together(app, t, s);
  } catch (const CLI::ParseError& error) {
    return {s, app.exit(error) == 0 ? 0 : 2};
  }
  return {s, std::nullopt};
}

}  // namespace perf::allreduce
