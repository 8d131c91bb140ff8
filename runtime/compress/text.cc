// Reads compressors from text, and writes them as text.
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nzcl/compress.h"
#include "nzcl/error.h"
#include "runtime/compress/check.h"

namespace nzcl {
namespace {

[[noreturn]] void reject(std::string_view whole, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("compressor \"{}\": {}", whole, why));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

template <typename Number>
Number number(std::string_view whole, std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size())
    reject(whole, fmt::format("\"{}\" is no number that fits here", text));
  return value;
}

/// One part of the text: a name, with settings behind it that are separated by colons.
class Item {
 public:
  Item(std::string_view whole, std::string_view text) : whole_(whole), parts_(split(text, ':')) {}
  std::string_view name() const { return parts_[0]; }
  /// Setting `i`, the one behind the name being 1, or `otherwise` if there is no such setting.
  template <typename Number>
  Number get(std::size_t i, Number otherwise) const {
    return i < parts_.size() ? number<Number>(whole_, parts_[i]) : otherwise;
  }
  /// Whether there is a setting `i`. Nothing but `word` is accepted there.
  bool flag(std::size_t i, std::string_view word) const {
    if (i >= parts_.size()) return false;
    if (parts_[i] != word) reject(whole_, fmt::format("\"{}\" should be \"{}\"", parts_[i], word));
    return true;
  }
  void require_at_least(std::size_t count, std::string_view what) const {
    if (parts_.size() <= count) reject(whole_, fmt::format("{} needs {}", name(), what));
  }
  void require_at_most(std::size_t count) const {
    if (parts_.size() > count + 1)
      reject(whole_, fmt::format("\"{}\" is too much behind {}", parts_[count + 1], name()));
  }

 private:
  std::string_view whole_;
  std::vector<std::string_view> parts_;
};

/// Returns false if there is no value codec of this name.
bool read_values(const Item& item, ValueCodec& values) {
  if (item.name() == "asis" || item.name() == "ternary" || item.name() == "fp16" || item.name() == "bf16") {
    item.require_at_most(0);
    if (item.name() == "asis") values = AsIs();
    if (item.name() == "ternary") values = Ternary();
    if (item.name() == "fp16") values = Narrow{DataType::float16};
    if (item.name() == "bf16") values = Narrow{DataType::bfloat16};
    return true;
  }
  if (item.name() != "qsgd") return false;
  item.require_at_most(3);
  const Qsgd defaults;
  values = Qsgd{.bits = item.get(1, defaults.bits),
                .bucket = item.get(2, defaults.bucket),
                .feedback = item.flag(3, "feedback")};
  return true;
}

/// Quantised results have 8 bits unless the text says otherwise.
void read_results(std::string_view whole, std::string_view text, ResultCodec& results) {
  const Item item(whole, text);
  item.require_at_most(item.name() == "qsgd" ? 2 : 0);
  if (item.name() == "asis") {
    results.emplace<AsIs>();
  } else if (item.name() == "fp16" || item.name() == "bf16") {
    results.emplace<Narrow>(item.name() == "fp16" ? DataType::float16 : DataType::bfloat16);
  } else if (item.name() == "qsgd") {
    results.emplace<Qsgd>(item.get(1, 8), item.get(2, Qsgd().bucket));
  } else {
    reject(whole, fmt::format("results cannot be \"{}\"; known are asis, fp16, bf16 and qsgd", item.name()));
  }
}

bool read_selection(const Item& item, Compressor& c) {
  if (item.name() == "adacomp") {
    item.require_at_most(2);
    const AdaComp defaults;
    c.selection = AdaComp{.bin = item.get(1, defaults.bin), .exact_scale = !item.flag(2, "slice")};
    c.values = Ternary();
  } else if (item.name() == "topk") {
    item.require_at_most(2);
    c.selection = TopK{.ratio = item.get(1, TopK().ratio), .exact = item.flag(2, "exact")};
  } else if (item.name() == "threshold") {
    item.require_at_least(1, "a value");
    item.require_at_most(1);
    c.selection = Threshold{.value = item.get(1, 0.0f)};
  } else if (item.name() == "randomk") {
    item.require_at_most(1);
    c.selection = RandomK{.ratio = item.get(1, RandomK().ratio)};
  } else if (item.name() == "blocktopk") {
    item.require_at_most(2);
    const BlockTopK defaults;
    c.selection = BlockTopK{.ratio = item.get(1, defaults.ratio), .block = item.get(2, defaults.block)};
  } else if (item.name() == "all") {
    item.require_at_most(0);
    c.selection = Everything();
  } else {
    return false;
  }
  return true;
}

bool read_switch(std::string_view whole, std::string_view text) {
  if (text != "0" && text != "1") reject(whole, fmt::format("\"{}\" should be 0 or 1", text));
  return text == "1";
}

void read_setting(std::string_view whole, std::string_view text, Compressor& c) {
  const std::size_t at = text.find('=');
  if (at == text.npos) reject(whole, fmt::format("\"{}\" should be NAME=VALUE", text));
  const std::string_view name = text.substr(0, at), value = text.substr(at + 1);
  if (name == "momentum") {
    c.momentum = number<float>(whole, value);
  } else if (name == "clip") {
    c.clip = number<float>(whole, value);
  } else if (name == "warm_up") {
    c.warm_up = number<std::uint32_t>(whole, value);
  } else if (name == "residual") {
    c.residual = read_switch(whole, value);
  } else if (name == "error") {
    c.non_finite = read_switch(whole, value) ? NonFinite::error : NonFinite::pass;
  } else if (name == "seed") {
    c.seed = number<std::uint64_t>(whole, value);
  } else if (name == "results") {
    read_results(whole, value, c.results);
  } else if (name == "refresh" && std::holds_alternative<TopK>(c.selection)) {
    std::get<TopK>(c.selection).refresh = number<std::uint32_t>(whole, value);
  } else {
    reject(
        whole,
        fmt::format("there is no {} here; known are momentum, clip, warm_up, residual, error, seed, results, "
                    "and refresh with topk",
                    name));
  }
}

std::string text_of(const Selection& selection) {
  struct Visitor {
    std::string operator()(const AdaComp& s) const {
      return fmt::format("adacomp:{}{}", s.bin, s.exact_scale ? "" : ":slice");
    }
    std::string operator()(const TopK& s) const {
      return fmt::format("topk:{}{}", s.ratio, s.exact ? ":exact" : "");
    }
    std::string operator()(const Threshold& s) const { return fmt::format("threshold:{}", s.value); }
    std::string operator()(const RandomK& s) const { return fmt::format("randomk:{}", s.ratio); }
    std::string operator()(const BlockTopK& s) const {
      return fmt::format("blocktopk:{}:{}", s.ratio, s.block);
    }
    std::string operator()(const Everything&) const { return "all"; }
  };
  return std::visit(Visitor(), selection);
}

std::string text_of(const ValueCodec& values) {
  struct Visitor {
    std::string operator()(const AsIs&) const { return "asis"; }
    std::string operator()(const Ternary&) const { return "ternary"; }
    std::string operator()(const Narrow& v) const { return v.type == DataType::float16 ? "fp16" : "bf16"; }
    std::string operator()(const Qsgd& v) const {
      return fmt::format("qsgd:{}:{}{}", v.bits, v.bucket, v.feedback ? ":feedback" : "");
    }
  };
  return std::visit(Visitor(), values);
}

/// As read_results() takes it.
std::string text_of(const ResultCodec& results) {
  struct Visitor {
    std::string operator()(const AsIs& v) const { return text_of(ValueCodec(v)); }
    std::string operator()(const Narrow& v) const { return text_of(ValueCodec(v)); }
    std::string operator()(const Qsgd& v) const { return fmt::format("qsgd:{}:{}", v.bits, v.bucket); }
  };
  return std::visit(Visitor(), results);
}

}  // namespace

