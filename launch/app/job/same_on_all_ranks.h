#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/core/hash.h"
#include "runtime/train/dataset.h"

namespace ddptrain {

using NamedValues = std::vector<std::pair<std::string, std::string>>;

/// All ranks throw the same UsageError if a value differs. The message has its name, its values and their ranks. Ranks
/// may have different names. Collective.
void require_same_values(const World& world, const NamedValues& mine);

/// The data of a rank.
struct HeldData {
  int node = 0;
  std::string host;
  std::string size;             ///< The size of all data, as text.
  SharedHash::Value hash = {};  ///< Hash of this rank's share. The ranks of a node share the data.
};

/// Says which nodes have different data. Empty if all have the same.
std::string data_differences(const std::vector<HeldData>& of_ranks);

/// Size and hash of the data, as text. All ranks throw the same UsageError if sizes differ between ranks or contents
/// between nodes. Collective.
std::string require_same_data(const World& world, const DataContent& content);

}  // namespace ddptrain
