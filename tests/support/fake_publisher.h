#pragma once
// The publisher of an engine's events, as vLLM and SGLang have one: numbers its batches, keeps the
// last ones, and sends them again when it is asked.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "tests/support/etcd_cluster.h"

namespace cairn::router {

// Not thread-safe: replays are served in Serve.
class FakePublisher {
 public:
  struct Options {
    // Nobody else gets these ports, so one that has gone can come back at them.
    std::string endpoint = fmt::format("tcp://127.0.0.1:{}", testing::FreePort());
    std::string replay_endpoint = fmt::format("tcp://127.0.0.1:{}", testing::FreePort());
    bool topic_in_replays = true;  // Some versions leave it out.
    size_t remembers = 10'000;     // Batches.
  };

  explicit FakePublisher(Options options)
      : options_(std::move(options)),
        publish_(context_, zmq::socket_type::xpub),
        replay_(context_, zmq::socket_type::router) {
    publish_.set(zmq::sockopt::linger, 0);
    replay_.set(zmq::sockopt::linger, 0);
    publish_.bind(options_.endpoint);
    replay_.bind(options_.replay_endpoint);
  }

  std::string endpoint() { return publish_.get(zmq::sockopt::last_endpoint); }
  std::string replay_endpoint() { return replay_.get(zmq::sockopt::last_endpoint); }
  // Somebody gets what is published.
  bool IsFollowed() {
    zmq::message_t message;
    while (publish_.recv(message, zmq::recv_flags::dontwait)) {
      followed_ = message.size() > 0 && message.data<char>()[0] == 1;
    }
    return followed_;
  }

  void Publish(const std::string& batch) {
    Send(publish_, {"kv@pod@model", Bytes(next_), batch});
    Remember(batch);
  }
  // Numbers and remembers it, as if it had been lost on its way.
  void Lose(const std::string& batch) { Remember(batch); }
  void PublishFrames(const std::vector<std::string>& frames) { Send(publish_, frames); }

  // Answers those who ask for a replay.
  void Serve() {
    zmq::message_t who, delimiter, first;
    while (replay_.recv(who, zmq::recv_flags::dontwait)) {
      (void)replay_.recv(delimiter);
      (void)replay_.recv(first);
      ++asked_;
      uint64_t begin = 0;
      for (const char c : first.to_string()) begin = begin << 8 | static_cast<uint8_t>(c);
      for (const auto& [number, batch] : batches_) {
        if (number >= begin) Answer(who.to_string(), Bytes(number), batch);
      }
      Answer(who.to_string(), std::string(8, '\xff'), "");
    }
  }
  // The requests for a replay.
  int asked() const { return asked_; }

 private:
  static std::string Bytes(uint64_t number) {
    std::string bytes(8, '\0');
    for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (56 - 8 * i));
    return bytes;
  }
  static void Send(zmq::socket_t& socket, const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      socket.send(zmq::message_t(frames[i]),
                  i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
  void Answer(const std::string& who, const std::string& number, const std::string& batch) {
    if (options_.topic_in_replays) {
      Send(replay_, {who, "", "kv@pod@model", number, batch});
    } else {
      Send(replay_, {who, "", number, batch});
    }
  }
  void Remember(const std::string& batch) {
    batches_.emplace_back(next_++, batch);
    if (batches_.size() > options_.remembers) batches_.pop_front();
  }

  const Options options_;
  zmq::context_t context_;
  zmq::socket_t publish_, replay_;
  std::deque<std::pair<uint64_t, std::string>> batches_;
  uint64_t next_ = 0;
  bool followed_ = false;
  int asked_ = 0;
};

}  // namespace cairn::router
