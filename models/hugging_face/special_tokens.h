#pragma once

#include <string>

#include "models/hugging_face/model_config.h"
#include "models/workload.h"

namespace ddptrain {

/// Those of a model with this config.json. If there is a generation_config.json beside it that names end tokens, these
/// count, as in transformers. Ids that are no numbers from 0 on are left out. UsageError if one of the files is no JSON
/// object.
SpecialTokens special_tokens_of(const ModelConfig& config);
/// As config.json has them: null, a number or a list.
nlohmann::json special_token_json(const SpecialTokens& tokens, const std::string& name);

}  // namespace ddptrain
