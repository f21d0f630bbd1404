#pragma once
// A cache node's numbers for people and for programs.

#include <span>
#include <string>

#include "cairn/client/types.h"
#include "tools/cairn/output/json.h"
#include "tools/cairn/output/terminal.h"

namespace cairn::cli {

std::string StatText(const client::NodeStats& stats,
                     std::span<const client::NamespaceInfo> namespaces, const Terminal& terminal);
Json StatJson(const client::NodeStats& stats, std::span<const client::NamespaceInfo> namespaces);
// The same of a node whose namespaces are not known: null, and why. An empty list would say that
// there are none.
Json StatJsonWithout(const client::NodeStats& stats, const std::string& why);

}  // namespace cairn::cli
