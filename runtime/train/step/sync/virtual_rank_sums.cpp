#include "runtime/train/step/sync/virtual_rank_sums.h"

#include <algorithm>
#include <bit>

#include "runtime/core/error.h"

namespace ddptrain {

VirtualRankSums::VirtualRankSums(const ParameterArena& arena, std::int64_t count, bool wide)
    : arena_(arena),
      count_(count),
      device_(arena.device()),
      ops_(device_.get<ReductionOps>()),
      wide_(wide),
      sum_type_(master_dtype(device_.precision())),
      depth_(static_cast<std::size_t>(std::countr_zero(static_cast<std::uint64_t>(count)))) {
  DDP_CHECK(count > 0 && std::has_single_bit(static_cast<std::uint64_t>(count)), "a tree of {} virtual ranks", count);
  const std::size_t levels = std::max<std::size_t>(depth_, wide ? 2 : 0);  // the last one holds a wide root
  for (std::size_t i = 0; i < levels; ++i) levels_.push_back(device_.allocate(type_of(i), {arena.plan().size}));
}

Tensor VirtualRankSums::level(std::size_t i, std::int64_t begin, std::int64_t size) const {
  return levels_[i].stretch(type_of(i), begin, size);
}

void VirtualRankSums::keep(std::int64_t i) {
  DDP_CHECK(i >= 0 && i + 1 < count_, "virtual rank {} of {} to be kept", i, count_);
  const Stream stream = device_.compute_stream();
  const Span span(device_.timeline(), Lane::compute, stream, "keep gradients");
  const auto complete = static_cast<std::size_t>(std::countr_one(static_cast<std::uint64_t>(i)));
  const std::int64_t size = arena_.plan().size;
  const Tensor gradients{arena_.bucket_gradients(0).data, arena_.gradient_type(), {size}};  // of all buckets
  if (complete == 0) {
    device_.copy(levels_[0].data(), gradients.data, gradients.bytes(), stream);
    return;
  }
  std::vector<Tensor> nodes = {gradients};
  for (std::size_t k = 0; k < complete; ++k) nodes.push_back(level(k, 0, size));
  ops_.add_nodes(nodes, level(complete, 0, size), stream);
}

void VirtualRankSums::fold(std::size_t bucket, Stream stream, bool is_sent) {
  if (depth_ == 0) return;
  const Bucket& b = arena_.plan().buckets.at(bucket);
  std::vector<Tensor> nodes = {arena_.bucket_gradients(bucket)};
  for (std::size_t k = 0; k < depth_; ++k) nodes.push_back(level(k, b.begin, b.size));
  ops_.add_nodes(nodes, is_sent ? sent(bucket) : arena_.bucket_gradients(bucket), stream);
}

Tensor VirtualRankSums::sent(std::size_t bucket) const {
  const Bucket& b = arena_.plan().buckets.at(bucket);
  return wide_ ? level(levels_.size() - 1, b.begin, b.size) : arena_.bucket_gradients(bucket);
}

}  // namespace ddptrain
