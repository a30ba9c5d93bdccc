#include "data/images/images.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "data/images/idx_set.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSyntheticImages = 60000;

ImageSource copy_to(Device& device, const ImageDataset& dataset, std::vector<Buffer>& memory) {
  const auto copy = [&](const std::vector<std::uint8_t>& bytes, const Shape& shape) {
    memory.push_back(device.allocate(bytes.size()));
    device.copy_to_device(memory.back().data(), bytes.data(), bytes.size());
    return memory.back().view(DType::u8, shape);
  };
  return {copy(dataset.images, {dataset.count, dataset.height, dataset.width}), copy(dataset.labels, {dataset.count})};
}

fs::path find_fashion_mnist() {
  std::string looked;
  for (const fs::path place : {"data/downloads/fashion-mnist", "/usr/share/datasets/fashion-mnist"}) {
    std::error_code ignored;
    if (fs::is_directory(place, ignored) && find_idx_set(place)) return place;
    looked += fmt::format("\n  {}", one_line(fs::absolute(place).string()));
  }
  usage_error(
      "Fashion-MNIST not found. Looked in:{}\nFetch it with `launch/fetch-data fashion-mnist`, or install the "
      "package dataset-fashion-mnist, or give a folder of IDX files (or set $DDPTRAIN_DATA).",
      Lines{looked});
}

/// Where images are looked for: see find_images().
fs::path folder_of(const std::string& name) {
  if (!name.empty()) return name;
  const char* variable = std::getenv("DDPTRAIN_DATA");
  return variable != nullptr && *variable != '\0' ? fs::path(variable) : find_fashion_mnist();
}

std::function<ImageData()> find_in(const fs::path& folder) {
  if (const auto set = find_idx_set(folder)) {
    return [set = *set, folder] {
      ImageData data = load_idx_set(set);
      data.source = folder.string();
      return data;
    };
  }
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) {
    usage_error("{}: there is no such folder. `launch/fetch-data fashion-mnist` downloads Fashion-MNIST.",
                folder.string());
  }
  if (fs::is_regular_file(folder, ignored)) {
    usage_error("{}: this file is no IDX data set. Give a folder of IDX files. A text needs --model gpt or llama.",
                folder.string());
  }
  usage_error(
      "{}: no IDX data set (train-images-idx3-ubyte[.gz], train-labels-idx1-ubyte[.gz] and the same with t10k-). "
      "`data/idx-from-images FOLDER OUT` makes one of a folder of images per class, and `launch/fetch-data "
      "fashion-mnist` downloads Fashion-MNIST.",
      folder.string());
}

}  // namespace

ImageData::ImageData(ImageDataset train_images, ImageDataset test_images)
    : train(std::move(train_images)), test(std::move(test_images)) {
  int largest = -1;
  for (const ImageDataset* part : {&train, &test}) {
    for (const std::uint8_t label : part->labels) largest = std::max<int>(largest, label);
  }
  train.classes = test.classes = largest + 1;
}

DataContent ImageData::content() const {
  return {fmt::format("{} images", train.count + test.count), hash_,
          fmt::format("{} training and {} test images from {}", train.count, test.count, source)};
}

void ImageData::hash_share(int reader, int readers) {
  hash_ = SharedHash(reader, readers);
  for (const ImageDataset* part : {&train, &test}) {
    hash_.add(part->images.data(), part->images.size());
    hash_.add(part->labels.data(), part->labels.size());
  }
}

std::function<ImageData()> find_images(const std::string& name, std::uint64_t seed, int readers) {
  const std::string synthetic = "synthetic";
  if (name == synthetic) return [seed] { return make_synthetic(kSyntheticImages, seed); };
  if (name.rfind(synthetic + ":", 0) == 0) {
    const std::string text = name.substr(synthetic.size() + 1);
    if (text.empty() || text.size() > 10 || text.find_first_not_of("0123456789") != std::string::npos) {
      usage_error("{}: give synthetic:COUNT, COUNT being a number of images", name);
    }
    return [seed, readers, count = std::stoll(text)] { return make_synthetic(count, seed, readers); };
  }
  return find_in(folder_of(name));
}

ResidentImages make_resident(const ImageData& data, Device& device) {
  ResidentImages resident;
  resident.train = copy_to(device, data.train, resident.memory);
  resident.test = copy_to(device, data.test, resident.memory);
  return resident;
}

}  // namespace ddptrain
