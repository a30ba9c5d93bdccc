#include "data/images/fashion_mnist.h"

#include "data/images/idx_set.h"
#include "runtime/core/error.h"

namespace ddptrain {

namespace fs = std::filesystem;

fs::path find_fashion_mnist() {
  std::string looked;
  for (const fs::path place : {"data/downloads/fashion-mnist", "/usr/share/datasets/fashion-mnist"}) {
    std::error_code ignored;
    if (fs::is_directory(place, ignored) && find_idx_set(place)) return place;
    looked += fmt::format("\n  {}", fs::absolute(place).string());
  }
  usage_error(
      "Fashion-MNIST not found. Looked in:{}\nFetch it with `launch/fetch-data fashion-mnist`, or install the "
      "package dataset-fashion-mnist, or give a folder of images (or set $DDPTRAIN_DATA).",
      looked);
}

std::vector<std::string> fashion_mnist_classes() {
  return {"T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"};
}

}  // namespace ddptrain
