#pragma once

#include <cstdint>
#include <deque>

#include "runtime/device/device.h"

namespace ddptrain {

/// Memory of a transformer's activations [batch, sequence, columns].
class Activations {
 public:
  /// For at most `batch` windows of at most `sequence` tokens, whose rows between layers are divided into so many
  /// parts. The device outlives this.
  Activations(Device& device, std::int64_t batch, std::int64_t sequence, std::int64_t parts = 1)
      : device_(device), batch_(batch), sequence_(sequence), parts_(parts) {}

  Tensor activation(std::int64_t columns) { return activation(device_.dtype(), columns); }
  Tensor activation(DType dtype, std::int64_t columns) { return allocate(dtype, {batch_, sequence_, columns}); }
  /// This part's rows of an activation.
  Tensor part(std::int64_t columns) { return allocate(device_.dtype(), {1, part_rows(), columns}); }
  std::int64_t parts() const { return parts_; }
  std::int64_t part_rows() const { return batch_ * sequence_ / parts_; }
  /// What normalisations keep of each of these numbers.
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

/// What of that memory a batch takes.
struct BatchShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;

  std::int64_t rows() const { return batch * sequence; }
  /// Of one of equal parts of the rows: whole windows, or a stretch of rows.
  BatchShape part(std::int64_t parts) const {
    return batch % parts == 0 ? BatchShape{batch / parts, sequence} : BatchShape{1, rows() / parts};
  }
  void fit(Tensor& activation) const { activation.shape = {batch, sequence, activation.shape.back()}; }
};

/// [rows, columns] of an activation [batch, sequence, columns].
Tensor flat(const Tensor& activation);

}  // namespace ddptrain
