#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Snapshots of the outer state, from which a group begins that joins late. The server has the values in chunks, and a
/// list of the newest snapshots. A snapshot counts once it is in the list, which is written after its chunks.

namespace ddptrain {

/// Whether a position in the log ("milliseconds-number", as Redis names entries) is after another. The empty text is
/// the begin of the log.
bool is_later(std::string_view position, std::string_view than);

struct SnapshotHead {
  std::string id;             ///< Of the names of its chunks.
  std::uint64_t run = 0;      ///< As OuterEntry::run.
  std::string position;       ///< The entries after it lead on from the snapshot.
  std::uint64_t version = 0;  ///< The lowest of its fragments.
  std::uint64_t bytes = 0;    ///< Of the values.
  std::string checksum;       ///< xxh3_128() of the values.
  std::string record;         ///< The rest of the outer state, as text.
};

inline constexpr std::size_t kSnapshotChunk = std::size_t{1} << 20;

inline std::size_t chunks_of(const SnapshotHead& head) { return (head.bytes + kSnapshotChunk - 1) / kSnapshotChunk; }

std::string write_snapshot_list(const std::vector<SnapshotHead>& heads);
/// Reads a list that anybody may have written. Nothing if it is damaged.
std::optional<std::vector<SnapshotHead>> parse_snapshot_list(std::string_view text);

}  // namespace ddptrain
