// Feeds any bytes as packets to each of the switch exchange's state machines: an aggregator, and a
// rank that has operations under way. Packets may be sealed with the job's key first, because no fuzzer
// guesses a checksum, and because a member may be hostile too.
#include "runtime/switch/operation_tensor.h"
#include "runtime/switch/slot_server.h"
#include "runtime/switch/slot_worker.h"
#include "tests/engine/hand_fed.h"
#include "tests/fuzz/fuzz.h"

namespace nzcl::test {
namespace {

using namespace engine::slot_pool;

enum Machine : std::uint8_t { kServer, kWorker, kMachines };

/// Precedes the bytes of each packet in the input.
struct Step {
  std::uint8_t from = 0;   // the peer from whose address the packet comes, modulo their number
  std::uint8_t flags = 0;  // kSealed, kAnswers; the rest is the ticks that pass before the packet comes
  std::uint16_t bytes = 0;
};
/// The packet gets its tag and checksum. Before that, a packet for a rank is made the answer to what the rank
/// has sent last in its slot: a fuzzer would seldom name the operation.
constexpr std::uint8_t kSealed = 1, kAnswers = 2, kTicks = 2;

constexpr Job kJob{0x1234, {5, 6}};
constexpr Pool kPool{.workers = 3, .slots = 2, .piece_elements = 8, .job = kJob};
constexpr std::size_t kMostPacketBytes = sizeof(Header) + 8 * sizeof(std::int32_t);

/// What a rank has sent last in each slot.
using LastSent = std::array<Header, kPool.slots>;

void make_answer(Header& header, const LastSent& last) {
  header.slot %= kPool.slots;
  header.round = last[header.slot].round;
  header.piece = last[header.slot].piece;
  header.shape = last[header.slot].shape;
}

/// Reads a packet into memory of exactly its size, so that a sanitizer notices a read beyond its end.
std::vector<std::byte> next_packet(FuzzInput& input, const Step& step, const LastSent* last = nullptr) {
  const auto bytes = std::as_bytes(input.bytes(step.bytes));
  std::vector<std::byte> packet(bytes.begin(), bytes.end());
  if ((step.flags & kSealed) != 0 && packet.size() >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, packet.data(), sizeof header);
    header.magic = kMagic;
    if (last != nullptr && (step.flags & kAnswers) != 0) make_answer(header, *last);
    seal(header, kJob, packet);
  }
  return packet;
}

void expect_ours(std::span<const std::byte> packet) {
  if (packet.size() > kMostPacketBytes || !open(packet, kJob)) __builtin_trap();
}

/// Takes all that the aggregator wants to send. One packet makes it send a few at most.
void take_answers(SlotServer& server) {
  for (int sent = 0; const auto out = server.front(); server.pop()) {
    if (++sent > 2 || out->rank < kToAll || out->rank >= kPool.workers) __builtin_trap();
    expect_ours(out->packet);
  }
}

void run_server(FuzzInput& input) {
  SlotServer server(kPool);
  while (!input.empty()) {
    const auto step = input.value<Step>();
    server.receive(step.from % kPool.workers, next_packet(input, step));
    take_answers(server);
  }
}

/// A rank with three operations: blocks that fill half a piece each, narrow floats, and blocks that are cut
/// into three pieces each.
class Rank {
 public:
  Rank() : fed_({.self = 0, .workers = kPool.workers, .dedicated = 1}), worker_(kPool, 0, kOperations) {
    begin({.block_elems = 4}, 50);
    begin({.block_elems = 6,
           .type = static_cast<std::uint8_t>(DataType::bfloat16),
           .op = static_cast<std::uint8_t>(ReduceOp::avg)},
          50);
    begin({.block_elems = 20, .type = static_cast<std::uint8_t>(DataType::int32)}, 70);
  }
  const LastSent& last_sent() const { return last_sent_; }
  void receive(std::span<const std::byte> packet, Time later) {
    now_ += later;
    worker_.advance(now_);
    send();
    worker_.receive(packet, now_);
    send();
  }

 private:
  static constexpr std::size_t kOperations = 3;

