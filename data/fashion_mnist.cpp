#include "data/fashion_mnist.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <future>
#include <utility>
#include <vector>

#include "data/idx.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSide = 28;
constexpr std::int64_t kClasses = 10;
constexpr std::uint32_t kMostImages = 1'000'000;  // Fashion-MNIST has 60,000
constexpr std::array<const char*, 4> kFiles = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                               "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

/// `name` or `name.gz` in `dir`; empty where there is neither.
fs::path locate(const fs::path& dir, const std::string& name) {
  for (const char* suffix : {"", ".gz"}) {
    fs::path path = dir / (name + suffix);
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored)) return path;
  }
  return {};
}

std::vector<std::string> missing_files(const fs::path& dir) {
  std::vector<std::string> missing;
  for (const char* name : kFiles) {
    if (locate(dir, name).empty()) missing.push_back(fmt::format("{}[.gz]", name));
  }
  return missing;
}

std::vector<fs::path> places(const std::string& dir) {
  if (!dir.empty()) return {dir};
  const char* variable = std::getenv("DDPTRAIN_DATA");
  if (variable != nullptr && *variable != '\0') return {variable};
  return {"data/downloads/fashion-mnist", "/usr/share/datasets/fashion-mnist"};
}

/// Reads the images or the labels of a part.
IdxFile read_part(const fs::path& path, std::uint32_t magic) {
  return read_idx(path, magic, [&](const std::vector<std::uint32_t>& dims) {
    if (dims.at(0) > kMostImages) {
      usage_error("{}: {} entries, more than {}: not Fashion-MNIST", path.string(), dims[0], kMostImages);
    }
    if (magic == kIdxImages && (dims.at(1) != kSide || dims.at(2) != kSide)) {
      usage_error("{}: images of {}x{}, not {}x{}: not Fashion-MNIST", path.string(), dims[1], dims[2], kSide, kSide);
    }
  });
}

void check_labels(const IdxFile& labels, const fs::path& path) {
  const auto bad = std::find_if(labels.bytes.begin(), labels.bytes.end(), [](int label) { return label >= kClasses; });
  if (bad != labels.bytes.end()) {
    usage_error("{}: label {} at index {}: only 0 to {} are classes", path.string(), static_cast<int>(*bad),
                bad - labels.bytes.begin(), kClasses - 1);
  }
}

ImageDataset combine(IdxFile images, const fs::path& images_path, IdxFile labels, const fs::path& labels_path) {
  if (images.dims.at(0) != labels.dims.at(0)) {
    usage_error("{}: {} images, but {} labels in {}", images_path.string(), images.dims.at(0), labels.dims.at(0),
                labels_path.string());
  }
  check_labels(labels, labels_path);
  return {images.dims[0], kSide, kSide, kClasses, std::move(images.bytes), std::move(labels.bytes)};
}

}  // namespace

fs::path find_fashion_mnist(const std::string& dir) {
  std::string looked;
  for (const fs::path& place : places(dir)) {
    const std::vector<std::string> missing = missing_files(place);
    if (missing.empty()) return place;
    looked += fmt::format("\n  {} (missing: {})", fs::absolute(place).string(), fmt::join(missing, ", "));
  }
  usage_error(
      "Fashion-MNIST not found. Looked in:{}\nFetch it with `launch/fetch-data fashion-mnist`, or install the "
      "package dataset-fashion-mnist, or give its folder (or set $DDPTRAIN_DATA).",
      looked);
}

ImageData load_fashion_mnist(const fs::path& dir) {
  std::array<fs::path, 4> paths;
  std::array<std::future<IdxFile>, 4> files;
  for (std::size_t i = 0; i < kFiles.size(); ++i) {
    paths[i] = locate(dir, kFiles[i]);
    if (paths[i].empty()) usage_error("{}: no file {}[.gz]", dir.string(), kFiles[i]);
    files[i] = std::async(std::launch::async, read_part, paths[i], i % 2 == 0 ? kIdxImages : kIdxLabels);
  }
  ImageData data;
  data.train = combine(files[0].get(), paths[0], files[1].get(), paths[1]);
  data.test = combine(files[2].get(), paths[2], files[3].get(), paths[3]);
  return data;
}

}  // namespace ddptrain
