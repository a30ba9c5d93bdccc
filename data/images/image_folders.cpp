#include "data/images/image_folders.h"

#include <algorithm>
#include <cctype>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "data/images/gray_image.h"
#include "runtime/core/error.h"
#include "runtime/core/files/mapped_file.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostClasses = 256;  // labels are bytes
constexpr std::int64_t kMostSide = 1024;
constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 30;
constexpr std::size_t kTestEvery = 10;

/// Of each class.
using ClassFiles = std::map<std::string, std::vector<fs::path>>;

bool is_image(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  static const std::set<std::string> endings = {".png", ".jpg", ".jpeg", ".pgm"};
  return endings.count(ending) > 0 && path.filename().string()[0] != '.';
}

std::vector<fs::path> images_in(const fs::path& folder) {
  std::vector<fs::path> images;
  for (const auto& entry : fs::directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
    if (is_image(entry.path()) && entry.is_regular_file()) images.push_back(entry.path());
  }
  std::sort(images.begin(), images.end());
  return images;
}

/// Folders with images in `folder`; none where there is no such folder.
ClassFiles classes_in(const fs::path& folder) {
  ClassFiles classes;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return classes;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.is_directory(ignored)) continue;
    std::vector<fs::path> images = images_in(entry.path());
    if (!images.empty()) classes[entry.path().filename().string()] = std::move(images);
  }
  return classes;
}

std::vector<std::string> in_order(const ClassFiles& classes) {
  std::vector<std::string> names;
  for (const auto& [name, files] : classes) names.push_back(name);
  const bool numbers = std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return name.size() < 10 && name.find_first_not_of("0123456789") == std::string::npos;
  });
  const auto by_value = [](const std::string& a, const std::string& b) { return std::stol(a) < std::stol(b); };
  if (numbers) std::stable_sort(names.begin(), names.end(), by_value);
  return names;
}

ClassFiles test_classes_in(const fs::path& folder) {
  for (const char* name : {"test", "val", "valid", "validation"}) {
    ClassFiles classes = classes_in(folder / name);
    if (!classes.empty()) return classes;
  }
  return {};
}

/// Takes every tenth image of each class out of `train`.
ClassFiles hold_out(ClassFiles& train) {
  ClassFiles test;
  for (auto& [name, files] : train) {
    std::vector<fs::path> kept;
    for (std::size_t i = 0; i < files.size(); ++i) {
      (i % kTestEvery == kTestEvery - 1 ? test[name] : kept).push_back(files[i]);
    }
    files = std::move(kept);
  }
  return test;
}

ImageFolders::Files labelled(const ClassFiles& classes, const std::vector<std::string>& names) {
  ImageFolders::Files files;
  for (std::size_t label = 0; label < names.size(); ++label) {
    const auto found = classes.find(names[label]);
    if (found == classes.end()) continue;
    for (const fs::path& path : found->second) files.emplace_back(path, static_cast<std::uint8_t>(label));
  }
  return files;
}

void check_classes(const fs::path& folder, const ClassFiles& train, const ClassFiles& test) {
  if (train.size() > kMostClasses) {
    usage_error("{}: {} classes, and there can be {}", folder.string(), train.size(), kMostClasses);
  }
  if (train.size() < 2) usage_error("{}: one class alone; there must be two or more", folder.string());
  for (const auto& [name, files] : test) {
    if (train.count(name) == 0) {
      usage_error("{}: class '{}' has images for testing and none for training", folder.string(), printable(name));
    }
  }
  if (test.empty()) {
    usage_error("{}: no images for testing: put some in {}, or {} or more in a class", folder.string(),
                (folder / "test" / "CLASS").string(), kTestEvery);
  }
}

GrayImage read_image(const fs::path& path, const CheckImageSize& check_size) {
  const MappedFile file(path);
  return decode_image({file.data(), file.size()}, path.string(), check_size);
}

void check_first(const fs::path& path, std::int64_t height, std::int64_t width) {
  if (height <= kMostSide && width <= kMostSide) return;
  usage_error("{}: {}x{} pixels, more than {}x{}", path.string(), height, width, kMostSide, kMostSide);
}

/// Decodes files [begin, end) into their places.
void decode(const ImageFolders::Files& files, std::size_t begin, std::size_t end, ImageDataset& set) {
  const auto pixels = static_cast<std::size_t>(set.height * set.width);
  for (std::size_t i = begin; i < end; ++i) {
    const auto& [path, label] = files[i];
    const GrayImage image = read_image(path, [&, &file = path](std::int64_t height, std::int64_t width) {
      if (height == set.height && width == set.width) return;
      usage_error("{}: {}x{} pixels, and other images have {}x{}: all must be of one size", file.string(), height,
                  width, set.height, set.width);
    });
    std::copy(image.pixels.begin(), image.pixels.end(), set.images.begin() + static_cast<std::ptrdiff_t>(i * pixels));
    set.labels[i] = label;
  }
}

ImageDataset load_part(const ImageFolders::Files& files, std::int64_t height, std::int64_t width) {
  ImageDataset set;
  set.count = static_cast<std::int64_t>(files.size());
  set.height = height;
  set.width = width;
  const std::uint64_t bytes = files.size() * static_cast<std::uint64_t>(height * width);
  if (bytes > kMostBytes) {
    usage_error("{}: {} bytes of images, more than {}", files[0].first.parent_path().string(), bytes, kMostBytes);
  }
  set.images.resize(bytes);
  set.labels.resize(files.size());
  const std::size_t threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 8);
  std::vector<std::future<void>> parts;
  for (std::size_t i = 0; i < threads; ++i) {
    parts.push_back(std::async(std::launch::async, [&, i] {
      decode(files, files.size() * i / threads, files.size() * (i + 1) / threads, set);
    }));
  }
  for (std::future<void>& part : parts) part.wait();
  for (std::future<void>& part : parts) part.get();
  return set;
}

}  // namespace

std::optional<ImageFolders> find_image_folders(const fs::path& folder) {
  ClassFiles train = classes_in(folder / "train");
  ClassFiles test = test_classes_in(folder);
  if (train.empty() && test.empty()) {
    train = classes_in(folder);
    if (train.empty()) return std::nullopt;
    test = hold_out(train);
  }
  if (train.empty())
    usage_error("{}: images for testing, and none in {}", folder.string(), (folder / "train").string());
  check_classes(folder, train, test);
  ImageFolders folders;
  folders.classes = in_order(train);
  folders.train = labelled(train, folders.classes);
  folders.test = labelled(test, folders.classes);
  return folders;
}

ImageData load_image_folders(const ImageFolders& folders) {
  const fs::path& first = folders.train.at(0).first;
  const GrayImage image =
      read_image(first, [&](std::int64_t height, std::int64_t width) { check_first(first, height, width); });
  ImageDataset train = load_part(folders.train, image.height, image.width);
  ImageDataset test = load_part(folders.test, image.height, image.width);
  return {std::move(train), std::move(test), folders.classes};
}

}  // namespace ddptrain
