#include "runtime/train/resident_data.h"

#include <vector>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

class ResidentImages final : public ResidentData {
 public:
  ResidentImages(const ImageDataset& dataset, Device& device)
      : count_(dataset.count),
        images_(device.allocate(dataset.images.size())),
        labels_(device.allocate(dataset.labels.size())),
        images_view_(images_.view(DType::u8, {dataset.count, dataset.height, dataset.width})),
        labels_view_(labels_.view(DType::u8, {dataset.count})) {
    DDP_CHECK(images_view_.bytes() == dataset.images.size() && labels_view_.bytes() == dataset.labels.size(),
              "a data set of {} images of {}x{} with {} bytes of images and {} labels", dataset.count, dataset.height,
              dataset.width, dataset.images.size(), dataset.labels.size());
    device.copy_to_device(images_.data(), dataset.images.data(), dataset.images.size());
    device.copy_to_device(labels_.data(), dataset.labels.data(), dataset.labels.size());
  }

  std::int64_t count() const override { return count_; }
  Batch batch(const SampleOrder& order, StepRef step, std::int64_t rows) const override {
    return ImageBatch{images_view_, labels_view_, order, step, rows};
  }

 private:
  std::int64_t count_;
  Buffer images_;
  Buffer labels_;
  Tensor images_view_;
  Tensor labels_view_;
};

class ResidentTokens final : public ResidentData {
 public:
  ResidentTokens(const TokenPart& part, std::int64_t sequence, Device& device) : windows_(part, sequence) {
    std::vector<TokenSegmentView> segments = windows_.segments();
    const bool copies = device.kind() != DeviceKind::cpu && part.count() * part.token_bytes <= kResidentTokenBytes;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const auto bytes = static_cast<std::size_t>(part.segments[i].count * part.token_bytes);
      segments[i].tokens = copies ? copy(segments[i].tokens, bytes, device) : share(part, i, bytes, device);
    }
    segments_ = device.allocate(segments.size() * sizeof(TokenSegmentView));
    device.copy_to_device(segments_.data(), segments.data(), segments_.bytes());
    source_ = windows_.source();
    source_.segments = static_cast<const TokenSegmentView*>(segments_.data());
  }

  std::int64_t count() const override { return windows_.count(); }
  Batch batch(const SampleOrder& order, StepRef step, std::int64_t rows) const override {
    return TokenBatch{source_, order, step, rows};
  }

 private:
  const void* copy(const void* host, std::size_t bytes, Device& device) {
    tokens_.push_back(device.allocate(bytes));
    device.copy_to_device(tokens_.back().data(), host, bytes);
    return tokens_.back().data();
  }

  static const void* share(const TokenPart& part, std::size_t segment, std::size_t bytes, Device& device) {
    const void* shared = device.share_host_memory(part.segments[segment].tokens, bytes);
    if (shared == nullptr) {
      usage_error(
          "the {} has {} tokens, more than are copied to the GPU ({} GiB), and the GPU cannot read the host's "
          "memory. Give fewer shards.",
          part.name, part.count(), kResidentTokenBytes >> 30);
    }
    return shared;
  }

  TokenWindows windows_;
  std::vector<Buffer> tokens_;
  Buffer segments_;
  TokenSource source_;
};

}  // namespace

std::unique_ptr<ResidentData> make_resident(const TokenPart& part, std::int64_t sequence, Device& device) {
  return std::make_unique<ResidentTokens>(part, sequence, device);
}

ResidentSplits make_resident(const TokenData& data, std::int64_t sequence, Device& device) {
  return {make_resident(data.train, sequence, device), make_resident(data.validation, sequence, device)};
}

std::unique_ptr<ResidentData> make_resident(const ImageDataset& dataset, Device& device) {
  return std::make_unique<ResidentImages>(dataset, device);
}

ResidentSplits make_resident(const ImageData& data, Device& device) {
  return {make_resident(data.train, device), make_resident(data.test, device)};
}

}  // namespace ddptrain
