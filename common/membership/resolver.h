#pragma once
// Look-ups of names, as an injected dependency.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::membership {

enum class RecordType { kA, kAaaa, kSrv };

struct Record {
  std::string host = {};  // An IP address, or of SRV a name.
  uint16_t port = 0;      // The port for records of type SRV only.
};

// Thread-safe.
class Resolver {
 public:
  // No records: the name exists without any of this type. NOT_FOUND: there is no such name. Any
  // other error: nobody answered, or not with a whole answer.
  using Done = std::function<void(Result<std::vector<Record>>)>;

  virtual ~Resolver() = default;
  // Calls back once, on any thread, possibly inside this call; when the resolver goes away, with
  // CANCELLED.
  virtual void Resolve(const std::string& name, RecordType type, Done done) = 0;
};

}  // namespace cairn::membership
