#pragma once

#include <array>
#include <filesystem>
#include <optional>

#include "data/images/images.h"

namespace ddptrain {

/// The files of a data set of images in IDX, such as MNIST: images and labels for training, images and labels for
/// tests.
using IdxSet = std::array<std::filesystem::path, 4>;

/// Finds the set in `path`: a folder, or a folder and a prefix of file names (emnist/emnist-balanced). The names are
/// those of MNIST, Fashion-MNIST, KMNIST and EMNIST: [PREFIX-]train-images-idx3-ubyte, train-labels-idx1-ubyte, and
/// t10k- or test- instead of train-. Each may end in .gz, and may have "." instead of "-" before idx. Nothing if no
/// file has such a name. UsageError if files of a set are missing, or if there are several sets.
std::optional<IdxSet> find_idx_set(const std::filesystem::path& path);

/// Reads a set of at most 1,000,000 images of one size. Labels are classes. UsageError, naming the file, if files are
/// damaged or do not belong together.
ImageData load_idx_set(const IdxSet& set);

}  // namespace ddptrain
