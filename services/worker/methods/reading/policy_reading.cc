#include "services/worker/methods/reading/policy_reading.h"

#include <string>
#include <utility>

#include "common/log/log.h"
#include "services/worker/methods/reading/background_rows.h"
#include "services/worker/methods/reading/near_memory.h"
#include "services/worker/methods/reading/node_rows.h"
#include "services/worker/methods/reading/rotation_calibration.h"

namespace cairn::worker {
namespace {

OpenedContext Opened(std::unique_ptr<ContextReader> reader) {
  OpenedContext opened;
  opened.policy = reader->policy().ToString();
  opened.rows = reader->rows();
  opened.near_bytes = reader->near().total() - reader->near().own_bytes;
  opened.reader = std::move(reader);
  return opened;
}

ContextName NameOf(const ContextToRead& context) {
  return {.last_block = context.last_block, .trace = context.trace};
}

}  // namespace

Result<std::unique_ptr<const PolicyReading>> PolicyReading::Create(
    const methods::ReadingInputs& inputs) {
  std::unique_ptr<PolicyReading> reading(new PolicyReading(inputs.kv));
  ReadingTerms& terms = reading->terms_;
  CAIRN_ASSIGN_OR_RETURN(terms.policy, ParseReadPolicy(inputs.policy));
  terms.budget = {.bytes = inputs.budget, .requests = inputs.requests};
  terms.heads = inputs.heads;
  terms.backend = &kernels::BestCpuBackend();
  terms.clock = &inputs.clock;
  if (terms.policy.rotation != 0) {
    CAIRN_ASSIGN_OR_RETURN(
        KeyRotations rotations,
        LoadKeyRotations(
            std::string(inputs.calibration),
            {.digest = terms.policy.rotation, .weights = inputs.weights, .kv = inputs.kv}));
    terms.rotations = std::make_shared<const KeyRotations>(std::move(rotations));
  }
  const KvLayout& kv = inputs.kv;
  CAIRN_RETURN_IF_ERROR(CheckReading(terms, kv));
  // Prompts without a whole block could still be answered.
  const auto least =
      ShareBudget(terms.policy, kv, kv.block_tokens, kv.bytes_for(kv.block_tokens), terms.budget);
  if (!least.ok()) log::Warn("kv_budget_too_small", {{"error", Message(least.status())}});
  if (inputs.client != nullptr && IndexStore::Keeps(terms.policy)) {
    reading->indexes_ = std::make_unique<const IndexStore>(*inputs.client, *inputs.spec,
                                                           terms.policy, IndexStore::Options{});
    terms.indexes = reading->indexes_.get();
  }
  return reading;
}

Status PolicyReading::CheckBudget(int64_t rows, uint64_t own_bytes) const {
  return ShareBudget(terms_.policy, kv_, rows, own_bytes, terms_.budget).status();
}

Result<OpenedContext> PolicyReading::Open(const KvSequence& sequence, const ContextToRead& context,
                                          kernels::ThreadPool& pool) const {
  CAIRN_ASSIGN_OR_RETURN(
      std::unique_ptr<ContextReader> reader,
      OpenContext(terms_, sequence, context.rows, context.own_tokens, pool, NameOf(context)));
  return Opened(std::move(reader));
}

Result<OpenedContext> PolicyReading::OpenSpilled(EarlierKv& earlier, const SpillServices& node,
                                                 std::span<const BlockKey> keys,
                                                 const ContextToRead& context,
                                                 kernels::ThreadPool& pool) const {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<NodeRows> held,
                         NodeRows::Hold(node.client, *terms_.clock, node.session.spec(), kv_,
                                        node.session.fingerprint(), keys, {}, context.trace));
  WindowLayers layers(earlier);
  auto source =
      std::make_unique<BackgroundRows>(std::move(held), node.executor, *terms_.clock,
                                       BackgroundRows::Options{.row_bytes = kv_.row_bytes()});
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<ContextReader> reader,
                         OpenFarContext(terms_, kv_, layers, std::move(source), context.own_tokens,
                                        pool, NameOf(context)));
  return Opened(std::move(reader));
}

}  // namespace cairn::worker
