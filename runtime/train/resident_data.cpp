#include "runtime/train/resident_data.h"

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

class ResidentImages final : public ResidentData {
 public:
  ResidentImages(const ImageDataset& dataset, Backend& backend)
      : count_(dataset.count),
        images_(backend.allocate(dataset.images.size())),
        labels_(backend.allocate(dataset.labels.size())),
        images_view_(images_.view(DType::u8, {dataset.count, dataset.height, dataset.width})),
        labels_view_(labels_.view(DType::u8, {dataset.count})) {
    DDP_CHECK(images_view_.bytes() == dataset.images.size() && labels_view_.bytes() == dataset.labels.size(),
              "a data set of {} images of {}x{} with {} bytes of images and {} labels", dataset.count, dataset.height,
              dataset.width, dataset.images.size(), dataset.labels.size());
    backend.copy_to_device(images_.data(), dataset.images.data(), dataset.images.size());
    backend.copy_to_device(labels_.data(), dataset.labels.data(), dataset.labels.size());
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

}  // namespace

std::unique_ptr<ResidentData> make_resident(const ImageDataset& dataset, Backend& backend) {
  return std::make_unique<ResidentImages>(dataset, backend);
}

ResidentSplits make_resident(const ImageData& data, Backend& backend) {
  return {make_resident(data.train, backend), make_resident(data.test, backend)};
}

}  // namespace ddptrain
