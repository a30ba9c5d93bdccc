#pragma once

#include <cstdint>
#include <deque>

#include "runtime/device/device.h"

namespace ddptrain {

/// Allocates a transformer's activations [batch, sequence, columns].
class Activations {
 public:
  /// For at most `batch` windows of at most `sequence` tokens. Between layers their rows are divided into `parts`
  /// parts. The device outlives the object.
  Activations(Device& device, std::int64_t batch, std::int64_t sequence, std::int64_t parts = 1)
      : device_(device), batch_(batch), sequence_(sequence), parts_(parts) {}

  Tensor activation(std::int64_t columns) { return activation(device_.dtype(), columns); }
  Tensor activation(DType dtype, std::int64_t columns) { return allocate(dtype, {batch_, sequence_, columns}); }
  /// One part of the rows of an activation.
  Tensor part(std::int64_t columns) { return allocate(device_.dtype(), {1, part_rows(), columns}); }
  std::int64_t parts() const { return parts_; }
  std::int64_t part_rows() const { return batch_ * sequence_ / parts_; }
  /// Statistics of normalisations.
  Tensor statistics(const Shape& shape) { return allocate(master_dtype(device_.precision()), shape); }
  Tensor allocate(DType dtype, const Shape& shape) {
    buffers_.push_back(device_.allocate(dtype, shape));
    return buffers_.back().view(dtype, shape);
  }

  std::int64_t batch() const { return batch_; }
  std::int64_t sequence() const { return sequence_; }
  std::size_t bytes() const { return total_bytes(buffers_); }

 private:
  Device& device_;
  std::int64_t batch_;
  std::int64_t sequence_;
  std::int64_t parts_;
  std::deque<Buffer> buffers_;
};

/// The size of a batch.
struct BatchShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;

  std::int64_t rows() const { return batch * sequence; }
  /// The size of one of `parts` equal parts: whole windows if possible, otherwise rows.
  BatchShape part(std::int64_t parts) const {
    return batch % parts == 0 ? BatchShape{batch / parts, sequence} : BatchShape{1, rows() / parts};
  }
  void fit(Tensor& activation) const { activation.shape = {batch, sequence, activation.shape.back()}; }
};

/// [rows, columns] of an activation [batch, sequence, columns].
inline Tensor flat(const Tensor& activation) {
  Tensor matrix = activation;
  matrix.shape = {activation.size() / activation.shape.back(), activation.shape.back()};
  return matrix;
}

}  // namespace ddptrain
