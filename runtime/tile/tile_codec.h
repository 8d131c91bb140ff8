// Chooses how a tile is coded, and translates between its bytes on the wire and the forms that kernels read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "nzcl/types.h"
#include "runtime/tile/tile_part.h"
#include "runtime/wire/tile.h"

namespace nzcl::engine {

/// What decides about codes. They shape what is sent, and never the results.
struct CodeRules {
  /// The code of every tile that has some of its elements but not all, unless a bitmap would be shorter.
  std::optional<wire::IndexCode> forced;
  /// Whether the shortest code is looked for whatever it takes, as over links, or only among those that are
  /// found and read fast.
  bool shortest = false;
};

/// A code for a tile's index set, and what it takes.
struct CodeChoice {
  wire::IndexCode code = wire::IndexCode::none;
  std::uint64_t index_bytes = 0;  // of the index set, without its length field
};

/// Chooses the code of a tile's index set. It never takes more bytes than a bitmap. IndexCode::all is only
/// for tiles that have all elements, so that a result tells exactly which elements any rank contributes.
/// `scratch` may be used; the part may lead into it.
CodeChoice choose_code(const TilePart& part, std::size_t elements, const CodeRules& rules,
                       TileScratch& scratch);

/// How many bytes a tile takes that begins `at` bytes into the payload, up to where another tile may begin.
std::uint64_t tile_bytes(std::uint64_t at, const CodeChoice& choice, std::size_t values,
                         std::uint64_t value_bytes);

/// Writes the descriptor to `tile`.
void write_descriptor(std::byte* tile, const CodeChoice& choice, std::size_t count, wire::ValueCode value);

/// Writes the index set, with its length field if its code has one, behind the values. Returns the number of
/// bytes written. `part` and `scratch` are those that were given to choose_code(). Preconditions: the code is
/// one that writes something, and the part's form is bitmap or offsets.
std::uint64_t write_index(std::byte* to, const TilePart& part, std::size_t elements, const CodeChoice& choice,
                          TileScratch& scratch);

/// Reads a tile's index set, and widens its values if they are narrower than the tensor's type, into
/// `scratch`, where the part then lies; values that are not narrower stay in the payload. `bitmap`, of
/// words_for(elements) words, takes the bitmap instead of the scratch, if it is not empty. Returns nothing if
/// the index set is not one of as many elements as the tile counts.
std::optional<TilePart> read_part(const wire::Tile& tile, std::size_t elements, TileScratch& scratch,
                                  std::span<std::uint64_t> bitmap = {});

/// Returns the set as a bitmap in `to`, unless it is one already. The part must not have Form::none.
std::span<const std::uint64_t> as_bitmap(const TilePart& part, std::size_t elements,
                                         std::span<std::uint64_t> to);
/// Returns the set as offsets, in `to` unless it is given as offsets already.
std::span<const std::uint16_t> as_offsets(const TilePart& part, std::span<std::uint16_t> to);

}  // namespace nzcl::engine
