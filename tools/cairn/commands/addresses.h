#pragma once
// Lists of addresses on the command line.

#include <sstream>
#include <string>
#include <vector>

namespace cairn::cli {

// "a:1,b:2".
inline std::vector<std::string> SplitAddresses(const std::string& list) {
  std::vector<std::string> addresses;
  std::stringstream in(list);
  for (std::string address; std::getline(in, address, ',');) {
    if (!address.empty()) addresses.push_back(address);
  }
  return addresses;
}

}  // namespace cairn::cli
