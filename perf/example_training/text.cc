#include "perf/example_training/text.h"

#include <zlib.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

namespace train {
namespace {

constexpr std::size_t kMaxPronunciation = 120;  // characters; a lone backslash must not swallow the text
constexpr std::size_t kMaxBracket = 4000;       // more than the longest etymology of GCIDE
constexpr std::size_t kMaxAccent = 4;           // [=oo], ['e], [ae]

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// One pass over the text. Each step consumes characters at position at_ and appends to words_.
class Cleaner {
 public:
  explicit Cleaner(std::string_view text) : text_(text) { words_.reserve(text.size()); }

  std::string run() {
    while (at_ < text_.size()) step();
    end_paragraph();
    return std::move(words_);
  }

 private:
  void step() {
    const char c = text_[at_];
    if (is_letter(c)) {
      words_.push_back(lower(c));
      ++at_;
    } else if (c == '\\') {
      skip_pronunciation();
    } else if (c == '[') {
      bracket();
    } else if (c == '\n') {
      line_end();
    } else {
      end_word();
      ++at_;
    }
  }

  void skip_pronunciation() {
    end_word();
    skip_through('\\');
    std::size_t next = at_;
    while (next < text_.size() && is_space(text_[next])) ++next;
    if (next < text_.size() && text_[next] == '(') {
      at_ = next;
      skip_through(')');
    }
  }

  /// Skips from the opening character at at_ to behind `closing`, or only the opening character if no closing
  /// one is near.
  void skip_through(char closing) {
    const std::size_t length = text_.substr(at_ + 1, kMaxPronunciation).find(closing);
    at_ += length == std::string_view::npos ? 1 : length + 2;
  }

  void bracket() {
    const std::size_t end = matching_bracket();
    if (end == std::string_view::npos) {
      end_word();
      ++at_;
      return;
    }
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    const bool in_word = in_word_ending() || (end + 1 < text_.size() && is_letter(text_[end + 1]));
    if (in_word && inside.size() <= kMaxAccent) {
      for (const char c : inside)
        if (is_letter(c)) words_.push_back(lower(c));
    } else {
      end_word();
    }
    at_ = end + 1;
  }

  /// Brackets nest: an etymology contains accented letters.
  std::size_t matching_bracket() const {
    const std::size_t limit = std::min(text_.size(), at_ + kMaxBracket);
    int depth = 0;
    for (std::size_t i = at_; i < limit; ++i) {
      if (text_[i] == '[') ++depth;
      if (text_[i] == ']' && --depth == 0) return i;
    }
    return std::string_view::npos;
  }

  void line_end() {
    end_word();
    int lines = 0;
    for (; at_ < text_.size() && is_space(text_[at_]); ++at_) lines += text_[at_] == '\n';
    if (lines > 1) end_paragraph();
  }

  bool in_word_ending() const { return !words_.empty() && is_letter(words_.back()); }

  /// Single letters are dropped: they are initials, "n." for noun, and the s of "author's".
  void end_word() {
    if (!in_word_ending()) return;
    const bool single = words_.size() == 1 || !is_letter(words_[words_.size() - 2]);
    if (single)
      words_.pop_back();
    else
      words_.push_back(' ');
  }

  void end_paragraph() {
    end_word();
    if (words_.empty() || words_.back() == '\n') return;
    words_.back() = '\n';
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string words_;
};

}  // namespace

std::string read_text(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file)
    throw std::runtime_error("cannot open the text '" + path + "'; give a readable file, plain or gzip");
  std::string text;
  std::string chunk(1 << 20, '\0');
  int got = 0;
  while ((got = gzread(file.get(), chunk.data(), static_cast<unsigned>(chunk.size()))) > 0)
    text.append(chunk, 0, static_cast<std::size_t>(got));
  int code = Z_OK;
  const std::string reason = gzerror(file.get(), &code);
  if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
    throw std::runtime_error("cannot read the text '" + path + "': " + reason);
  return text;
}

std::string plain_words(std::string_view text) { return Cleaner(text).run(); }

}  // namespace train