Compressor compressor_from_text(std::string_view text) {
  Compressor c;
  const auto items = split(text, ',');
  const auto halves = split(items[0], '+');
  if (halves.size() > 2) reject(text, "it has more than one +");
  const Item first(text, halves[0]);
  if (!read_selection(first, c)) {
    // A text that names only a value codec means that every element is sent.
    if (halves.size() > 1 || !read_values(first, c.values))
      reject(text,
             fmt::format(
                 "there is no \"{}\"; known are adacomp, topk, threshold, randomk, blocktopk, all, asis, "
                 "ternary, fp16, bf16 and qsgd",
                 first.name()));
    c.selection = Everything();
  }
  if (halves.size() > 1) {
    const Item second(text, halves[1]);
    if (!read_values(second, c.values))
      reject(text, fmt::format("there are no values \"{}\"; known are asis, ternary, fp16, bf16 and qsgd",
                               second.name()));
  }
  for (std::size_t i = 1; i < items.size(); ++i) read_setting(text, items[i], c);
  compress::check_compressor(c);
  return c;
}

std::string to_text(const Compressor& c) {
  const Compressor defaults;
  std::string text = text_of(c.selection) + "+" + text_of(c.values);
  const auto* topk = std::get_if<TopK>(&c.selection);
  if (topk != nullptr && topk->refresh != TopK().refresh) text += fmt::format(",refresh={}", topk->refresh);
  if (c.momentum != defaults.momentum) text += fmt::format(",momentum={}", c.momentum);
  if (c.clip != defaults.clip) text += fmt::format(",clip={}", c.clip);
  if (c.warm_up != defaults.warm_up) text += fmt::format(",warm_up={}", c.warm_up);
  if (!c.residual) text += ",residual=0";
  if (c.non_finite == NonFinite::error) text += ",error=1";
  if (compress::codes_results(c)) text += ",results=" + text_of(c.results);
  if (c.seed != defaults.seed) text += fmt::format(",seed={}", c.seed);
  return text;
}

}  // namespace nzcl
