#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/images/images.h"

namespace ddptrain {

/// A data set as folders of image files, one for each class.
struct ImageFolders {
  using Files = std::vector<std::pair<std::filesystem::path, std::uint8_t>>;  ///< With their labels.

  std::vector<std::string> classes;  ///< Numbered in the order of their names, numbers by value.
  Files train;
  Files test;
};

/// `folder`/train/CLASS/*.png and `folder`/test/CLASS/*.png (or val, valid, validation), or `folder`/CLASS/*.png, of
/// which every tenth image of a class, in the order of names, is for testing. Images end in .png, .jpg, .jpeg or .pgm;
/// other files are left out. Nothing where there are no folders with images; UsageError where training has no images, a
/// class is not in training, or there are more than 256.
std::optional<ImageFolders> find_image_folders(const std::filesystem::path& folder);

/// Decodes the files, in parallel; they are of one size. UsageError, naming the file, where one cannot be read, is
/// damaged or of another size.
ImageData load_image_folders(const ImageFolders& folders);

}  // namespace ddptrain
