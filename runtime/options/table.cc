#include "runtime/options/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>

#include "nzcl/error.h"
#include "verbs/mixed/pair.h"

namespace nzcl {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The smallest slot has room for a header, an operation record and a bitmap of some thousand blocks. The
// largest is far beyond the size from which larger messages make any transport faster.
constexpr double kLeastSlot = 4 << 10, kMostSlot = 16 << 20;

// Whoever records a handshake can afterwards try any number of guesses at the secret, so it has to be long.
constexpr std::size_t kLeastSecret = 16;

template <auto kMember>
constexpr Choice choice_in(int first = 0) {
  using T = std::remove_cvref_t<decltype(value_in(std::declval<Options&>(), kMember))>;
  return {.get = [](const Options& options) { return static_cast<int>(value_in(options, kMember)); },
          .put = [](Options& options, int value) { value_in(options, kMember) = static_cast<T>(value); },
          .first = first};
}

constexpr std::array kSettings = {
    Setting{"rank", &Options::rank, SettingKind::number, -1, 4094, "",
            "This worker's rank; -1: from the launcher"},
    Setting{"world_size", &Options::world_size, SettingKind::number, -1, 4095, "",
            "Number of workers; -1: from the launcher"},
    Setting{"bootstrap", choice_in<&Options::bootstrap>(), SettingKind::choice, 0, 0, "auto|socket|file|pmix",
            "How ranks meet; auto: as the launcher offers it"},
    Setting{"master_addr", &Options::master_addr, SettingKind::text, 0, kInfinity, "",
            "socket: host of rank 0; empty: MASTER_ADDR"},
    Setting{"master_port", &Options::master_port, SettingKind::number, 0, 65535, "",
            "socket: TCP port of rank 0; 0: MASTER_PORT"},
    Setting{"secret", &Options::secret, SettingKind::secret, 0, kInfinity, "",
            "socket: the job's secret; without one only loopback addresses are accepted"},
    Setting{"rendezvous_file", &Options::rendezvous_file, SettingKind::text, 0, kInfinity, "",
            "file: a path that all ranks can read and rank 0 can write"},
    Setting{"session", &Options::session, SettingKind::text, 0, kInfinity, "",
            "Distinguishes communicators that meet at the same meeting point at the same time"},
    Setting{"transport", &Options::transport, SettingKind::transport, 0, kInfinity, "",
            "auto, cma, shm, tcp, ibverbs, or a libfabric provider by name, whose shm is libfabric-shm; or a "
            "pair such as cma,ibverbs: within each host (cma, shm or auto), and between hosts; auto: cma "
            "within hosts (or shm, where that is forbidden), and tcp between them"},
    Setting{"interface", &Options::interface, SettingKind::text, 0, kInfinity, "",
            "tcp: network interface or address; ibverbs: these, or device:port; empty: any"},
    Setting{"connect", choice_in<&Options::connect>(), SettingKind::choice, 0, 0, "bootstrap|rdma_cm",
            "ibverbs: how queue pairs are connected: through the ranks' own meeting, or through rdma_cm"},
    Setting{"on_demand_paging", choice_in<&Options::on_demand_paging>(), SettingKind::choice, 0, 0, "off|on",
            "ibverbs: register buffers without pinning them; only for devices that support it"},
    Setting{"gid_index", &Options::gid_index, SettingKind::number, -1, 255, "",
            "ibverbs: entry of the GID table; -1: RoCEv2 with an IPv4 address first"},
    Setting{"traffic_class", &Options::traffic_class, SettingKind::number, 0, 255, "",
            "ibverbs: traffic class of the packets (on RoCE: DSCP times 4)"},
    Setting{"service_level", &Options::service_level, SettingKind::number, 0, 15, "",
            "ibverbs: service level of the packets"},
    Setting{"aggregators", &Options::aggregators, SettingKind::number, 0, 1024, "",
            "Dedicated aggregator processes; 0: colocated in every worker"},
    Setting{"on_aggregator_loss", choice_in<&Options::on_aggregator_loss>(), SettingKind::choice, 0, 0,
            "fail|reassign|preserve",
            "When a dedicated aggregator is lost, the communicator fails, or the ranks go on without it and "
            "begin "
            "operations in flight again; preserve: also those in place, which keep a copy of their inputs"},
    Setting{"lanes", &Options::lanes, SettingKind::number, 0, 16, "",
            "Engine threads per process, each with its own endpoint; 0: from the cores"},
    Setting{"pin", choice_in<&Options::pin>(), SettingKind::choice, 0, 0, "auto|on|off",
            "Pin engine threads to cores; auto: if there is a core for each"},
    Setting{
        "numa_node", &Options::numa_node, SettingKind::number, -1, 1023, "",
        "NUMA node of the gradients: slots, device and threads are chosen near it; -1: that of the cores"},
    Setting{"wire_type", choice_in<&Options::wire_type>(1), SettingKind::choice, 0, 0,
            "as_is|float16|bfloat16",
            "The type in which float32 values travel, unless a call says otherwise; sums are computed in "
            "float32"},
    Setting{
        "algorithm", choice_in<&Options::algorithm>(), SettingKind::choice, 0, 0,
        "auto|push|doubling|switch|merging|hierarchy",
        "How operations are exchanged, unless a call says otherwise; doubling: those that are small enough; "
        "merging: those of small blocks; hierarchy: first within each host and "
        "then between hosts; these three without dedicated aggregators; switch: all, through slot pools over "
        "datagrams, at dedicated aggregators"},
    Setting{"link_gbps", &Options::link_gbps, SettingKind::number, 0.001, 1e6, "",
            "Gb/s of this member's network link, one way, by which an exchange is chosen; the least of all "
            "members' counts; 0: what its device says, or 10 if none says it",
            true},
    Setting{
        "sum_order", choice_in<&Options::sum_order>(), SettingKind::choice, 0, 0, "rank|any",
        "Where no algorithm is asked for, values are added in the order of the ranks, or in any order that "
        "is the same in every run"},
    Setting{"timeout_s", &Options::timeout_s, SettingKind::seconds, 0.001, 86400, "",
            "An operation without progress for this long fails"},
    Setting{"bootstrap_timeout_s", &Options::bootstrap_timeout_s, SettingKind::seconds, 0.001, 86400, "",
            "Time for all ranks to meet"},
    Setting{"close_timeout_s", &Options::close_timeout_s, SettingKind::seconds, 0.001, 86400, "",
            "Time for all ranks to leave"},
    Setting{"log_level", choice_in<&Options::log_level>(), SettingKind::choice, 0, 0,
            "trace|debug|info|warn|error|off",
            "How much goes to standard error, or to the program's own callback"},
    Setting{"check", &Options::check, SettingKind::number, 0, 1, "",
            "1: look for bitmaps that hide blocks and for inputs that change while an operation reads them; "
            "costs two more passes over every input"},
    Setting{"checksum", &Options::checksum, SettingKind::number, 0, 1, "",
            "1: messages carry a CRC32C of their bitmaps, indices and values, which their receivers compare; "
            "results travel in messages then, and are not written in place"},
    Setting{"trace", &Options::trace, SettingKind::text, 0, kInfinity, "",
            "A file for a timeline of what every thread did, for Perfetto; empty: none"},
};

constexpr std::array kTunings = {
    Setting{"scan_threads", &Tuning::scan_threads, SettingKind::number, -1, 64, "",
            "Threads that look for non-zero blocks beside the lanes; -1: from the cores"},
    Setting{"slot_bytes", &Tuning::slot_bytes, SettingKind::bytes, kLeastSlot, kMostSlot, "",
            "Largest message, and size of a channel's slots; 0: 272K, or with many members, or over several "
            "networks (hosts), 136K, and there with dedicated aggregators 68K; less with hundreds of ranks",
            true},
    Setting{"channel_slots", &Tuning::channel_slots, SettingKind::number, 0, 1024, "",
            "Slots per channel: the credits of its sender; 0: 8, or over several networks (hosts) up to 32, "
            "with dedicated aggregators 16; down to 2 with more than 64 ranks"},
    Setting{"max_segments", &Tuning::max_segments, SettingKind::number, 0, 16, "",
            "Entries of a gather list; 0: as many as the transport grants"},
    Setting{"slice_bytes", &Tuning::slice_bytes, SettingKind::bytes, 0, 1ull << 40, "",
            "Dense bytes per slice; 0: from the tensor's size"},
    Setting{"gather_bytes", &Tuning::gather_bytes, SettingKind::bytes, 0, 1ull << 40, "",
            "Runs from this size up leave from the user's buffer, shorter ones are copied; 0: from "
            "what entries and copies cost"},
    Setting{"direct_bytes", &Tuning::direct_bytes, SettingKind::bytes, 0, 1ull << 40, "",
            "Results with runs from this size up on average are written in place; 0: from what writes and "
            "copies cost"},
    Setting{"format", choice_in<&Tuning::format>(), SettingKind::choice, 0, 0,
            "auto|bitmap|offsets|gaps|runs|rice",
            "How this rank codes which elements or small blocks it sends; for tests and measurements"},
    Setting{
        "staging", choice_in<&Tuning::staging>(), SettingKind::choice, 0, 0, "auto|cached|streamed",
        "How messages that other ranks read in place are stored: in caches, past them, or as is measured"},
    Setting{
        "packed_density", &Tuning::packed_density, SettingKind::number, 1e-9, 1, "",
        "The share of blocks that are taken not to be zero on a rank, by which an exchange is chosen, where "
        "the result is packed and the call does not say it"},
    Setting{"gpu_direct", choice_in<&Tuning::gpu_direct>(), SettingKind::choice, 0, 0, "off|on",
            "ibverbs: the NIC reads and writes memory of this rank's GPU itself; it has not been seen on "
            "hardware"},
    Setting{"ack_timeout", &Tuning::ack_timeout, SettingKind::number, 0, 31, "",
            "ibverbs: a packet is sent again after 4.096 us times 2 to the power of this; 0: from timeout_s"},
    Setting{"host_ranks", &Tuning::host_ranks, SettingKind::number, 0, 4095, "",
            "A hierarchy takes so many ranks in a row for one host; 0: those that share one"},
};

std::string bytes_text(std::uint64_t bytes) {
  for (const auto& [unit, shift] : {std::pair{'G', 30}, {'M', 20}, {'K', 10}}) {
    if (bytes >> shift && bytes % (1ull << shift) == 0) return fmt::format("{}{}", bytes >> shift, unit);
  }
  return std::to_string(bytes);
}

std::string number_text(SettingKind kind, double value) {
  return kind == SettingKind::bytes ? bytes_text(static_cast<std::uint64_t>(value))
                                    : fmt::format("{:g}", value);
}

template <typename T>
std::optional<T> parse(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Reads sizes such as "131072", "128K", "128KiB" or "1M". K, M, G and T are powers of 1024.
std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  for (const std::string_view ending : {"iB", "B"}) {
    if (text.ends_with(ending)) {
      text.remove_suffix(ending.size());
      break;
    }
  }
  int shift = 0;
  if (!text.empty()) {
    switch (std::toupper(static_cast<unsigned char>(text.back()))) {
      case 'K':
        shift = 10;
        break;
      case 'M':
        shift = 20;
        break;
      case 'G':
        shift = 30;
        break;
      case 'T':
        shift = 40;
        break;
      default:
        break;
    }
  }
  if (shift) text.remove_suffix(1);
  const auto value = parse<std::uint64_t>(text);
  if (!value || *value > (~std::uint64_t{0} >> shift)) return std::nullopt;
  return *value << shift;
}

[[noreturn]] void reject_secret(std::size_t bytes, std::string_view origin) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("option secret ({}): a secret of {} bytes can be guessed, and at least {} are "
                          "needed: set NZCL_SECRET "
                          "on every rank to the line that nzcl_info --new-secret prints once",
                          origin, bytes, kLeastSecret));
}

