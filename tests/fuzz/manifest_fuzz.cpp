#include "runtime/train/checkpoint/manifest.h"

#include <limits>

#include "runtime/core/text.h"
#include "tests/fuzz/fuzz.h"

/// The manifest of a checkpoint: one that is taken is written as it was read, and names files of its own folder only.
/// Whatever a run has to write can be read.

namespace {

using namespace ddptrain;
using namespace ddptrain::fuzz;

const std::string kName = "checkpoint/manifest.json";

/// Values of a run, from the bytes of the input; zeros and empty texts after its end.
class Values {
 public:
  explicit Values(std::string_view bytes) : bytes_(bytes) {}

  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes && !bytes_.empty(); ++i, bytes_.remove_prefix(1)) {
      value = value << 8 | static_cast<unsigned char>(bytes_.front());
    }
    return value;
  }
  std::int64_t count(std::int64_t least) { return std::max(least, static_cast<std::int64_t>(number(4))); }
  std::size_t some() { return number(1) % 4; }
  double real() {
    constexpr double kOthers[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()};
    const std::size_t which = some();
    return which < 2 ? kOthers[which] : static_cast<double>(number(7)) / static_cast<double>(number(2));
  }
  std::string text() {
    const std::string_view text = bytes_.substr(0, number(1) % 16);
    bytes_.remove_prefix(text.size());
    return printable(text);
  }
  MetricSums sums() { return {real(), number(8), number(8)}; }

 private:
  std::string_view bytes_;
};

/// As CheckpointWriter and TrainingRun make it.
Manifest manifest_of(Values values) {
  Manifest manifest;
  RunIdentity& run = manifest.run;
  run.mesh.replicas = 1 + static_cast<int>(values.some());
  const std::size_t virtual_ranks = 1 + values.some();
  run.model = values.text();
  run.data = values.text();
  run.precision = values.text();
  run.seed = values.number(8);
  run.batch = values.count(1);
  run.grad_accum = values.count(1);
  run.samples_per_step = values.count(1);
  run.steps_per_epoch = values.count(1);
  for (std::size_t i = values.some(); i > 0; --i) run.sizes[values.text()] = values.count(0);
  for (std::size_t i = values.some(); i > 0; --i) run.flags[values.text()] = values.text();
  manifest.progress = {values.count(0), {}, values.sums(), {}};
  for (std::size_t i = values.some(); i > 0; --i) {
    manifest.progress.epochs.push_back(
        {values.count(1), values.count(1), values.real(), values.real(), values.real(), values.real(), values.real()});
  }
  for (int rank = 0; rank < run.mesh.ranks(); ++rank) {
    manifest.files.push_back({fmt::format("rank-{:05}.safetensors", rank), values.number(8), values.text()});
    for (std::size_t i = 0; i < virtual_ranks; ++i) manifest.progress.rank_sums.push_back(values.sums());
  }
  for (std::size_t i = values.some(); i > 0; --i) {
    manifest.arrays.push_back(
        {values.text(), {values.count(0)}, values.text(), static_cast<Placement>(values.number(1) % 3)});
  }
  return manifest;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = text_of(data, size);
  const std::string of_run = to_json(manifest_of(Values(input)));
  require(to_json(parse_manifest(of_run, kName)) == of_run, "what a run writes is read as it was");

  const std::string given = with_checksum(input);  // else all that is changed would end there
  if (given != input)
    require(!result_of(kName, [&] { return parse_manifest(input, kName); }), "the checksum is checked");
  const auto manifest = result_of(kName, [&] { return parse_manifest(given, kName); });
  if (!manifest) return 0;
  const RunIdentity& run = manifest->run;
  require(manifest->progress.step >= 0 && run.mesh.ranks() > 0 && run.batch > 0 && run.grad_accum > 0,
          "numbers of a run");
  for (const CheckpointFile& file : manifest->files) {
    require(std::filesystem::path(file.name).filename() == file.name, "a file of this folder");
  }
  const std::string written = to_json(*manifest);
  require(to_json(parse_manifest(written, kName)) == written, "the same when written and read again");
  return 0;
}
