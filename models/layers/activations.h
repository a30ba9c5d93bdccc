#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device/device.h"

namespace ddptrain {

/// The steps of a pass through `units` units, numbered from 0: forward of unit 0, 1, ..., then backward of the last
/// unit, and so on to unit 0. The forward pass of a unit is two steps: it enters the unit (the unit's first norm adds
/// the branch that the previous unit has left), and computes it.
class PassSteps {
 public:
  explicit PassSteps(std::int64_t units) : units_(units) {}

  std::int64_t enter(std::int64_t unit) const { return 2 * unit; }
  std::int64_t forward(std::int64_t unit) const { return 2 * unit + 1; }
  std::int64_t backward(std::int64_t unit) const { return 3 * units_ - 1 - unit; }
  std::int64_t last() const { return 3 * units_ - 1; }

 private:
  std::int64_t units_;
};

/// The steps of a pass during which a buffer holds values that are still needed. Outside of them its memory is free for
/// other buffers.
class Lifetime {
 public:
  Lifetime() = default;
  /// From step `first` to step `last`, both included.
  Lifetime(std::int64_t first, std::int64_t last) : spans_{{first, last}} {}

  /// Adds further steps, in which the values are computed again.
  Lifetime& again(std::int64_t first, std::int64_t last) {
    spans_.push_back({first, last});
    return *this;
  }
  bool meets(const Lifetime& other) const;
  std::int64_t steps() const;  ///< Their number.
  std::int64_t last() const;   ///< The last of them.

 private:
  struct Span {
    std::int64_t first;
    std::int64_t last;
  };
  std::vector<Span> spans_;
};

/// A buffer of Activations.
struct NamedBuffer {
  std::string name;
  DType dtype;
  Shape shape;
  Lifetime lifetime;
  Tensor* tensor;         ///< Its view, which belongs to a layer.
  std::size_t begin = 0;  ///< Offset in the common memory. A multiple of kBufferAlignment.

  std::size_t bytes() const;
};
inline constexpr std::size_t kBufferAlignment = 256;

/// Sets `begin` of each buffer. Two buffers share memory only if their lifetimes do not meet. Returns the bytes of all.
std::size_t place_buffers(std::vector<NamedBuffer>& buffers);

/// The memory of a transformer's activations. Layers ask for their buffers by name and lifetime; place() then places
/// them all.
class Activations {
 public:
  /// For at most `batch` windows of at most `sequence` tokens. Between layers their rows are divided among `slices`
  /// ranks. The device outlives the object.
  Activations(Device& device, std::int64_t batch, std::int64_t sequence, std::int64_t slices = 1)
      : device_(device), batch_(batch), sequence_(sequence), slices_(slices) {}

  /// Asks for memory. `tensor` gets dtype and shape now, and its data in use(). It must not move.
  void add(const std::string& name, DType dtype, const Shape& shape, const Lifetime& lifetime, Tensor& tensor);
  /// [batch, sequence, columns]
  void add(const std::string& name, std::int64_t columns, const Lifetime& lifetime, Tensor& tensor) {
    add(name, device_.dtype(), {batch_, sequence_, columns}, lifetime, tensor);
  }
  void add(const std::string& name, DType dtype, std::int64_t columns, const Lifetime& lifetime, Tensor& tensor) {
    add(name, dtype, {batch_, sequence_, columns}, lifetime, tensor);
  }
  /// One rank's slice of the rows of an activation.
  void add_rows(const std::string& name, std::int64_t columns, const Lifetime& lifetime, Tensor& tensor) {
    add(name, device_.dtype(), {1, slice_rows(), columns}, lifetime, tensor);
  }
  /// Statistics of normalisations, which have the type of master weights.
  void add_statistics(const std::string& name, const Shape& shape, const Lifetime& lifetime, Tensor& tensor) {
    add(name, master_dtype(device_.precision()), shape, lifetime, tensor);
  }
  /// Places all buffers. Called once.
  void place();
  /// Gives the buffers their memory, which is zero and has bytes() bytes.
  void use(Buffer memory);
  bool has_memory() const { return memory_.data() != nullptr; }

  std::int64_t batch() const { return batch_; }
  std::int64_t sequence() const { return sequence_; }
  std::int64_t slices() const { return slices_; }
  std::int64_t slice_rows() const { return batch_ * sequence_ / slices_; }
  const std::vector<NamedBuffer>& buffers() const { return buffers_; }
  std::size_t bytes() const { return bytes_; }  ///< Of all buffers, once they have been placed.

 private:
  Device& device_;
  std::int64_t batch_;
  std::int64_t sequence_;
  std::int64_t slices_;
  std::vector<NamedBuffer> buffers_;
  std::size_t bytes_ = 0;
  Buffer memory_;
};

/// One of `count` equal chunks of the windows of a pass. Ranks that split layers compute a chunk while another is
/// exchanged.
struct BatchChunk {
  std::size_t index = 0;
  std::size_t count = 1;

  bool is_first() const { return index == 0; }
  bool is_last() const { return index + 1 == count; }
  /// The chunk of a tensor whose leading dimension divides by `count`. Without data if the tensor has none.
  Tensor of(const Tensor& whole) const {
    if (count == 1 || !whole) return whole;
    const auto chunks = static_cast<std::int64_t>(count);
    const std::int64_t size = whole.size() / chunks;
    Tensor chunk = whole.stretch(static_cast<std::int64_t>(index) * size, size);
    chunk.shape = whole.shape;
    chunk.shape.front() /= chunks;
    return chunk;
  }
  /// The number of its first window among the `windows` of the pass.
  std::uint32_t first_window(std::int64_t windows) const {
    return static_cast<std::uint32_t>(index * (static_cast<std::size_t>(windows) / count));
  }
};

/// The size of a batch.
struct BatchShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  const std::int64_t* first_position = nullptr;  ///< See TokenBatch. Not null in generation only.

  std::int64_t rows() const { return batch * sequence; }
  /// The size of one of `slices` equal slices: whole windows if possible, otherwise rows.
  BatchShape slice(std::int64_t slices) const {
    return batch % slices == 0 ? BatchShape{batch / slices, sequence} : BatchShape{1, rows() / slices};
  }
  /// The chunks in which `slices` ranks that split layers compute the batch: two, if each of these ranks then has whole
  /// windows of a chunk, or rows of one window.
  std::vector<BatchChunk> chunks(std::int64_t slices) const {
    const std::int64_t half = batch / 2;
    const bool halves = slices > 1 && half > 0 && batch % 2 == 0 &&
                        (half % slices == 0 || (slices % half == 0 && half * sequence % slices == 0));
    return halves ? std::vector<BatchChunk>{{0, 2}, {1, 2}} : std::vector<BatchChunk>{{}};
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