/// Why this cannot be the name of a pair of transports, or nothing if it can, or is a single name.
std::optional<std::string> wrong_with_pair(std::string_view name) {
  const auto pair = verbs::TransportPair::of(name);
  if (!pair) return std::nullopt;
  const auto& [within, between] = *pair;
  if (between.find(',') != std::string::npos) return "a pair has two names";
  if (within != "auto" && !verbs::is_within_host(within))
    return fmt::format("\"{}\" is not a transport within a host, as cma, shm and auto are", within);
  if (between.empty()) return "the transport between hosts is missing";
  if (between == "auto" || between == "loopback" || verbs::is_within_host(between) ||
      between.find_first_of(" \t") != std::string::npos)
    return fmt::format("\"{}\" does not name a transport between hosts, as tcp, ibverbs or tcp;ofi_rxm do",
                       between);
  return std::nullopt;
}

void check_transport(std::string_view name, std::string_view origin) {
  const auto wrong = wrong_with_pair(name);
  if (!wrong) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("option transport ({}): \"{}\": {}; a pair names the transport within each host "
                          "and, behind a comma, that between hosts: NZCL_TRANSPORT=cma,tcp",
                          origin, name, *wrong));
}

/// Returns the number of a choice, counted from 0, or -1 if there is none of this name.
int number_of(std::string_view choices, std::string_view name) {
  for (int number = 0;; ++number) {
    const auto bar = choices.find('|');
    if (choices.substr(0, bar) == name) return number;
    if (bar == std::string_view::npos) return -1;
    choices.remove_prefix(bar + 1);
  }
}

