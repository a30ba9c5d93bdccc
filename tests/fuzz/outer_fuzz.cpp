#include <cmath>
#include <cstring>
#include <variant>

#include "runtime/core/hash.h"
#include "runtime/outer/codec.h"
#include "runtime/outer/fold.h"
#include "runtime/outer/record.h"
#include "runtime/outer/snapshot.h"
#include "tests/fuzz/fuzz.h"

/// Entries and lists of snapshots that anybody may have written to the log, and files of --outer-record: what is taken
/// fits the layout, has finite values and is written as it was read.

namespace ddptrain::fuzz {
namespace {

constexpr OuterLayout kLayout = {7, 100, 2, OuterCodec::int8};

/// The bytes with the length and the checksum of an entry; else all that is changed would end there.
std::string with_right_ends(std::string_view bytes) {
  constexpr std::size_t kLength = 8, kChecksum = 16;
  std::string entry(bytes);
  if (entry.size() < kLength + 8 + kChecksum) return entry;
  const std::uint64_t size = entry.size();
  std::memcpy(entry.data() + kLength, &size, sizeof(size));
  const std::size_t before = entry.size() - kChecksum;
  const auto checksum = xxh3_128_value(entry.data(), before);
  std::memcpy(entry.data() + before, checksum.data(), kChecksum);
  return entry;
}

void check_entry(std::string_view bytes) {
  const auto parsed = parse_entry(bytes, kLayout);
  if (const auto* fault = std::get_if<EntryFault>(&parsed)) {
    require(!fault->what.empty() && fault->what.size() < 200, "a fault says what is wrong");
    for (const char c : fault->group + fault->what) require(c >= 0x20 && c != 0x7f, "a fault can be printed");
    return;
  }
  const OuterEntry& entry = std::get<OuterEntry>(parsed);
  require(write_entry(entry, kLayout) == bytes, "the same when written again");
  std::vector<float> weights(kLayout.size, 0.0f);
  OuterFold fold({0, OuterOptimizer::sgd, 1.0f, 0.0f, 0}, kLayout, weights, {});
  const bool applied = fold.add(entry) == OuterFold::Outcome::applied;
  require(applied == (fold.version(entry.fragment) == 1), "an entry that is not applied changes nothing");
  for (const float weight : weights) require(std::isfinite(weight), "weights are finite");
}

void check_snapshots(std::string_view content) {
  const std::string list = xxh3_128(content.data(), content.size()) + std::string(content);
  const auto heads = parse_snapshot_list(list);
  if (!heads) return;
  const auto again = parse_snapshot_list(write_snapshot_list(*heads));
  require(again && again->size() == heads->size(), "a list is read as it was written");
}

}  // namespace
}  // namespace ddptrain::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain;
  using namespace ddptrain::fuzz;
  static const Folder folder;
  const std::string_view input = text_of(data, size);
  check_entry(input);
  check_entry(with_right_ends(input));
  check_snapshots(input);
  const auto path = folder.write("record", input);
  result_of(path, [&] { return replay_record(path); });
  // With the checksum of a head and initial weights that no entries follow.
  Hash128 hash;
  hash.add(input.data(), input.size());
  const auto checksum = hash.value();
  const std::string_view end(reinterpret_cast<const char*>(checksum.data()), sizeof(checksum));
  const auto right_end = folder.write("record", std::string(input) + std::string(end));
  result_of(right_end, [&] { return replay_record(right_end); });
  return 0;
}
