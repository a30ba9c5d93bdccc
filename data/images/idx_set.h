#pragma once

#include <filesystem>
#include <optional>

#include "data/images/images.h"

namespace ddptrain {

/// The four files of a data set of images in IDX, such as MNIST.
struct IdxSet {
  std::filesystem::path train_images;
  std::filesystem::path train_labels;
  std::filesystem::path test_images;
  std::filesystem::path test_labels;
};

/// The set in `path`: a folder, or a folder and what the files' names begin with (emnist/emnist-balanced). Names are
/// those under which MNIST, Fashion-MNIST, KMNIST and EMNIST are distributed: [PREFIX-]train-images-idx3-ubyte,
/// train-labels-idx1-ubyte and t10k- or test- in place of train-, each also with .gz, and "." in place of a "-" before
/// idx. Nothing where no file has such a name; UsageError where files of a set are missing, or there are several sets.
std::optional<IdxSet> find_idx_set(const std::filesystem::path& path);

/// Reads a set: all images of one size, at most 1,000,000 of them; labels are classes. UsageError, naming the file,
/// where files are damaged or do not belong together.
ImageData load_idx_set(const IdxSet& set);

}  // namespace ddptrain
