#include "runtime/train/gradient_tree.h"

#include <bit>

#include "runtime/core/error.h"

namespace ddptrain {

GradientTree::GradientTree(const ParameterArena& arena, std::int64_t neighbours, Device& device,
                           Communicator& communicator)
    : arena_(arena),
      neighbours_(neighbours),
      device_(device),
      ops_(device.get<OptimizerOps>()),
      communicator_(communicator),
      sum_type_(master_dtype(device.precision())),
      sent_type_(neighbours > 1 ? sum_type_ : arena.gradient_type()) {
  const auto is_power_of_two = [](std::int64_t n) {
    return n > 0 && std::has_single_bit(static_cast<std::uint64_t>(n));
  };
  DDP_CHECK(is_power_of_two(neighbours) && is_power_of_two(communicator.size()), "a tree of {} neighbours on {} ranks",
            neighbours, communicator.size());
  depth_ = static_cast<std::size_t>(std::countr_zero(static_cast<std::uint64_t>(neighbours)));
  // With two ranks, an all-reduce adds two numbers: the same in any order, and rounded once.
  const bool exchanges = communicator.size() > 2 || (communicator.size() == 2 && sent_type_ != arena.gradient_type());
  const bool sends_a_level = exchanges && sent_type_ != arena.gradient_type();
  const std::size_t levels = std::max<std::size_t>(depth_, sends_a_level ? 2 : 0);
  for (std::size_t i = 0; i < levels; ++i) levels_.push_back(device.allocate(type_of(i), {arena.plan().size}));
  if (!exchanges) return;
  const std::size_t bytes = static_cast<std::size_t>(arena.plan().size) * size_of(sent_type_);
  // As the memory that is sent from: see Communicator::all_to_all().
  inbox_ = sent_type_ == arena.gradient_type() ? communicator.allocate(bytes) : device.allocate(bytes);
}

std::size_t GradientTree::bytes() const { return total_bytes(levels_) + inbox_.bytes(); }

void GradientTree::keep(std::int64_t neighbour) {
  DDP_CHECK(neighbour >= 0 && neighbour + 1 < neighbours_, "neighbour {} of {} to be kept", neighbour, neighbours_);
  const Stream stream = device_.compute_stream();
  const Span span(device_.timeline(), Lane::compute, stream, "keep gradients");
  const auto complete = static_cast<std::size_t>(std::countr_one(static_cast<std::uint64_t>(neighbour)));
  const Tensor gradients = all_gradients();
  if (complete == 0) return device_.copy(levels_[0].data(), gradients.data, gradients.bytes(), stream);
  std::vector<Tensor> nodes = {gradients};
  for (std::size_t i = 0; i < complete; ++i) nodes.push_back(levels_[i].view(type_of(i), {arena_.plan().size}));
  ops_.add_nodes(nodes, levels_[complete].view(type_of(complete), {arena_.plan().size}), stream);
}

void GradientTree::fold(std::size_t bucket, Stream stream) {
  fold_into(arena_.bucket_gradients(bucket), bucket, stream);
}

Communicator::Ticket GradientTree::exchange(std::size_t bucket, Stream stream) {
  fold_into(outgoing(bucket), bucket, stream);
  return communicator_.all_to_all(outgoing(bucket), slice(inbox_, sent_type_, bucket), stream);
}

void GradientTree::add(std::size_t bucket, Stream stream) {
  Tensor leaves = slice(inbox_, sent_type_, bucket);
  leaves.shape = {communicator_.size(), leaves.size() / communicator_.size()};
  ops_.add_tree(leaves, own_part(communicator_, arena_.bucket_gradients(bucket)), stream);
}

Communicator::Ticket GradientTree::gather(std::size_t bucket, Stream stream) {
  return communicator_.all_gather(arena_.bucket_gradients(bucket), stream);
}

/// Of the whole arena.
Tensor GradientTree::all_gradients() const {
  return {arena_.bucket_gradients(0).data, arena_.gradient_type(), {arena_.plan().size}};
}

Tensor GradientTree::slice(const Buffer& buffer, DType dtype, std::size_t bucket) const {
  const Bucket& b = arena_.plan().buckets.at(bucket);
  char* first = static_cast<char*>(buffer.data()) + static_cast<std::size_t>(b.begin) * size_of(dtype);
  return {first, dtype, {b.size}};
}

/// Where this rank's sum is before it is sent.
Tensor GradientTree::outgoing(std::size_t bucket) const {
  return sent_type_ == arena_.gradient_type() ? arena_.bucket_gradients(bucket)
                                              : slice(levels_.back(), sent_type_, bucket);
}

void GradientTree::fold_into(const Tensor& to, std::size_t bucket, Stream stream) {
  if (depth_ == 0) return;
  std::vector<Tensor> nodes = {arena_.bucket_gradients(bucket)};
  for (std::size_t i = 0; i < depth_; ++i) nodes.push_back(slice(levels_[i], type_of(i), bucket));
  ops_.add_nodes(nodes, to, stream);
}

}  // namespace ddptrain
