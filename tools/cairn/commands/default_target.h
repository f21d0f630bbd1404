#pragma once
// The address that a command uses when it was given none (launch/lookup.h).

#include <cstdio>

#include "tools/cairn/launch/lookup.h"

namespace cairn::cli {

// Says on stderr what it found, if that is not the default.
inline void Say(const DefaultTarget& target) {
  if (!target.note.empty()) std::fprintf(stderr, "cairn: %s\n", target.note.c_str());
}

// `given` if it is not empty. Otherwise as FindDefault, and says what it found.
inline Result<std::string> AddressOr(const std::string& given, Seek seek) {
  if (!given.empty()) return given;
  CAIRN_ASSIGN_OR_RETURN(const DefaultTarget target, FindDefault(seek, ThisMachine()));
  Say(target);
  return target.address;
}

}  // namespace cairn::cli