  void begin(wire::OperationRecord record, std::size_t count) {
    std::vector<float> values(count, 1.5f);
    std::fill_n(values.begin() + 20, 10, 0.0f);  // some pieces are not this rank's
    operations_.push_back(std::make_unique<HandMade>(fed_, operations_.size(), std::move(values), record));
    tensors_.push_back(std::make_unique<OperationTensor>(kPool));
    tensors_.back()->bind(operations_.back()->operation, 0);
    worker_.submit(*tensors_.back());
  }
  void send() {
    alignas(8) std::array<std::byte, kMostPacketBytes> packet;
    for (std::uint32_t sent = 0; const std::size_t bytes = worker_.next_packet(packet, now_);) {
      if (++sent > kPool.slots) __builtin_trap();
      expect_ours(std::span(packet).first(bytes));
      Header header;
      std::memcpy(&header, packet.data(), sizeof header);
      last_sent_[header.slot] = header;
    }
  }

  HandFed fed_;
  SlotWorker worker_;
  std::vector<std::unique_ptr<HandMade>> operations_;
  std::vector<std::unique_ptr<OperationTensor>> tensors_;
  LastSent last_sent_{};
  Time now_{};
};

void run_worker(FuzzInput& input) {
  Rank rank;
  while (!input.empty()) {
    const auto step = input.value<Step>();
    const auto packet = next_packet(input, step, &rank.last_sent());
    rank.receive(packet, kTick * (step.flags >> kTicks));
  }
}

// --- Seeds

std::string packet(std::uint8_t from, Header header, std::size_t values = 0, std::uint8_t ticks = 0) {
  header.rank = header.kind == Kind::contribution || header.kind == Kind::question ? from : kAggregatorRank;
  header.flags |= values > 0 ? kHasValues : 0;
  std::string text;
  append(text, Step{from, static_cast<std::uint8_t>(kSealed | kAnswers | ticks << kTicks),
                    static_cast<std::uint16_t>(sizeof header + values * sizeof(std::int32_t))});
  append(text, header);
  for (std::size_t i = 0; i < values; ++i) append(text, static_cast<std::int32_t>(i + 1));
  return text;
}

std::string from_all(const Header& header, std::size_t values = 0) {
  std::string text;
  for (int r = 0; r < kPool.workers; ++r) text += packet(static_cast<std::uint8_t>(r), header, values);
  return text;
}

Header header(Kind kind, std::uint32_t round, std::uint32_t piece, std::uint32_t next) {
  Header h;
  h.kind = kind;
  h.round = round;
  h.piece = piece;
  h.next = next;
  h.blocks = piece == kNoPiece ? 0 : 3;
  return h;
}

std::string seed(Machine machine, const std::string& packets) { return static_cast<char>(machine) + packets; }

}  // namespace

std::vector<std::string> fuzz_seeds() {
  const auto contribution = [](auto... of) { return header(Kind::contribution, of...); };
  const auto question = [](auto... of) { return header(Kind::question, of...); };
  const auto result = [](auto... of) { return header(Kind::result, of...); };
  const std::string two_rounds =
      from_all(contribution(0u, kNoPiece, 0u)) + from_all(contribution(1u, 0u, kNoPiece), 8);
  Header waiting = header(Kind::waiting, 0, 1, 0), absent = waiting;
  absent.flags = kAbsent;
  // What a rank is told of the first slot's pieces 0, 2 and so on.
  Header opened = result(0u, kNoPiece, 0u);
  opened.next_exponent = 127;
  std::string all_pieces = packet(0, opened);
  for (std::uint32_t piece = 0; piece < 8; piece += 2) {
    Header sum = result(piece / 2 + 1, piece, piece == 6 ? kNoPiece : piece + 2);
    sum.exponent = sum.next_exponent = 127;
    if (piece == 6) sum.blocks = 1;
    all_pieces += packet(0, sum, piece == 6 ? 2 : 8);
  }
  return {seed(kServer, two_rounds),
          seed(kServer, packet(0, contribution(0u, kNoPiece, 0u)) + packet(1, question(0u, kNoPiece, 0u)) +
                            packet(0, contribution(0u, kNoPiece, 0u))),
          seed(kWorker, all_pieces + packet(0, absent, 0, 60)),
          seed(kWorker, packet(0, waiting, 0, 63) + packet(0, waiting, 0, 63) + packet(0, opened))};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nzcl::test;
  FuzzInput input(data, size);
  switch (input.value<std::uint8_t>() % kMachines) {
    case kServer:
      run_server(input);
      break;
    default:
      run_worker(input);
  }
  return 0;
}
