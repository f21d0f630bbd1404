#pragma once
// A bare client over TCP and HTTP/1.1: it sends whatever the caller wants, and reads as much or as
// little. Thread-safe.

#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/clock.h"
#include "protocol/shm/socket.h"

namespace cairn::fault {

// A connection to "127.0.0.1:PORT" that does not block. Invalid: refused.
shm::Descriptor DialTcp(const std::string& address);
// What the socket takes at once.
void SendSome(const shm::Descriptor& socket, std::string_view text);
// False: the server closed, `stop` was requested or the time passed first.
bool SendAll(const shm::Descriptor& socket, std::string_view text, const std::stop_token& stop,
             Duration deadline);
// At least a byte and at most `most`. Empty: the end, `stop` or no time left.
std::string ReadSome(const shm::Descriptor& socket, size_t most, const std::stop_token& stop,
                     Duration deadline);

// "POST /path": a request that asks the server to close the connection after its answer. `headers`:
// lines without their ends.
std::string HttpRequest(const std::string& method_and_path, std::string_view body,
                        const std::vector<std::string>& headers = {});

struct HttpReply {
  int status = 0;      // 0: no answer.
  std::string body;    // Without the chunks' frames.
  bool whole = false;  // It came to its end.
};
// Sends the request on a connection of its own.
HttpReply AskHttp(const std::string& address, std::string_view request,
                  const std::stop_token& stop = {}, Duration deadline = std::chrono::seconds(20));

// The values of all fields "text" of JSON, or of events with JSON, one after the other.
std::string TextsOf(std::string_view json);

}  // namespace cairn::fault
