#pragma once
// Requests and answers of HTTP, as the server's users see them.

#include <string>
#include <string_view>
#include <vector>

#include "common/memory/charged_string.h"

namespace cairn::http {

struct Header {
  std::string name;
  std::string value;
};

struct Request {
  std::string method;  // As sent: "GET".
  std::string path;    // Without the query, as sent: percent signs are not decoded.
  std::string query;   // After the question mark.
  std::vector<Header> headers;
  // Counts among the bodies of all requests until whoever handles the request lets go of it.
  ChargedString body;

  // The value of the first header with this name, or nullptr. Names have no case.
  const std::string* Find(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  // More headers. The server adds Content-Type, Content-Length or Transfer-Encoding, Connection
  // and Date. REQUIRES: neither names nor values have line ends.
  std::vector<Header> headers = {};
  std::string body = {};
};

bool EqualNames(std::string_view a, std::string_view b);  // ASCII, without case.
std::string_view ReasonOf(int status);

}  // namespace cairn::http
