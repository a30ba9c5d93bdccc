#include "runtime/train/manifest.h"
#include "tests/fuzz/fuzz.h"

/// The manifest of a checkpoint: one that is taken is written as it was read, and names files of its own folder only.

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain::fuzz;
  using ddptrain::Manifest;
  const std::string name = "checkpoint/manifest.json";
  const auto manifest = result_of(name, [&] { return ddptrain::parse_manifest(text_of(data, size), name); });
  if (!manifest) return 0;
  require(manifest->progress.step >= 0 && manifest->run.world_size > 0, "a step and a number of ranks");
  for (const ddptrain::CheckpointFile& file : manifest->files) {
    require(std::filesystem::path(file.name).filename() == file.name, "a file of this folder");
  }
  const std::string written = to_json(*manifest);
  require(to_json(ddptrain::parse_manifest(written, name)) == written, "the same when written and read again");
  return 0;
}
