#pragma once
// Calls of tests at a node that answers: their deadlines are there to end a test that hangs.

#include <gtest/gtest.h>

#include "common/status/matchers.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client::testing {

inline const CallOptions kCall = {.deadline = std::chrono::seconds(60)};
inline const MatchOptions kMatch = {.deadline = std::chrono::seconds(60)};
inline const PushOptions kPush = {.deadline = std::chrono::seconds(60)};
inline const FetchOptions kFetch = {.progress = std::chrono::seconds(60),
                                    .deadline = std::chrono::seconds(120)};

// Opens the namespace and pushes the chain. All of it is stored, or the test fails.
inline void Store(CacheClient& client, const NamespaceSpec& spec, const Chain& chain) {
  ASSERT_OK(client.OpenNamespace(spec, kCall));
  const auto pushed = client.Push(Fingerprint(spec), chain.parts, kPush);
  ASSERT_OK(pushed);
  for (const Status& status : *pushed) ASSERT_OK(status);
}

}  // namespace cairn::client::testing
