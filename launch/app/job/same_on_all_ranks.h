#pragma once

#include <string>
#include <vector>

#include "launch/app/flags/named_values.h"
#include "runtime/comm/world.h"
#include "runtime/core/hash.h"
#include "runtime/train/dataset.h"

namespace ddptrain {

/// All ranks throw the same UsageError if a value differs. The message has its name, its values and their ranks. Ranks
/// may have different names. Collective.
void require_same_values(const World& world, const NamedValues& mine);

/// For each rank, size and hash of the data of its node. `hashes`: of the share of each rank; the ranks of a node share
/// its data.
std::vector<std::string> data_of_nodes(const std::vector<int>& nodes, const std::vector<std::string>& sizes,
                                       const std::vector<SharedHash::Value>& hashes);

/// Size and hash of the data, as text. All ranks throw the same UsageError if sizes differ between ranks or contents
/// between nodes. Collective.
std::string require_same_data(const World& world, const DataContent& content);

}  // namespace ddptrain
