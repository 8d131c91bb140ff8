// From a file on disk to plain words.
#pragma once

#include <string>
#include <string_view>

namespace train {

/// The whole file. gzip (dictzip too) is decompressed, anything else is read as it is. Throws
/// std::runtime_error.
std::string read_text(const std::string& path);

/// Words of two or more lower-case letters (a-z), single spaces between them, one paragraph per line.
/// Paragraphs end at blank lines. Every other character separates words.
///
/// Knows the markup of Webster's dictionary in dictd form, which ordinary English does not contain:
///   \Co*ag"u*lum\ (k[-o]*[aum])   the headword again, with its pronunciation: dropped
///   [1913 Webster]  [L. from ...] sources and etymologies: dropped
///   h['e]ros  [ae]ther            accented letters: the letters stay, hero + s and aether
///   {Hermit}                      cross-references: the word stays
std::string plain_words(std::string_view text);

}  // namespace train
