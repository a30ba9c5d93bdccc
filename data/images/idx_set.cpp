#include "data/images/idx_set.h"

#include <algorithm>
#include <array>
#include <future>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "data/images/idx.h"
#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

/// Of an IdxSet.
constexpr std::array<const char*, 4> kFiles = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                               "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

/// "emnist-letters-test-images-idx3-ubyte.gz": the place of the file in a set, and the set's name "emnist-letters".
struct Name {
  std::size_t place;
  std::string set;
};

std::optional<Name> parse_name(const std::string& name) {
  static const std::regex form(R"((?:([^.].*)-)?(train|t10k|test)-(?:(images)[-.]idx3|labels[-.]idx1)-ubyte(?:\.gz)?)");
  std::smatch parts;
  if (!std::regex_match(name, parts, form)) return std::nullopt;
  const std::size_t of_part = parts[2] == "train" ? 0 : 2;
  return Name{of_part + (parts[3].matched ? 0 : 1), parts[1]};
}

/// By their names, as far as their files are there; a plain file comes before a compressed one.
std::map<std::string, IdxSet> sets_in(const fs::path& folder) {
  std::map<std::string, IdxSet> sets;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::optional<Name> name = parse_name(entry.path().filename().string());
    if (!name || !entry.is_regular_file(ignored)) continue;
    fs::path& file = sets[name->set][name->place];
    if (file.empty() || file.extension() == ".gz") file = entry.path();
  }
  return sets;
}

std::vector<std::string> missing_in(const std::string& set, const IdxSet& found) {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < kFiles.size(); ++i) {
    if (found[i].empty()) missing.push_back(fmt::format("{}{}{}[.gz]", set, set.empty() ? "" : "-", kFiles[i]));
  }
  return missing;
}

/// Damaged labels spread over all bytes.
void check_labels(const ImageDataset& part, const fs::path& path) {
  std::array<bool, 256> seen{};
  for (const std::uint8_t label : part.labels) seen[label] = true;
  const auto largest = std::max_element(part.labels.begin(), part.labels.end());
  const auto different = std::count(seen.begin(), seen.end(), true);
  if (*largest < 2 * different + 8) return;
  usage_error("{}: label {} at index {}, and only {} different labels: they are not classes counted from 0",
              path.string(), static_cast<int>(*largest), largest - part.labels.begin(), different);
}

ImageDataset read_part(const fs::path& images_path, const fs::path& labels_path) {
  IdxFile images = read_idx(images_path, kIdxImages);
  IdxFile labels = read_idx(labels_path, kIdxLabels);
  if (images.dims.at(0) != labels.dims.at(0)) {
    usage_error("{}: {} images, but {} labels in {}", images_path.string(), images.dims.at(0), labels.dims.at(0),
                labels_path.string());
  }
  ImageDataset set;
  set.count = images.dims[0];
  set.height = images.dims[1];
  set.width = images.dims[2];
  set.images = std::move(images.bytes);
  set.labels = std::move(labels.bytes);
  check_labels(set, labels_path);
  return set;
}

}  // namespace

std::optional<IdxSet> find_idx_set(const fs::path& path) {
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  const fs::path folder = is_folder ? path : path.parent_path().empty() ? fs::path(".") : path.parent_path();
  std::map<std::string, IdxSet> sets = sets_in(folder);
  if (!is_folder) std::erase_if(sets, [&](const auto& set) { return set.first != path.filename().string(); });
  if (sets.empty()) return std::nullopt;
  if (sets.size() > 1) std::erase_if(sets, [](const auto& set) { return !missing_in(set.first, set.second).empty(); });
  if (sets.size() == 1) {
    const auto& [name, found] = *sets.begin();
    const std::vector<std::string> missing = missing_in(name, found);
    if (missing.empty()) return found;
    usage_error("{}: of an IDX data set, files are missing: {}", folder.string(), fmt::join(missing, ", "));
  }
  std::vector<std::string> names;
  for (const auto& [name, found] : sets) names.push_back((folder / printable(name)).string());
  if (names.empty()) usage_error("{}: files of several IDX data sets, and none is complete", folder.string());
  usage_error("{}: several IDX data sets. Give one of {}", folder.string(), fmt::join(names, ", "));
}

ImageData load_idx_set(const IdxSet& set) {
  const auto& [train_images, train_labels, test_images, test_labels] = set;
  auto reading = std::async(std::launch::async, read_part, test_images, test_labels);
  ImageDataset train = read_part(train_images, train_labels);
  ImageDataset test = reading.get();
  if (train.height != test.height || train.width != test.width) {
    usage_error("{}: images of {}x{}, and those in {} have {}x{}", test_images.string(), test.height, test.width,
                train_images.string(), train.height, train.width);
  }
  return {std::move(train), std::move(test)};
}

}  // namespace ddptrain
