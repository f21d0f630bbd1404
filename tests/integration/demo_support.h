#pragma once
// Helpers for tests of `cairn demo`: the tiny model's prompts and their keys.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "model/model.h"

namespace cairn::testing {

// The namespace that workers of the tiny model use at the node with this address. Leaves a block
// there, as a worker of this model does.
client::NamespaceInfo NamespaceOfWorkers(const std::string& address);

// The tiny model's chat template and tokenizer.
class TinyTokenizer {
 public:
  TinyTokenizer();
  // The tokens of a prompt, up to where the answer begins.
  std::vector<int32_t> Tokens(const std::vector<model::ChatMessage>& messages) const;

 private:
  std::shared_ptr<const model::Model> model_;
};

// A document as that of WriteSmallDocument, in the same place, of which the demo's questions and
// its chat both have a waymark: only so can other nodes of a cluster find such short prompts.
std::string WriteDocumentWithWaymarks(const std::string& directory);

}  // namespace cairn::testing