/// Returns the name of a choice by its number, or "" if there is none.
std::string_view choice_name(std::string_view choices, int number) {
  for (; number > 0 && !choices.empty(); --number) {
    const auto bar = choices.find('|');
    choices.remove_prefix(bar == std::string_view::npos ? choices.size() : bar + 1);
  }
  return number < 0 ? "" : choices.substr(0, choices.find('|'));
}

[[noreturn]] void reject(const Setting& s, std::string_view shown, std::string_view origin) {
  const std::string range = s.range();
  throw Error(ErrorCode::invalid_argument,
              fmt::format("option {} ({}): \"{}\" is not {}{}{}", s.name, origin, shown, s.type(),
                          range.empty()                   ? ""
                          : s.kind == SettingKind::choice ? " of "
                                                          : " in ",
                          range));
}

}  // namespace

std::span<const Setting> settings() { return kSettings; }
std::span<const Setting> tunings() { return kTunings; }

const Setting* find_in(std::span<const Setting> settings, std::string_view name) {
  const auto found =
      std::find_if(settings.begin(), settings.end(), [&](const Setting& s) { return s.name == name; });
  return found == settings.end() ? nullptr : &*found;
}

std::string Setting::variable() const {
  std::string text = "NZCL_";
  for (const char c : name) text += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string Setting::type() const {
  switch (kind) {
    case SettingKind::number:
      return "a number";
    case SettingKind::bytes:
      return "a number of bytes";
    case SettingKind::seconds:
      return "seconds";
    case SettingKind::text:
      return "a text";
    case SettingKind::choice:
      return "one";
    case SettingKind::secret:
      return "a secret text";
    case SettingKind::transport:
      return "a transport or a pair of them";
  }
  return "?";
}

std::string Setting::range() const {
  if (kind == SettingKind::choice) return std::string(choices);
  if (kind == SettingKind::text || kind == SettingKind::transport) return "";
  if (kind == SettingKind::secret) return fmt::format("{} bytes or more", kLeastSecret);
  return fmt::format("{}{} .. {}", or_zero ? "0, " : "", number_text(kind, low), number_text(kind, high));
}

std::string Setting::text(const Options& options) const {
  const auto format = [&](const auto& member) -> std::string {
    const auto& value = value_in(options, member);
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<std::decay_t<decltype(member)>, Choice>) {
      const std::string_view chosen = choice_name(choices, value - member.first);
      return chosen.empty() ? fmt::format("{}", value) : std::string(chosen);
    } else if constexpr (std::is_same_v<T, std::string>) {
      return kind == SettingKind::secret && !value.empty() ? "(set)" : value;
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      return bytes_text(value);
    } else {
      return fmt::format("{}", value);
    }
  };
  return std::visit(format, field);
}

