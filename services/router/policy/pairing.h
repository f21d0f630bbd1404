#pragma once
// Whether a prompt should be computed by one worker for another, or by the worker that answers.
//
// Costs are seconds, as in the choice of a worker: the seconds until the request's first token,
// and, for each request that decodes at the same time, the seconds by which its tokens come later.
// DistServe (Zhong et al., OSDI 2024) separates the two phases because a prompt delays all decodes
// of its batch. Here that is decided for each request, since a short prompt is not worth the way,
// and an idle worker delays nobody.

#include <cstdint>

namespace cairn::router {

// Numbers of a load report (LoadReport in proto/cairn/v1/worker.proto). Anything that is not a
// number of at least 0 counts as 0.
struct PairingLoad {
  double prefill_seconds = 0;            // For the prompts that wait or run there.
  double prefill_tokens_per_second = 0;  // 0: not known.
  double running_decodes = 0;
};

struct PairingQuestion {
  uint32_t compute_tokens = 0;  // Tokens of the prompt that the node does not have.
  uint32_t block_tokens = 64;
  PairingLoad prefill;  // The worker that would compute the prompt.
  PairingLoad decode;   // The one that answers.
  // Tokens whose KV goes through the cache node in a second, from push to fetch.
  double link_tokens_per_second = 0;  // 0: not known.
};

struct PairingAnswer {
  bool apart = false;
  double together_seconds = 0;  // Costs. 0: not known.
  double apart_seconds = 0;
  // Tokens of the prompt that the other worker would compute: whole blocks.
  uint32_t handed_tokens = 0;
};

// Plain arithmetic. Constant, so thread-safe.
class Pairing {
 public:
  struct Options {
    // Two workers are used only where they cost less than this part of one: estimates are rough,
    // and both are then busy.
    double margin = 0.9;
    // Blocks that are fetched at a time: the last ones are fetched when all is computed.
    double piece_blocks = 2;
    // The speeds of a worker and of the link, while they are not known.
    double prefill_tokens_per_second = 2'000;
    double link_tokens_per_second = 100'000;
  };
  explicit Pairing(const Options& options) : options_(options) {}
  Pairing() : Pairing(Options()) {}

  PairingAnswer Decide(const PairingQuestion& question) const;

 private:
  const Options options_;
};

}  // namespace cairn::router
