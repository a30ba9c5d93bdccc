#include "data/text/tokens.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

const void* share(const TokenPart& part, const TokenSegment& segment, std::size_t bytes, Device& device) {
  const void* shared = device.share_host_memory(segment.tokens, bytes);
  if (shared == nullptr) {
    usage_error(
        "the {} has {} tokens, more than are copied to the GPU ({} GiB), and the GPU cannot read the host's memory. "
        "Give fewer shards.",
        part.name, part.count(), kResidentTokenBytes >> 30);
  }
  return shared;
}

const void* copy(const TokenSegment& segment, std::size_t bytes, Device& device, std::vector<Buffer>& memory) {
  memory.push_back(device.allocate(bytes));
  device.copy_to_device(memory.back().data(), segment.tokens, bytes);
  return memory.back().data();
}

TokenSource source_of(const TokenPart& part, std::int64_t sequence, Device& device, std::vector<Buffer>& memory) {
  const bool copies = device.has_own_memory() && part.count() * part.token_bytes <= kResidentTokenBytes;
  std::vector<TokenSegmentView> segments;
  TokenSource source = windows_of(part, sequence, segments);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const TokenSegment& segment = part.segments[i];
    const auto bytes = static_cast<std::size_t>(segment.count * part.token_bytes);
    segments[i].tokens = copies ? copy(segment, bytes, device, memory) : share(part, segment, bytes, device);
  }
  memory.push_back(device.allocate(segments.size() * sizeof(TokenSegmentView)));
  device.copy_to_device(memory.back().data(), segments.data(), memory.back().bytes());
  source.segments = static_cast<const TokenSegmentView*>(memory.back().data());
  return source;
}

}  // namespace

ResidentTokens make_resident(const TokenDataset& data, Device& device) {
  ResidentTokens resident;
  resident.train = source_of(data.text().train, data.sequence(), device, resident.memory);
  resident.validation = source_of(data.text().validation, data.sequence(), device, resident.memory);
  return resident;
}

}  // namespace ddptrain