void Setting::set(Options& options, std::string_view value, std::string_view origin) const {
  const auto assign = [&](const auto& member) {
    using Member = std::decay_t<decltype(member)>;
    using T = std::decay_t<decltype(value_in(options, member))>;
    if constexpr (std::is_same_v<Member, Choice>) {
      const int number = number_of(choices, value);
      if (number < 0) reject(*this, value, origin);
      member.put(options, member.first + number);
    } else if constexpr (std::is_same_v<T, std::string>) {
      value_in(options, member) = std::string(value);
    } else {
      std::optional<T> number;
      if constexpr (std::is_same_v<T, std::uint64_t>) {
        number = parse_bytes(value);
      } else {
        number = parse<T>(value);
      }
      if (!number) reject(*this, value, origin);
      value_in(options, member) = *number;
    }
  };
  std::visit(assign, field);
  check(options, origin);
}

void Setting::check(const Options& options, std::string_view origin) const {
  const auto good = [&](const auto& member) {
    const auto& field_value = value_in(options, member);
    if constexpr (std::is_same_v<std::decay_t<decltype(member)>, Choice>) {
      return !choice_name(choices, field_value - member.first).empty();
    } else if constexpr (std::is_same_v<std::decay_t<decltype(field_value)>, std::string>) {
      const std::size_t bytes = field_value.size();
      if (kind == SettingKind::secret && bytes > 0 && bytes < kLeastSecret) reject_secret(bytes, origin);
      if (kind == SettingKind::transport) check_transport(field_value, origin);
      return true;
    } else {
      const auto value = static_cast<double>(field_value);
      return (value >= low && value <= high) || (or_zero && value == 0);  // false for NaN
    }
  };
  if (!std::visit(good, field)) reject(*this, text(options), origin);
}

}  // namespace nzcl
