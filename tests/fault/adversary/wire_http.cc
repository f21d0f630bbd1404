#include "tests/fault/adversary/wire_http.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>

namespace cairn::fault {
namespace {

// Looks at `stop` so often.
constexpr int kLookMs = 50;

// False: `stop`, or no time left.
bool WaitFor(const shm::Descriptor& socket, int16_t events, const std::stop_token& stop,
             TimePoint end) {
  while (!stop.stop_requested() && SteadyClock::Get().Now() < end) {
    pollfd wait{socket.get(), events, 0};
    if (poll(&wait, 1, kLookMs) > 0) return true;
  }
  return false;
}

// Bytes of chunks without their frames. False: the last chunk is missing.
bool Unchunk(std::string_view chunks, std::string* body) {
  while (true) {
    const size_t line = chunks.find("\r\n");
    if (line == std::string_view::npos) return false;
    const size_t size = std::strtoul(std::string(chunks.substr(0, line)).c_str(), nullptr, 16);
    if (size == 0) return true;
    chunks.remove_prefix(line + 2);
    body->append(chunks.substr(0, size));
    if (chunks.size() < size + 2) return false;
    chunks.remove_prefix(size + 2);
  }
}

void AppendUtf8(uint32_t point, std::string* to) {
  const auto byte = [to](uint32_t value) { to->push_back(static_cast<char>(value)); };
  if (point < 0x80) return byte(point);
  if (point < 0x800) {
    byte(0xc0 | point >> 6);
  } else if (point < 0x10000) {
    byte(0xe0 | point >> 12);
    byte(0x80 | (point >> 6 & 0x3f));
  } else {
    byte(0xf0 | point >> 18);
    byte(0x80 | (point >> 12 & 0x3f));
    byte(0x80 | (point >> 6 & 0x3f));
  }
  byte(0x80 | (point & 0x3f));
}

uint32_t Hex4(std::string_view text, size_t at) {
  return static_cast<uint32_t>(std::strtoul(std::string(text.substr(at, 4)).c_str(), nullptr, 16));
}

// Appends the JSON text that begins at `at`, behind its quote. Returns where it ends.
size_t Unquote(std::string_view json, size_t at, std::string* to) {
  for (; at < json.size() && json[at] != '"'; ++at) {
    if (json[at] != '\\') {
      to->push_back(json[at]);
      continue;
    }
    if (++at == json.size()) break;
    if (json[at] == 'u') {
      uint32_t point = Hex4(json, at + 1);
      at += 4;
      if (point >= 0xd800 && point < 0xdc00) {
        point = 0x10000 + ((point & 0x3ff) << 10) + (Hex4(json, at + 3) & 0x3ff);
        at += 6;
      }
      AppendUtf8(point, to);
    } else {
      constexpr std::string_view kNames = "bfnrt";
      constexpr std::string_view kValues = "\b\f\n\r\t";
      const size_t known = kNames.find(json[at]);
      to->push_back(known == std::string_view::npos ? json[at] : kValues[known]);
    }
  }
  return at;
}

HttpReply ParseReply(std::string_view bytes) {
  HttpReply reply;
  const size_t head = bytes.find("\r\n\r\n");
  if (head == std::string_view::npos || bytes.size() < 12) return reply;
  reply.status = std::atoi(std::string(bytes.substr(9, 3)).c_str());
  std::string headers(bytes.substr(0, head));
  std::transform(headers.begin(), headers.end(), headers.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::string_view rest = bytes.substr(head + 4);
  if (headers.find("transfer-encoding: chunked") != std::string::npos) {
    reply.whole = Unchunk(rest, &reply.body);
    return reply;
  }
  reply.body = std::string(rest);
  constexpr std::string_view kLength = "content-length: ";
  const size_t length = headers.find(kLength);
  reply.whole = length == std::string::npos ||
                rest.size() == std::strtoul(headers.c_str() + length + kLength.size(), nullptr, 10);
  return reply;
}

}  // namespace

shm::Descriptor DialTcp(const std::string& address) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  shm::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return socket;
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0 &&
      errno != EINPROGRESS) {
    socket.Reset();
  }
  return socket;
}

void SendSome(const shm::Descriptor& socket, std::string_view text) {
  (void)send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool SendAll(const shm::Descriptor& socket, std::string_view text, const std::stop_token& stop,
             Duration deadline) {
  const TimePoint end = SteadyClock::Get().Now() + deadline;
  while (socket.valid() && !text.empty()) {
    if (!WaitFor(socket, POLLOUT, stop, end)) return false;
    const ssize_t sent = send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      text.remove_prefix(static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
      return false;
    }
  }
  return text.empty();
}

std::string ReadSome(const shm::Descriptor& socket, size_t most, const std::stop_token& stop,
                     Duration deadline) {
  const TimePoint end = SteadyClock::Get().Now() + deadline;
  std::string bytes(most, 0);
  while (socket.valid() && WaitFor(socket, POLLIN, stop, end)) {
    const ssize_t got = recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) continue;
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return bytes;
  }
  return "";
}

std::string HttpRequest(const std::string& method_and_path, std::string_view body,
                        const std::vector<std::string>& headers) {
  std::string request = fmt::format(
      "{} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n",
      method_and_path, body.size());
  for (const std::string& header : headers) request += header + "\r\n";
  return request.append("\r\n").append(body);
}

HttpReply AskHttp(const std::string& address, std::string_view request, const std::stop_token& stop,
                  Duration deadline) {
  const TimePoint end = SteadyClock::Get().Now() + deadline;
  const shm::Descriptor socket = DialTcp(address);
  // A server that refuses may answer before it has all, and close.
  (void)SendAll(socket, request, stop, deadline);
  std::string bytes;
  while (true) {
    const std::string more = ReadSome(socket, 64 << 10, stop, end - SteadyClock::Get().Now());
    if (more.empty()) break;
    bytes += more;
  }
  return ParseReply(bytes);
}

std::string TextsOf(std::string_view json) {
  constexpr std::string_view kField = "\"text\":";
  std::string texts;
  for (size_t at = json.find(kField); at != std::string_view::npos; at = json.find(kField, at)) {
    at += kField.size();
    if (at < json.size() && json[at] == ' ') ++at;
    if (at < json.size() && json[at] == '"') at = Unquote(json, at + 1, &texts);
  }
  return texts;
}

}  // namespace cairn::fault
