#pragma once
// The services of the wing for methods (services/worker/methods) for the worker. Nobody outside
// includes its headers. It has three doors:
//
//   prompt_way.h                how a prompt gets its KV
//   compute/decode_reader.h     how decode steps read a context; context_opener.h opens it
//   recipe_stage.h              what a recipe names before its codec
//
// These functions open them. The build says who defines them: methods/built_methods.cc, or
// no_methods.cc where it is without the wing (CAIRN_METHODS=OFF). That one refuses what it is asked
// for with UNIMPLEMENTED, which names the option.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cairn/client/cache_client.h"
#include "cairn/common/clock.h"
#include "cairn/common/hash.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/status.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/wakeup.h"
#include "common/recipe/recipe.h"
#include "model/model.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/context_opener.h"
#include "services/worker/engine/prompt_way.h"
#include "services/worker/engine/recipe_stage.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/session/kv_codec.h"
#include "services/worker/session/prefix_session.h"
#include "services/worker/session/push_queue.h"
#include "services/worker/session/worker_namespace.h"

namespace cairn::worker {

struct PublishedNamespace;

// The services that ways to a prompt's KV are made of. Everything must outlive them.
struct MethodServices {
  Transformer& transformer;
  const model::Model& model;
  KvPool& pool;
  const Clock& clock;
  std::function<void()> make_room;  // Called when the pool is short, before it is tried again.
  // All null without a cache.
  client::CacheClient* client = nullptr;
  PrefixSession* session = nullptr;
  const KvCodec* codec = nullptr;
  PushQueue* push = nullptr;      // In the background.
  PushQueue* own_push = nullptr;  // A way that waits for its own pushes drives it, nobody else.
  Executor* executor = nullptr;
  Wakeup* wakeup = nullptr;  // The engine's.
  Duration match_deadline{0};
};

namespace methods {

// Whether this build has the recipe's stage, if it names one. Before anything is loaded.
Status CheckStage(const Recipe& recipe);
// Null: the recipe, which is the value of `inputs.recipe`, has no stage. FAILED_PRECONDITION: a
// calibration that it names cannot be read.
Result<std::unique_ptr<const RecipeStage>> StageOf(const Recipe& recipe,
                                                   const NamespaceInputs& inputs);
// For the namespaces that have a stage. All must outlive it.
std::unique_ptr<StagePublisher> NewStagePublisher(Transformer& transformer,
                                                  const model::Model& model, PushQueue& push,
                                                  std::span<const PublishedNamespace> published);

// For prompts that are longer than the context and lose their oldest tokens: what the node has of
// the rest is turned to its new positions. Null: the rest is computed again. REQUIRES: a cache and
// the recipe raw.
std::unique_ptr<PromptWays> NewTurnedPrompts(const MethodServices& services);

// INVALID_ARGUMENT, which names the policy or parameter, the value and what was expected.
Status CheckReadPolicy(std::string_view policy);
// Near memory of one context, in bytes.
struct NearNeeds {
  uint64_t most = 0;   // Of one of all tokens, if there is no limit.
  uint64_t least = 0;  // So that one of a block can be read.
};
// `tokens`: of the longest context. Errors: as CheckReadPolicy, or the policy does not suit the
// model.
Result<NearNeeds> NearNeedsOf(std::string_view policy, const KvLayout& kv, int64_t tokens);
struct ReadingInputs {
  std::string_view policy;
  uint64_t budget = 0;    // Near memory of all requests. 0: no limit.
  uint32_t requests = 1;  // That share it evenly.
  int32_t heads = 0;      // Heads of queries, in a layer.
  KvLayout kv;
  Digest weights;                // The digest of the model file.
  std::string_view calibration;  // As NamespaceInputs.
  const Clock& clock;
  // Where indexes are kept: the node, and the namespace of the KV. Null: each is made when it is
  // needed. The client must outlive what is made.
  client::CacheClient* client = nullptr;
  const NamespaceSpec* spec = nullptr;
};
// Errors: as CheckReadPolicy. FAILED_PRECONDITION or INVALID_ARGUMENT: a calibration that the
// policy names cannot be read, or the policy does not suit the model.
Result<std::unique_ptr<const ContextOpener>> NewContextOpener(const ReadingInputs& inputs);

}  // namespace methods
}  // namespace cairn::worker
