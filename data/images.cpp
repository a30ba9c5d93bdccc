#include "data/images.h"

#include "data/fashion_mnist.h"
#include "data/synthetic.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

constexpr std::int64_t kSyntheticCount = 60000;

ImageSource copy_to(Device& device, const ImageDataset& dataset, std::vector<Buffer>& memory) {
  const Tensor images{nullptr, DType::u8, {dataset.count, dataset.height, dataset.width}};
  const Tensor labels{nullptr, DType::u8, {dataset.count}};
  DDP_CHECK(images.bytes() == dataset.images.size() && labels.bytes() == dataset.labels.size(),
            "a data set of {} images of {}x{} with {} bytes of images and {} labels", dataset.count, dataset.height,
            dataset.width, dataset.images.size(), dataset.labels.size());
  const auto copy = [&](const std::vector<std::uint8_t>& bytes, const Shape& shape) {
    memory.push_back(device.allocate(bytes.size()));
    device.copy_to_device(memory.back().data(), bytes.data(), bytes.size());
    return memory.back().view(DType::u8, shape);
  };
  return {copy(dataset.images, images.shape), copy(dataset.labels, labels.shape)};
}

}  // namespace

DataContent ImageData::content() const { return {fmt::format("{} images", train.count + test.count), hash_}; }

void ImageData::hash_share(int reader, int readers) {
  hash_ = SharedHash(reader, readers);
  for (const ImageDataset* part : {&train, &test}) {
    hash_.add(part->images.data(), part->images.size());
    hash_.add(part->labels.data(), part->labels.size());
  }
}

std::function<ImageData()> find_images(const std::string& name, std::uint64_t seed) {
  const std::string synthetic = "synthetic";
  if (name == synthetic) return [seed] { return make_synthetic(kSyntheticCount, seed); };
  if (name.rfind(synthetic + ":", 0) == 0) {
    const std::string text = name.substr(synthetic.size() + 1);
    if (text.empty() || text.size() > 10 || text.find_first_not_of("0123456789") != std::string::npos) {
      usage_error("{}: give synthetic:COUNT, COUNT being a number of images", name);
    }
    return [seed, count = std::stoll(text)] { return make_synthetic(count, seed); };
  }
  return [folder = find_fashion_mnist(name)] { return load_fashion_mnist(folder); };
}

ResidentImages make_resident(const ImageData& data, Device& device) {
  ResidentImages resident;
  resident.train = copy_to(device, data.train, resident.memory);
  resident.test = copy_to(device, data.test, resident.memory);
  return resident;
}

}  // namespace ddptrain
